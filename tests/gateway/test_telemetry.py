"""Log lines and figures."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from gateway.settings import LogSettings
from gateway.telemetry import MAX_ROUTES, Metrics, configure_logging

Lines = Callable[[], list[dict[str, Any]]]
PROMPT = "my grandmother's recipe"


class Capture:
    """Configures logging into memory."""

    def __init__(self) -> None:
        self.raw = io.BytesIO()
        self.stream = io.TextIOWrapper(self.raw, write_through=True)

    def configure(self, **settings: Any) -> None:
        configure_logging(LogSettings(**settings), self.stream)

    def text(self) -> str:
        return self.raw.getvalue().decode()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def capture() -> Iterator[Capture]:
    """Leaves structlog and the root logger as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield Capture()
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def test_a_line_is_one_json_object_with_level_and_time(capture: Capture):  # R15.4
    capture.configure()
    structlog.get_logger().info("request", status=200, route="a/b")
    [line] = capture.lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "request", "level": "info", "status": 200, "route": "a/b"}


def test_lines_below_the_level_are_not_written(capture: Capture):
    capture.configure(level="warning")
    structlog.get_logger().info("request")
    assert capture.text() == ""


@pytest.mark.parametrize("level", ["debug", "info"])
@pytest.mark.parametrize("key", ["messages", "content", "body", "authorization", "api_key"])
def test_keys_that_may_hold_prompt_text_or_credentials_are_withheld_at_any_level(
    capture: Capture, level: str, key: str
):  # R15.4
    capture.configure(level=level)
    structlog.get_logger().error("failed", **{key: PROMPT})
    assert PROMPT not in capture.text()
    assert capture.lines()[0][key] == "[withheld]"


def test_prompt_text_is_written_only_if_it_is_allowed_and_credentials_never(capture: Capture):  # R15.4
    capture.configure(content=True)
    structlog.get_logger().info("request", content=PROMPT, authorization="Bearer sk-1")
    assert capture.lines()[0]["content"] == PROMPT
    assert "sk-1" not in capture.text()


def failing() -> None:
    local = PROMPT
    try:
        int(local)
    except ValueError as error:
        raise RuntimeError("around") from error


def test_a_traceback_shows_where_but_no_local_values_and_no_quoted_text(capture: Capture):  # R15.4
    capture.configure()
    try:
        failing()
    except RuntimeError:
        structlog.get_logger().exception("failed")
    text = capture.lines()[0]["exception"]
    assert "in failing" in text
    assert text.index("builtins.ValueError") < text.index("builtins.RuntimeError")
    assert PROMPT not in text


def test_errors_of_the_machine_say_what_was_wrong(capture: Capture):
    capture.configure()
    structlog.get_logger().error("failed", exc_info=FileNotFoundError(2, "No such file", "/a"))
    assert "FileNotFoundError: [Errno 2] No such file: '/a'" in capture.lines()[0]["exception"]


def test_with_content_allowed_a_traceback_has_its_messages(capture: Capture):
    capture.configure(content=True)
    structlog.get_logger().error("failed", exc_info=ValueError(PROMPT))
    assert PROMPT in capture.lines()[0]["exception"]


def test_an_error_that_causes_itself_is_shown_once(capture: Capture):
    capture.configure()
    error = ValueError()
    error.__cause__ = OSError("x")
    error.__cause__.__context__ = error
    structlog.get_logger().error("failed", exc_info=error)
    assert capture.lines()[0]["exception"].count("ValueError") == 1


@pytest.mark.parametrize("value", ["\ud800", 2**70, {"a": {1, 2}}])
def test_a_line_is_written_whatever_it_holds(capture: Capture, value: object):
    capture.configure()
    structlog.get_logger().info("odd", value=value)
    assert capture.lines()[0]["event"] == "odd"


def test_warnings_of_libraries_come_in_the_same_format_and_their_chatter_does_not(capture: Capture):
    capture.configure(level="debug")
    logging.getLogger("openai").debug("Request options: %s", PROMPT)
    logging.getLogger("uvicorn.error").warning("odd %d", 1)
    [line] = capture.lines()
    assert (line["event"], line["logger"], line["level"]) == ("odd 1", "uvicorn.error", "warning")


def test_the_console_format_is_for_people(capture: Capture):
    capture.configure(format="console")
    structlog.get_logger().info("request", status=200)
    assert "status=200" in capture.text()
    assert "{" not in capture.text()


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_what_happens_is_counted():  # R15.4
    metrics = Metrics()
    metrics.request("a/b", 200, "verbatim")
    metrics.request("a/b", 200, "verbatim")
    metrics.request("a/b", 429, "projected")
    metrics.upstream("a/b", 0.3)
    metrics.added(0.0007)
    metrics.compaction("budget", "pre_turn", "compacted")
    metrics.store_failure("record_request")
    metrics.tokens("a/b", 100, 40)
    metrics.in_flight.inc()
    found = samples(metrics)
    assert found["palimpsest_requests_total", "verbatim", "a/b", "200"] == 2
    assert found["palimpsest_requests_total", "projected", "a/b", "429"] == 1
    assert found["palimpsest_upstream_seconds_sum", "a/b"] == 0.3
    assert found["palimpsest_added_seconds_bucket", "0.001"] == 1
    assert found["palimpsest_added_seconds_bucket", "0.0005"] == 0
    assert found["palimpsest_compactions_total", "compacted", "pre_turn", "budget"] == 1
    assert found["palimpsest_store_failures_total", "record_request"] == 1
    assert found["palimpsest_tokens_before_total", "a/b"] == 100
    assert found["palimpsest_tokens_after_total", "a/b"] == 40
    assert found["palimpsest_requests_in_flight",] == 1


def test_two_gateways_in_one_process_count_apart():
    one, other = Metrics(), Metrics()
    one.store_failure("x")
    assert ("palimpsest_store_failures_total", "x") not in samples(other)


def test_names_of_models_cannot_make_figures_without_end():  # R16.2
    metrics = Metrics()
    for number in range(MAX_ROUTES + 50):
        metrics.request(f"a/{number}", 200, "verbatim")
    found = samples(metrics)
    assert sum(1 for key in found if key[0] == "palimpsest_requests_total") == MAX_ROUTES + 1
    assert found["palimpsest_requests_total", "verbatim", "other", "200"] == 50
