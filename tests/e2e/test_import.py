"""A long conversation on first contact: imported, folded, answered (R8.5, identity case 26)."""

from __future__ import annotations

import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.harness import MODEL, running

WINDOW = 8192


def imported(count: int) -> list[dict]:
    messages: list[dict] = [{"role": "system", "content": "You keep the archive."}]
    for number in range(count):
        text = " ".join(f"fact-{number}-{word}" for word in range(40))
        messages.append({"role": "user", "content": f"Note {number}: {text}"})
        messages.append({"role": "assistant", "content": f"Noted {number}: {text}"})
    messages.append({"role": "user", "content": "What was note 3?"})
    return messages


@pytest.mark.parametrize("known", [True, False])
def test_a_history_many_times_the_window_is_answered_at_first_contact(tmp_path, known):
    """R8.5: folded on legal cuts. No summary request is ever too long."""
    settings = {"context_window": WINDOW} if known else {}
    with running(tmp_path, SimulatorSettings(window=WINDOW, models=(MODEL,)), **settings) as stack:
        messages = imported(60)
        raw = stack.client().chat.completions.with_raw_response.create(model=MODEL, messages=messages)
        assert raw.parse().choices[0].message.content
        summaries = [entry for entry in stack.seen(summaries=True) if entry["summary"]]
        assert len(summaries) > 3
        assert {entry["problem"] for entry in summaries} == {""}
        assert [entry["problem"] for entry in stack.seen()] == ([""] if known else ["overflow", ""])
        sent = stack.bodies()[-1]["messages"]
        assert sent[0] == messages[0]
        assert sent[-1] == messages[-1]


def test_without_folding_a_range_that_is_too_long_is_retreated_from(tmp_path):
    """R8.5, R9.4: shorter ranges one after the other; no summary request is ever too long."""
    with running(
        tmp_path,
        SimulatorSettings(window=WINDOW, models=(MODEL,)),
        compaction={"fold": False},
        context_window=WINDOW,
    ) as stack:
        messages = imported(30)
        raw = stack.client().chat.completions.with_raw_response.create(model=MODEL, messages=messages)
        assert "checkpoint=" in raw.headers["x-palimpsest-context"]
        summaries = [entry for entry in stack.seen(summaries=True) if entry["summary"]]
        assert len(summaries) > 1
        assert {entry["problem"] for entry in summaries} == {""}
