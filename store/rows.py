"""Row-shaped frozen values that cross the border of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compaction.types import Checkpoint, Path


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Everything that one managed request adds to the canonical history (R4.1, R4.2)."""

    tenant: str
    session: str | None
    """The client's own session id (R3.5); None: the container is chosen by content (R3.6)."""
    fresh_session: str
    """The id that a new session gets, if one must be started without a client's own."""
    request_id: str
    route: str
    path: Path
    bodies: Sequence[bytes]
    """`bodies[seq - 1]`: the exact bytes of the message at `seq`."""
    preamble: Sequence[bytes]
    """The exact bytes of the preamble's messages."""
    frame: bytes
    """The request without its messages, in the form of `gateway.wire.dump_frame`: stored once per content."""
    at: float
    """Seconds since the epoch."""
    retry_count: int = 0
    """`x-stainless-retry-count` (R3.8)."""
    sent: Mapping[str, Any] = field(default_factory=dict)
    """How the upstream's body follows from the client's: checkpoint id, members added. Empty: byte for byte."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Where a request was recorded."""

    session_key: int
    """The store's own number of the session."""
    session: str
    """The session's public id."""
    branch: int
    request_n: int
    """Number of the `request` entry in the session's log."""
    added: int
    """Messages that were new in this session."""
    lineage: str
    """`new`, `continued`, `retried`, `rewound`, `forked`, or `twin` (an equal request that is another conversation)."""


@dataclass(frozen=True, slots=True)
class ReplyKey:
    """What a later echo of one choice of a reply is recognised by (R3.7)."""

    canon: bytes
    loose: bytes
    text: str
    """Visible text, for the comparison with a cut echo; empty unless the reply was interrupted."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a route has accepted on a path (R10.5)."""

    route: str
    digest: bytes
    through_seq: int
    checkpoint_id: str | None
    input_tokens: int
    output_tokens: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Tokens of one upstream answer (R14.3)."""

    day: str
    """UTC, `2026-12-01`."""
    route: str
    kind: str
    """`chat`, `compaction` or `hidden_step`."""
    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """What the provider answered, as it is entered in the log (R4.1)."""

    tenant: str
    recorded: Recorded
    at: float
    status: int
    choices: Sequence[bytes]
    """One assistant message as JSON per choice, as far as it was delivered."""
    keys: Sequence[ReplyKey]
    finish_reason: str | None
    usage: Mapping[str, Any] | None
    delivered_bytes: int
    interrupted: bool
    """The answer ended before its end: the client left, the provider broke off, or it was an error."""
    error: str | None = None
    sent: Mapping[str, Any] | None = None
    """How the body that was answered follows from the client's, where that was decided after the request was
    recorded (a compaction, a second send)."""
    boundary: Boundary | None = None
    spent: UsageRow | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry to be appended to a session's log (R4.1)."""

    kind: str
    data: Mapping[str, Any]
    node: bytes | None = None
    """The node it is about, by name."""
    bodies: Sequence[bytes] = ()
    """Byte strings to be stored once per content; `data` refers to them by hex SHA-256."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry as it stands in the log."""

    n: int
    kind: str
    at: float
    data: Mapping[str, Any]
    node: bytes | None
    seq: int | None
    """Position of the node on its path."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session, as listed."""

    key: int
    tenant: str
    session: str
    created_at: float
    last_request_at: float
    entries: int
    branches: int
    messages: int


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A path in a session, by its newest message."""

    branch: int
    head: bytes
    head_seq: int
    updated_at: float


@dataclass(frozen=True, slots=True)
class RouteState:
    """What was learned about a route, as JSON-like data that the gateway reads and writes (R5.4, R10.4, R2.10 c)."""

    route: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ContextRows:
    """What must be known of a path before its request is sent: one read."""

    checkpoint: Checkpoint | None
    """The valid checkpoint that covers most (R7.6)."""
    invalid: Sequence[str]
    """Ids of rows on the path that were passed over."""
    route: RouteState | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Whether a checkpoint was committed; if not, the one that was there first (R9.2)."""

    committed: bool
    winner: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A recorded request with all that its exact bytes are made of (R4.1)."""

    tenant: str
    session: str
    n: int
    route: str
    at: float
    preamble: Sequence[bytes]
    history: Sequence[bytes]
    frame: bytes
    sent: Mapping[str, Any]
