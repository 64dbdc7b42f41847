"""What one request becomes before it is sent, as a value; making it again from the log gives the same bytes (R12.3)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from compaction.projection import ProjectionOptions, project
from compaction.types import Checkpoint, Kept, Projection
from gateway.conversation import Conversation
from gateway.settings import Route
from gateway.wire import splice, with_include_usage

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

    def to_log(self) -> dict[str, Any]:
        """As JSON-like data; empty where the client's bytes were sent."""
        data: dict[str, Any] = {}
        if self.checkpoint_id is not None:
            data |= {"checkpoint": self.checkpoint_id, "role": self.role, "merge": self.merge, "parts": self.parts}
        if self.members:
            data["members"] = dict(self.members)
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

    @property
    def raw_after(self) -> int:
        """What is sent, uncalibrated: what the provider's own count is compared with (R5.4)."""
        if self.projection is None:
            return self.conversation.tokens
        return self.conversation.overhead + self.projection.tokens

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
            return "verbatim"
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
    after = conversation.tokens if projection is None else conversation.overhead + projection.tokens
    return Compiled(
        conversation=conversation,
        body=_body(conversation, projection, sent.members or {}),
        checkpoint=checkpoint,
        projection=projection,
        sent=sent,
        before=round(conversation.tokens * ratio),
        after=round(after * ratio),
    )


def without_members(compiled: Compiled, names: AbstractSet[str]) -> Compiled:
    """The same request without members that the provider refused (R2.10 c)."""
    kept = {name: text for name, text in (compiled.sent.members or {}).items() if name not in names}
    return replace(
        compiled,
        sent=replace(compiled.sent, members=kept),
        body=_body(compiled.conversation, compiled.projection, kept),
    )


def _body(conversation: Conversation, projection: Projection | None, members: Mapping[str, str]) -> bytes:
    request, history = conversation.request, conversation.history
    changes = {name: text.encode() for name, text in members.items()}
    if projection is None:
        return splice(request, None, changes) if changes else request.body
    pieces = (history[piece.seq - 1] if isinstance(piece, Kept) else piece.body for piece in projection.pieces)
    return splice(request, [*conversation.preamble, *pieces], changes)
