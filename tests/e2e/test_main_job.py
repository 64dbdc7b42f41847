"""The main job: a conversation many times longer than the window, and every request is answered."""

from __future__ import annotations

import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.conversations import Talk
from tests.e2e.harness import MODEL, running

WINDOW = 8192
DIALECTS = ["openai", "vllm", "llamacpp", "anthropic", "gemini", "openrouter"]


def simulator(dialect: str, **options) -> SimulatorSettings:
    return SimulatorSettings(window=WINDOW, dialect=dialect, models=(MODEL,), **options)


def overflows(stack) -> int:
    return sum(entry["problem"] == "overflow" for entry in stack.seen(summaries=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_300_turns_are_answered_in_every_dialect(tmp_path, dialect):
    """With the window known, no turn is refused, and the current user message arrives byte for byte (R12.2)."""
    with running(tmp_path, simulator(dialect), context_window=WINDOW) as stack:
        talk = Talk(stack.client(), session="long")
        for _ in range(300):
            assert talk.turn()
        assert overflows(stack) == 0
        last = stack.bodies()[-1]["messages"]
        assert last[0] == talk.messages[0]
        assert [m for m in last if m["role"] == "user"][-1] == [m for m in talk.messages if m["role"] == "user"][-1]
        assert sum("checkpoint=" in context for context in talk.contexts) > 200


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_unknown_window_is_learned_from_exactly_one_overflow(tmp_path, dialect):
    """R5.1, R10.2, R10.4: the first refusal states the limit; it is repaired, and there is no second one."""
    with running(tmp_path, simulator(dialect, model_info=False)) as stack:
        talk = Talk(stack.client(), session="long")
        for _ in range(60):
            assert talk.turn()
        assert overflows(stack) == 1
        assert sum("retried" in context for context in talk.contexts) == 1


def test_a_request_after_a_restart_goes_on(tmp_path):
    """The checkpoint is found again, and the projection begins with the same bytes (R12.3)."""
    with running(tmp_path, simulator("openai"), context_window=WINDOW) as stack:
        talk = Talk(stack.client(), session="long")
        for _ in range(40):
            talk.turn()
        before = stack.bodies()[-1]["messages"]
    assert "checkpoint=" in talk.contexts[-1]
    with running(tmp_path, simulator("openai"), context_window=WINDOW) as stack:
        talk.client = stack.client()
        talk.messages.append({"role": "user", "content": "And now?"})
        talk.request()
        after = stack.bodies()[0]["messages"]
    assert talk.contexts[-1].split("; ")[1] == talk.contexts[-2].split("; ")[1]
    assert after[: len(before)] == before


@pytest.mark.slow
@pytest.mark.parametrize(("window", "words", "summariser"), [(4096, 100, "honest"), (8192, 200, "too_large")])
def test_a_conversation_does_not_get_stuck(tmp_path, window, words, summariser):
    """R7.5: where one more segment brings nothing, one record takes the place of all."""
    options = {"window": window, "models": (MODEL,), "summariser": summariser}
    with running(tmp_path, SimulatorSettings(**options), context_window=window) as stack:
        talk = Talk(stack.client(), session="small")
        for _ in range(80):
            assert talk.turn(words, tools=False)
