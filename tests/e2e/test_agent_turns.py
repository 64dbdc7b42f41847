"""Agents: one turn longer than the window, and what becomes of its task (R6.5, R7.5)."""

from __future__ import annotations

import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.conversations import TOOLS
from tests.e2e.harness import MODEL, running

WINDOW = 8192
TASK = "Find every broken sensor and list them. Task number T-77-ALPHA."


class Agent:
    """A loop of calls and results after one user message; the results tell the simulated model what to do next."""

    def __init__(self, stack) -> None:
        self.client = stack.client(default_headers={"x-palimpsest-session": "agent"})
        self.messages = [{"role": "system", "content": "You are an agent."}]
        self.contexts = []
        self.steps = 0

    def turn(self, text: str, steps: int) -> None:
        self.messages.append({"role": "user", "content": f'{text} [[call:look_up {{"key": "first"}}]]'})
        for left in range(steps, -1, -1):
            raw = self.client.chat.completions.with_raw_response.create(
                model=MODEL, messages=[], extra_body={"messages": self.messages, "tools": TOOLS}
            )
            self.contexts.append(raw.headers["x-palimpsest-context"])
            message = raw.parse().choices[0].message.model_dump(exclude_none=True)
            self.messages.append(message)
            for call in message.get("tool_calls", ()):
                self.steps += 1
                rows = "\n".join(f"sensor {self.steps}-{row} value {row * 7919 % 9973}" for row in range(20))
                following = f'[[call:look_up {{"key": "k{self.steps}"}}]]' if left > 1 else "[[say:All found.]]"
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{rows}\n{following}"})


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "vllm"])
def test_a_turn_longer_than_the_window_keeps_its_task_verbatim(tmp_path, dialect):
    """R6.5, R12.1: the user message of the turn is put back behind the checkpoint, byte for byte."""
    with running(
        tmp_path, SimulatorSettings(window=WINDOW, dialect=dialect, models=(MODEL,)), context_window=WINDOW
    ) as stack:
        agent = Agent(stack)
        agent.turn(TASK, 80)
        assert agent.messages[-1]["content"] == "All found."
        assert len({context.split("; ")[1] for context in agent.contexts if "checkpoint=" in context}) > 2
        for body in stack.bodies():
            users = [message for message in body["messages"] if message["role"] == "user"]
            assert users[-1] == agent.messages[1]
        assert all(entry["problem"] == "" for entry in stack.seen(summaries=True))


def test_the_old_task_is_told_to_the_summary_that_takes_its_place(tmp_path):
    """R7.5: it was shown verbatim up to then, so no summary has it yet."""
    with running(tmp_path, SimulatorSettings(window=WINDOW, models=(MODEL,)), context_window=WINDOW) as stack:
        agent = Agent(stack)
        agent.turn(TASK, 60)
        before = len(stack.bodies(summaries=True))
        agent.turn("Now something else: count the doors.", 60)
        later = stack.bodies(summaries=True)[before:]
        summaries = [body for body in later if "## Critical Context" in body["messages"][0]["content"]]
        assert any(f"[event seq=1 role=user]\n{TASK}" in body["messages"][1]["content"] for body in summaries)
        visible = [body for body in later if body not in summaries and "conversation-record" in str(body)]
        assert visible
