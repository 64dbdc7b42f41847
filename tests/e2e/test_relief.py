"""What happens when no summary can be had, or none would help (R6.2, R10.3, R13.1)."""

from __future__ import annotations

import openai
import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.conversations import Talk
from tests.e2e.harness import MODEL, running

WINDOW = 8192
LOG = "\n".join(f"{number:06} worker {number % 7}: all quiet" for number in range(30_000))


def conversation(result: str) -> list[dict]:
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return [
        {"role": "user", "content": "Read the log."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]


@pytest.mark.parametrize("known", [True, False])
def test_a_giant_result_is_shortened_when_nothing_can_be_compacted(tmp_path, known):
    """R10.3, R11.4: by the budget where the window is known, else after the provider's refusal; said in the header."""
    settings = {"context_window": WINDOW} if known else {}
    with running(tmp_path, SimulatorSettings(window=WINDOW, models=(MODEL,)), **settings) as stack:
        raw = stack.client().chat.completions.with_raw_response.create(model=MODEL, messages=conversation(LOG))
        assert raw.parse().choices[0].message.content
        context = raw.headers["x-palimpsest-context"]
        assert "degraded=unreadable_result" in context
        assert ("retried" in context) == (not known)
        sent = stack.bodies()[-1]["messages"]
        assert sent[:2] == conversation(LOG)[:2]
        assert sent[2]["content"].startswith(LOG[:40])
        assert sent[2]["content"].endswith(LOG[-40:])
        assert "event_seq=3 tool_call_id=call_1" in sent[2]["content"]


@pytest.mark.parametrize(
    "summariser",
    ["error_500", "empty", "refusal", "tool_call", "echo", "four_sections", "reasoning_only", "surrogate", "all_none"],
)
def test_a_summariser_that_fails_leaves_every_client_answered_or_with_the_providers_own_error(tmp_path, summariser):
    """R13.1: the first error reaches the client unchanged; the gateway adds none of its own."""
    with running(
        tmp_path, SimulatorSettings(window=WINDOW, models=(MODEL,), summariser=summariser), context_window=WINDOW
    ) as stack:
        talk = Talk(stack.client(), session="long")
        refused = None
        for _ in range(60):
            try:
                assert talk.turn(tools=False)
            except openai.BadRequestError as error:
                refused = error
                break
        assert refused is not None, "the conversation has outgrown the window, and nothing could relieve it"
        assert refused.code == "context_length_exceeded"
        assert talk.turns > 20


def test_a_store_that_fails_is_said_and_the_request_served(tmp_path):
    """R4.4: `serve` answers verbatim with `degraded=store`."""
    with running(tmp_path, SimulatorSettings(window=WINDOW, models=(MODEL,)), context_window=WINDOW) as stack:
        talk = Talk(stack.client())
        talk.turn()
        stack.break_store()
        assert talk.turn(tools=False)
        assert "degraded=store" in talk.contexts[-1]


def test_a_store_that_fails_refuses_where_that_is_set(tmp_path):
    """R4.4: `refuse` answers 503."""
    folder = {"url": f"sqlite:///{tmp_path / 'palimpsest.db'}", "on_failure": "refuse"}
    with running(tmp_path, SimulatorSettings(window=WINDOW, models=(MODEL,)), store=folder) as stack:
        talk = Talk(stack.client())
        talk.turn()
        stack.break_store()
        with pytest.raises(openai.APIStatusError) as caught:
            talk.turn(tools=False)
        assert caught.value.status_code == 503
        assert caught.value.code == "store_unavailable"
