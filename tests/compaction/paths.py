"""Histories written down shortly, for tests of the pure core: real messages, with token figures of the test's choice."""

import json
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from hypothesis import strategies as st

from compaction.canonical import build_path, read_message
from compaction.checkpoint import checkpoint_id, new_checkpoint, segments_with
from compaction.types import Budget, Checkpoint, Level, Path, Phase, Plan, Trigger

PROMPT = "p1"
ROUTE = "up/model"
SUMMARY = "## Goal\nWrite.\n## Progress\nSome.\n## Key Decisions\nA.\n## Next Steps\nB.\n## Critical Context\nC."


def user(text: str = "question", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def system(text: str = "rule") -> dict[str, Any]:
    return {"role": "system", "content": text}


def assistant(text: str = "answer") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function} for name in ids],
    }


def result(call: str, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


@dataclass(frozen=True)
class History:
    """Messages with their exact bytes and their path."""

    raws: tuple[bytes, ...]
    path: Path


def history(*messages: dict[str, Any] | tuple[dict[str, Any], int], tokens: int = 100) -> History:
    """A history; each message costs `tokens`, or what stands beside it."""
    sized = [entry if isinstance(entry, tuple) else (entry, tokens) for entry in messages]
    raws = tuple(json.dumps(message).encode() for message, _ in sized)
    read = [read_message(message, raw).message(size) for (message, size), raw in zip(sized, raws, strict=True)]
    return History(raws, build_path("tenant", read))


def cut(path: Path, last: int) -> Path:
    """The path's first `last` messages."""
    return Path(path.messages[:last], path.digests[: last + 1], path.nodes[: last + 1])


def budget(high: int, window: int | None = None) -> Budget:
    """A budget with this high water, and the default shares of it."""
    return Budget(window=window or 2 * high, reserve=high, high=high, soft=high * 8 // 10, low=high * 6 // 10)


UNKNOWN = Budget(window=None, reserve=0, high=None, soft=None, low=None)


def plan_for(
    path: Path,
    through: int,
    *,
    anchor: int = 0,
    previous: Checkpoint | None = None,
    level: Level | None = None,
    phase: Phase = Phase.PRE_TURN,
    trigger: Trigger = Trigger.BUDGET,
) -> Plan:
    """A plan made by hand: by default it appends a segment if there is a previous checkpoint."""
    return Plan(
        trigger=trigger,
        phase=phase,
        from_seq=previous.through_seq + 1 if previous else 1,
        through_seq=through,
        source_digest=path.digests[through],
        head_anchor_seq=anchor,
        level=level or (Level.SEGMENTED if previous else Level.SESSION),
        previous=previous,
        tokens_raw=1000,
        tokens_before=1000,
        reason="by hand",
    )


def checkpoint_of(plan: Plan, text: str = SUMMARY, **changes: Any) -> Checkpoint:
    """The checkpoint that a plan leads to; `changes` go into `new_checkpoint`."""
    given = {
        "session_id": "s1",
        "model": "model",
        "prompt_version": PROMPT,
        "created_at": "2026-12-01T00:00:00Z",
        "tokens_after": 300,
    }
    return new_checkpoint(plan, segments_with(plan, text, 50), **{**given, **changes})


def checkpoint_at(path: Path, through: int, text: str = SUMMARY, **options: Any) -> Checkpoint:
    """A valid text checkpoint that covers the path's first `through` messages."""
    return checkpoint_of(plan_for(path, through, **options), text)


def forged(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    """The checkpoint with other fields and an id that recomputes all the same."""
    changed = replace(checkpoint, **changes)
    return replace(changed, checkpoint_id=checkpoint_id(changed))


_SHAPES = {
    "user": [user()],
    "users": [user("1"), user("2")],
    "answer": [assistant()],
    "system": [system()],
    "step": [calls("a"), result("a")],
    "parallel": [calls("a", "b"), result("b"), result("a")],
    "lost": [calls("a", "b"), result("b")],
    "unanswered": [calls("a")],
    "orphan": [result("gone")],
    "doubled": [calls("a"), result("a"), result("a")],
}
WELL_FORMED = ["user", "users", "answer", "system", "step", "parallel"]


def shapes(kinds: list[str] | None = None, max_size: int = 8) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Lists of messages in which only roles and pairing vary: cheap, and all that planning looks at."""
    return st.lists(st.sampled_from(kinds or list(_SHAPES)), max_size=max_size).map(_numbered)


def _numbered(kinds: list[str]) -> list[dict[str, Any]]:
    """The messages of these shapes, with a text of its own each."""
    number = count(1)
    messages = (message for kind in kinds for message in _SHAPES[kind])
    return [
        message if message["content"] is None else {**message, "content": f"text {next(number)}"}
        for message in messages
    ]
