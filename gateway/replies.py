"""A provider's reply as the store keeps it, and as an echo of it is recognised (R3.7)."""

from __future__ import annotations

import json

import orjson

from compaction.canonical import read_message
from gateway.reply import Choice, Reply
from store.rows import ReplyKey


def reply_bodies(reply: Reply | None) -> list[bytes]:
    """One assistant message as JSON per choice."""
    return [_dump(choice) for choice in reply.choices] if reply else []


def reply_keys(reply: Reply | None, *, interrupted: bool) -> list[ReplyKey]:
    """What a later echo of each choice is recognised by."""
    return [_key(choice, interrupted=interrupted) for choice in reply.choices] if reply else []


def _key(choice: Choice, *, interrupted: bool) -> ReplyKey:
    reading = read_message(choice.message, b"")
    return ReplyKey(reading.canon, reading.loose, "\n".join(reading.texts) if interrupted else "")


def _dump(choice: Choice) -> bytes:
    try:
        return orjson.dumps(choice.message)
    except TypeError:
        # Lone surrogates, and integers above 64 bits: an answer that can be relayed can be kept.
        return json.dumps(choice.message, separators=(",", ":")).encode()
