"""What one request becomes before it is sent, as a value; making it again from the log gives the same bytes (R12.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from compaction.projection import ProjectionOptions, project
from compaction.tool_results import shortened
from compaction.types import Checkpoint, Kept, Projection
from gateway.conversation import Conversation
from gateway.settings import Route
from gateway.tokens import TokenCounter
from gateway.wire import splice, with_include_usage

NOTICE_TOKENS = 100
"""About what the notice in a shortened result costs."""
_count = TokenCounter().count
STREAM_OPTIONS = "stream_options"


@dataclass(frozen=True, slots=True)
class Sent:
    """How a body that was sent follows from the client's: kept in the log, so that it can be rebuilt (R4.1)."""

    checkpoint_id: str | None = None
    role: str = "user"
    merge: bool = False
    parts: bool = True
    members: Mapping[str, str] | None = None
    """Top-level members that the gateway set, as JSON text."""
    shortened: tuple[int, ...] = ()
    """Seqs of tool results that are shown shortened (R11.1)."""
    result_tokens: int = 0
    """To how many tokens each."""

    def to_log(self) -> dict[str, Any]:
        """As JSON-like data; empty where the client's bytes were sent."""
        data: dict[str, Any] = {}
        if self.checkpoint_id is not None:
            data |= {"checkpoint": self.checkpoint_id, "role": self.role, "merge": self.merge, "parts": self.parts}
        if self.members:
            data["members"] = dict(self.members)
        if self.shortened:
            data |= {"shortened": list(self.shortened), "result_tokens": self.result_tokens}
        return data

    @classmethod
    def from_log(cls, data: Mapping[str, Any]) -> Sent:
        """The reverse of `to_log`."""
        return cls(
            data.get("checkpoint"),
            data.get("role", "user"),
            data.get("merge", False),
            data.get("parts", True),
            data.get("members"),
            tuple(data.get("shortened", ())),
            data.get("result_tokens", 0),
        )


@dataclass(frozen=True, slots=True)
class Compiled:
    """A body to send, and how it follows from the client's. Token figures are estimates."""

    conversation: Conversation
    body: bytes
    checkpoint: Checkpoint | None
    projection: Projection | None
    sent: Sent
    before: int
    """The whole history, calibrated."""
    after: int
    """What is sent, calibrated."""
    raw_after: int
    """What is sent, uncalibrated: what the provider's own count is compared with (R5.4)."""

    @property
    def added(self) -> AbstractSet[str]:
        """Members that only the gateway asks for, and that it can do without (R2.10 c)."""
        return {STREAM_OPTIONS} & set(self.sent.members or ())

    @property
    def withholds_usage(self) -> bool:
        """The client did not ask for the usage chunk that the provider will send (R2.5)."""
        return STREAM_OPTIONS in (self.sent.members or {})

    @property
    def context(self) -> str:
        """The value of `x-palimpsest-context` (R2.11)."""
        if self.checkpoint is None or self.projection is None:
            return f"shortened; before={self.before}; after={self.after}" if self.sent.shortened else "verbatim"
        return (
            f"projected; checkpoint={self.checkpoint.checkpoint_id}; covered={self.projection.covered}; "
            f"before={self.before}; after={self.after}"
        )


def added_members(conversation: Conversation, route: Route, refused: AbstractSet[str]) -> dict[str, str]:
    """The top-level members that the gateway sets on a request: the model's other name, the wish for usage (R2.5)."""
    request = conversation.request
    members = {}
    if route.model != route.asked and route.model is not None:
        members["model"] = msgspec.json.encode(route.model).decode()
    if request.stream and route.include_usage and STREAM_OPTIONS not in refused:
        options = with_include_usage(request)
        if options is not None:
            members[STREAM_OPTIONS] = options.decode()
    return members


def compile_body(
    conversation: Conversation,
    checkpoint: Checkpoint | None,
    checkpoint_tokens: int,
    sent: Sent,
    ratio: float = 1.0,
) -> Compiled:
    """The body that `sent` describes. A pure function: what is sent now can be made again at any time (R12.3)."""
    projection = None
    if checkpoint is not None:
        options = ProjectionOptions(role=sent.role, merge_consecutive=sent.merge, content_parts=sent.parts)
        projection = project(
            conversation.path, checkpoint, options, conversation.history, checkpoint_tokens=checkpoint_tokens
        )
    raw_after = conversation.tokens if projection is None else conversation.overhead + projection.tokens
    raw_after -= sum(
        max(conversation.path.at(seq).tokens - sent.result_tokens - NOTICE_TOKENS, 0) for seq in sent.shortened
    )
    return Compiled(
        conversation=conversation,
        body=_body(conversation, projection, sent),
        checkpoint=checkpoint,
        projection=projection,
        sent=sent,
        before=round(conversation.tokens * ratio),
        after=round(raw_after * ratio),
        raw_after=raw_after,
    )


def without_members(compiled: Compiled, names: AbstractSet[str]) -> Compiled:
    """The same request without members that the provider refused (R2.10 c)."""
    kept = {name: text for name, text in (compiled.sent.members or {}).items() if name not in names}
    sent = replace(compiled.sent, members=kept)
    return replace(compiled, sent=sent, body=_body(compiled.conversation, compiled.projection, sent))


def _body(conversation: Conversation, projection: Projection | None, sent: Sent) -> bytes:
    request, history = conversation.request, _shown(conversation, sent)
    changes = {name: text.encode() for name, text in (sent.members or {}).items()}
    if projection is None:
        if sent.shortened:
            return splice(request, [*conversation.preamble, *history], changes)
        return splice(request, None, changes) if changes else request.body
    pieces = (history[piece.seq - 1] if isinstance(piece, Kept) else piece.body for piece in projection.pieces)
    return splice(request, [*conversation.preamble, *pieces], changes)


def _shown(conversation: Conversation, sent: Sent) -> Sequence[bytes]:
    """The history as it is shown: some results shortened, all else as received (R11.1)."""
    if not sent.shortened:
        return conversation.history
    shown = list(conversation.history)
    for seq in sent.shortened:
        call_id = conversation.path.at(seq).answers
        shown[seq - 1] = shortened(shown[seq - 1], seq, call_id, _count, sent.result_tokens)
    return shown
