"""Drives tool-using conversations with the `openai` SDK, and checks each answer on the way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.e2e.harness import MODEL

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
        },
    }
]


@dataclass
class Talk:
    """One client's conversation, as it keeps it itself."""

    client: openai.OpenAI
    seed: int = 0
    session: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)
    turns: int = 0

    def turn(self, words: int = 60, tools: bool | None = None) -> str:
        """One user message and everything until the model's final text. Raises what the SDK raises."""
        self.turns += 1
        rng = random.Random(f"{self.seed}/{self.turns}")
        if not self.messages:
            self.messages.append({"role": "system", "content": f"You keep notes for client {self.seed}."})
        if tools is None:
            tools = self.turns % 3 != 0
        directive = f' [[call:look_up {{"key": "k{rng.randrange(10**6)}"}}]]' if tools else ""
        text = " ".join(f"w{rng.randrange(10**4)}" for _ in range(words))
        self.messages.append({"role": "user", "content": f"Turn {self.turns}: note {text}.{directive}"})
        while True:
            message = self.request()
            self.messages.append(message)
            if not message.get("tool_calls"):
                return message["content"] or ""
            for call in message["tool_calls"]:
                lines = [f"row {rng.randrange(10**6)} of {call['id']}" for _ in range(12)]
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "\n".join(lines)})

    def request(self) -> dict[str, Any]:
        """Send what there is; the assistant message that came back."""
        headers = {"x-palimpsest-session": self.session} if self.session else {}
        # Through `extra_body`, since the SDK's own walk over `messages` takes most of a long conversation's time.
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[],
            extra_body={"messages": self.messages, "tools": TOOLS},
            extra_headers=headers,
        )
        self.contexts.append(raw.headers["x-palimpsest-context"])
        message = raw.parse().choices[0].message
        plain: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.tool_calls:
            plain["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
        return plain
