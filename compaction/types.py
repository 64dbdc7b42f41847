"""The frozen values that travel between the modules of the core, and out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

Counter = Callable[[Sequence[str]], Sequence[int]]
"""Counts tokens: one integer per text, in order. Handed in; lone surrogates must not make it fail."""


class Trigger(StrEnum):
    """Why a compaction is considered (R6.1)."""

    BUDGET = "budget"
    PROVIDER = "provider"
    MANUAL = "manual"


class Phase(StrEnum):
    """Where the cut lies (R6.4-R6.6)."""

    PRE_TURN = "pre_turn"
    MID_TURN = "mid_turn"
    STANDALONE = "standalone"


class Level(StrEnum):
    """How the segments of a checkpoint came to be (R7.4, R7.5)."""

    SEGMENTED = "segmented"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an assistant message: the id that links it to its result, and the tool's name."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Message:
    """What one message says, read once from its exact bytes. It knows nothing of its place, so it may be cached."""

    role: str
    """As sent, except that `developer` reads `system` and `function` reads `tool`."""
    sha256: bytes
    """SHA-256 of the exact bytes: the name of the body in the store (R4.2)."""
    canon: bytes
    """SHA-256 of the canonical form without tool-call linkage (R3.2)."""
    loose: bytes
    """SHA-256 of the loose form that an echo of a reply is compared by (R3.7); empty unless the role is assistant."""
    tokens: int
    """Estimated tokens, fixed costs of media and 4 per message included (R5.3)."""
    size: int
    """Bytes, as received."""
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    """The tool call id that a tool result answers; for a legacy `function` result, the function's name."""
    cache_mark: str | None = None
    """The last cache mark inside, as JSON text (`{"type":"ephemeral","ttl":"1h"}`), if any (R12.1)."""


@dataclass(frozen=True, slots=True)
class Path:
    """The history of one request, first message to last, with what identifies it (SPEC 1: path, digest, node)."""

    messages: tuple[Message, ...]
    digests: tuple[bytes, ...]
    """`digests[seq]` is the chained digest at `seq`; `digests[0]` is the tenant's root (R3.3)."""
    nodes: tuple[bytes, ...]
    """`nodes[seq]` names the node at `seq`: exact bytes chained on the parent's node; `nodes[0]` is the root."""
    totals: tuple[int, ...] = ()
    """`totals[seq]` are the estimated tokens of the messages up to `seq`; empty: not added up."""

    def __len__(self) -> int:
        """The number of messages: the seq of the last one."""
        return len(self.messages)

    def at(self, seq: int) -> Message:
        """The message at `seq` (1 = first after the preamble)."""
        return self.messages[seq - 1]

    def tokens(self, first: int, last: int) -> int:
        """Estimated tokens of the messages `first` to `last`, both included."""
        if self.totals and 0 < first <= last + 1:
            return self.totals[last] - self.totals[first - 1]
        return sum(message.tokens for message in self.messages[first - 1 : last])


@dataclass(frozen=True, slots=True)
class Budget:
    """What a route's window leaves for the input, in tokens (R5.2). All None when the window is unknown."""

    window: int | None
    reserve: int
    high: int | None
    """High water: strictly above it a request must be compacted before it is sent."""
    soft: int | None
    """Soft water: past it the next checkpoint may be drafted in the background (R9.6)."""
    low: int | None
    """Low water: what relief aims at (R6.2)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings the planner obeys (SPEC 6). Shares are of high water."""

    soft: float = 0.8
    target: float = 0.6
    min_gain: float = 0.1
    keep_recent_turns: int = 0
    keep_recent_tokens: float = 0.2
    min_mid_turn_steps: int = 2
    result_tokens: int = 2048
    """Tool results above this many tokens may be shown shortened (R11.1)."""
    append_on_anchor_change: bool = False
    """`compaction.on_anchor_change = "append"` (R7.5)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One summary for one contiguous range of the history (R7.1)."""

    from_seq: int
    through_seq: int
    source_digest: str
    """Hex digest of the path at `through_seq`."""
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified, shorter stand-in for a contiguous prefix of the history (R7.1). Digests are hex."""

    schema: int
    format: int
    canon: int
    prompt: str
    """Version of the prompts that made it (R8.6)."""
    checkpoint_id: str
    previous_checkpoint_id: str | None
    session_id: str
    phase: str
    through_seq: int
    source_digest: str
    head_anchor_seq: int
    """First message of the anchor; 0 = none."""
    projection_kind: str
    """`text` or `native`."""
    level: str
    segments: tuple[Segment, ...]
    provider_route: str | None
    provider_state: str | None
    """Native only: opaque JSON text, bound to `provider_route` (R9.1)."""
    model: str
    tokens_raw: int
    tokens_before: int
    tokens_after: int
    created_at: str
    """RFC 3339, UTC."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A compaction that is worth trying: what it covers, and on what it builds."""

    trigger: Trigger
    phase: Phase
    from_seq: int
    """First message not summarised before: 1, or one past the previous checkpoint when a segment is appended or the
    session-level summary is made from earlier segments."""
    through_seq: int
    source_digest: bytes
    head_anchor_seq: int
    level: Level
    previous: Checkpoint | None
    """The checkpoint in force when the plan was made; its id must still be current at the commit (R9.2)."""
    tokens_raw: int
    """Estimate of the raw history with preamble and tools."""
    tokens_before: int
    """Estimate of the effective projection that the candidate replaces (R9.2)."""
    reason: str
    """Why this plan and not another, for the diagnostic (R13.4)."""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """No valid checkpoint, nothing to do: the request goes out as received (R12.4)."""

    tokens: int
    reason: str = "fits"


@dataclass(frozen=True, slots=True)
class Send:
    """The projection by the checkpoint in force goes out; no (further) compaction is worth trying."""

    checkpoint: Checkpoint | None
    tokens: int
    reason: str
    """`fits`, or why nothing more is done although it is over: then the provider decides (R5.5)."""
    over: bool = False


@dataclass(frozen=True, slots=True)
class Compact:
    """A compaction must be tried first. `fallback` is what is sent if it comes to nothing (R13.1)."""

    plan: Plan
    fallback: Send | Verbatim


Decision = Verbatim | Send | Compact


@dataclass(frozen=True, slots=True)
class Kept:
    """A message of the request's history that is sent with its original bytes."""

    seq: int


@dataclass(frozen=True, slots=True)
class Written:
    """A message that the gateway writes: its exact bytes."""

    body: bytes
    stands_for: int
    """The last seq whose place it takes."""


@dataclass(frozen=True, slots=True)
class Projection:
    """What the model is sent after the preamble, in order (R12.1)."""

    pieces: tuple[Kept | Written, ...]
    checkpoint_id: str | None
    covered: int
    """Messages that the checkpoint stands for (the anchor and kept system messages not subtracted)."""
    tokens: int
    """Estimate, preamble and tools not included."""
