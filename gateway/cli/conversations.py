"""Recorded conversations, read from files: what `palimpsest replay` sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]
EXPECTED = (
    'expected JSON, or one JSON value a line: {"messages": [...], "tools": [...]} in the form of Chat Completions, '
    "or only the list of messages"
)


class ConversationError(Exception):
    """A file that holds no conversation that can be replayed. The message says where and what was expected."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One recording."""

    name: str
    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()

    def points(self, limit: int | None = None) -> list[int]:
        """How many messages come before each recorded answer, for the first `limit` answers."""
        found = [n for n, message in enumerate(self.messages) if n and message["role"] == "assistant"]
        return found[:limit]


def read_conversations(path: Path) -> list[Conversation]:
    """All conversations of a file. Raises ConversationError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConversationError(f"{path}: {error.strerror or error}") from error
    found = [_conversation(value, where, f"{path.stem}{suffix}") for where, suffix, value in _values(path, data)]
    if not found:
        raise ConversationError(f"{path}: the file is empty; {EXPECTED}")
    return found


def _values(path: Path, data: bytes) -> Iterator[tuple[str, str, Any]]:
    """Each JSON value of a file: where it is, what tells its name from the others', and the value."""
    try:
        whole = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
        if lines and not _is_json(lines[0][1]):
            raise ConversationError(f"{path}: not JSON: {error}; {EXPECTED}") from error
    else:
        yield str(path), "", whole
        return
    for n, line in lines:
        try:
            yield f"{path}, line {n}", f":{n}", orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ConversationError(f"{path}, line {n}: not JSON: {error}; {EXPECTED}") from error


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _conversation(value: Any, where: str, name: str) -> Conversation:
    given: Json = {"messages": value} if isinstance(value, list) else value
    if not isinstance(given, dict) or "messages" not in given:
        raise ConversationError(f"{where}: no messages; {EXPECTED}")
    messages = _objects(given["messages"], f"{where}: messages")
    tools = _objects(given.get("tools") or [], f"{where}: tools")
    for n, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ConversationError(f"{where}: messages[{n}] has no role; expected a text such as 'user'")
    said = given.get("id")
    conversation = Conversation(said if isinstance(said, str) and said else name, messages, tools)
    if not conversation.points():
        raise ConversationError(
            f"{where}: nothing to replay; expected an assistant message that follows at least one other message"
        )
    return conversation


def _objects(value: Any, where: str) -> tuple[Json, ...]:
    if not isinstance(value, list):
        raise ConversationError(f"{where}: expected a list")
    for n, item in enumerate(value):
        if not isinstance(item, dict):
            raise ConversationError(f"{where}[{n}]: expected an object")
    return tuple(value)
