"""What the log's entries say, as JSON-like data (R4.1). Byte strings appear by their hex SHA-256."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from store.rows import ReplyKey, ReplyRecord, RequestRecord

MESSAGE = "message"
PREAMBLE = "preamble"
REQUEST = "request"
RESPONSE = "response"
STARTED = "compaction_started"
COMPLETED = "compaction_completed"
FAILED = "compaction_failed"
DIAGNOSTIC = "compaction_diagnostic"
ACCEPTED = "context_request_accepted"

MAX_REPLIES = 16
"""Answers to one head that an echo is compared with; a head that was answered more often forgets the oldest."""


def request_data(
    record: RequestRecord, *, preamble: Sequence[bytes], frame: bytes, branch: int, lineage: str
) -> dict[str, Any]:
    """The `request` entry: with the bodies on the path to its node, the exact bytes can be rebuilt from it."""
    return {
        "request_id": record.request_id,
        "route": record.route,
        "head_seq": len(record.path),
        "preamble": [name.hex() for name in preamble],
        "frame": frame.hex(),
        "retry": record.retry_count,
        "lineage": lineage,
        "branch": branch,
        "sent": dict(record.sent),
    }


def response_data(record: ReplyRecord, choices: Sequence[bytes]) -> dict[str, Any]:
    """The `response` entry."""
    data = {  # begins as `response_begins` says
        "request_n": record.recorded.request_n,
        "status": record.status,
        "finish_reason": record.finish_reason,
        "choices": [name.hex() for name in choices],
        "usage": record.usage,
        "delivered_bytes": record.delivered_bytes,
        "interrupted": record.interrupted,
        "error": record.error,
    }
    return data if record.sent is None else {**data, "sent": dict(record.sent)}


def response_begins(request_n: int) -> str:
    """How the text of every answer to a request begins."""
    return f'{{"request_n":{request_n},'


def accepted_data(record: ReplyRecord) -> dict[str, Any] | None:
    """The `context_request_accepted` entry, if the answer gave a boundary (R10.5)."""
    boundary = record.boundary
    if boundary is None:
        return None
    return {
        "request_n": record.recorded.request_n,
        "route": boundary.route,
        "digest": boundary.digest.hex(),
        "through_seq": boundary.through_seq,
        "checkpoint_id": boundary.checkpoint_id,
        "input_tokens": boundary.input_tokens,
        "output_tokens": boundary.output_tokens,
        "payload_bytes": boundary.payload_bytes,
    }


def was_delivered(record: ReplyRecord) -> bool:
    """Whether the client got a whole answer, so that an equal request is no retry (R3.8)."""
    return record.status < 400 and not record.interrupted and record.error is None


def delivered_keys(record: ReplyRecord) -> Sequence[ReplyKey]:
    """What the client may echo: nothing where nothing was delivered."""
    return record.keys if was_delivered(record) or record.delivered_bytes > 0 else ()


def dump_key(key: ReplyKey) -> list[str]:
    """A key as it lies in a branch's row."""
    return [key.canon.hex(), key.loose.hex(), key.text]


def load_key(data: Sequence[str]) -> ReplyKey:
    """The key that `dump_key` wrote."""
    return ReplyKey(bytes.fromhex(data[0]), bytes.fromhex(data[1]), data[2])
