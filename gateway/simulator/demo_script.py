"""The conversation that the demo drives: an operator's agent that looks after a warehouse, turn by turn."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

SYSTEM = (
    "You are the night operator of a small warehouse. Use the tools to look things up before you answer. "
    "Never ship order 7781 without a signature."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
    for name, description in (
        ("read_log", "Read the newest lines of a machine's log."),
        ("find_stock", "Find where an article is stored, and how many there are."),
    )
]
_PLACES = ("north gate", "cold room", "conveyor 4", "packing table 2", "loading bay C", "high rack 11")
_EVENTS = ("temperature 4.2 C", "door opened", "scanner E-1042 timed out", "pallet 88-310 moved", "weight 12.75 kg")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says in one turn; the directives in it make the simulated model call tools."""

    number: int
    text: str
    stream: bool


def turns(count: int) -> list[Turn]:
    """The script: every second turn is streamed, most turns call one tool, each fifth calls two at once."""
    return [_turn(number) for number in range(1, count + 1)]


def _turn(number: int) -> Turn:
    place = _PLACES[number % len(_PLACES)]
    question = f"Turn {number}: what happened at the {place} since ticket T-{4000 + number}? Keep the reading exact."
    calls = [f'[[call:read_log {{"query": "{place} #{number}"}}]]']
    if number % 5 == 0:
        calls.append(f'[[call:find_stock {{"query": "article {number * 17}"}}]]')
    if number % 7 == 0:
        calls = []
    return Turn(number, " ".join([question, *calls]), stream=number % 2 == 0)


def tool_result(name: str, arguments: str) -> str:
    """What a tool answers: some hundred tokens that depend on the question only."""
    rng = random.Random(hashlib.sha256(f"{name}:{arguments}".encode()).digest())
    lines = [
        f"{rng.randrange(24):02}:{rng.randrange(60):02} {rng.choice(_PLACES)}: {rng.choice(_EVENTS)} "
        f"(record {rng.randrange(10**6):06})"
        for _ in range(14)
    ]
    return "\n".join(lines)
