"""What went wrong before, as values: fingerprints, back-off, and the two pauses of budget compaction (SPEC 13)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compaction.checkpoint import length_prefixed
from compaction.types import Plan

REMEMBERED = 16
FIRST_DELAY = 10.0
LONGEST_DELAY = 600.0
FAILURES_IN_A_ROW = 2
UNUSED_IN_A_ROW = 2
PAUSED_REQUESTS = 10


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What makes two attempts at a compaction equal (R13.2)."""

    prompt_version: str
    route: str
    previous_checkpoint_id: str | None
    source_digest: str
    through_seq: int
    head_anchor_seq: int
    min_gain: int = 0
    """What was demanded (R6.7): what was too little for one trigger may be enough for another."""

    @property
    def hash(self) -> str:
        """The fingerprint as hex SHA-256: what is stored and compared."""
        values = (
            self.prompt_version,
            self.route,
            self.previous_checkpoint_id,
            self.source_digest,
            self.through_seq,
            self.head_anchor_seq,
            self.min_gain,
        )
        return hashlib.sha256(length_prefixed(values)).hexdigest()


def fingerprint(plan: Plan, *, prompt_version: str, route: str, min_gain: int = 0) -> Fingerprint:
    """The fingerprint of an attempt at `plan` with these prompts on this route."""
    return Fingerprint(
        prompt_version=prompt_version,
        route=route,
        previous_checkpoint_id=plan.previous.checkpoint_id if plan.previous else None,
        source_digest=plan.source_digest.hex(),
        through_seq=plan.through_seq,
        head_anchor_seq=plan.head_anchor_seq,
        min_gain=min_gain,
    )


def remember(known: Sequence[str], failed: Fingerprint) -> tuple[str, ...]:
    """The session's failures, oldest first, with one more: each once, at most 16, the oldest dropped (R13.2)."""
    others = [entry for entry in known if entry != failed.hash]
    return (*others, failed.hash)[-REMEMBERED:]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a route's summariser is left alone after a network error, 429 or 5xx (R13.3). Times in seconds."""

    failures: int = 0
    until: float = 0.0

    def failed(self, now: float, retry_after: float = 0.0) -> Backoff:
        """After one more failure: 10 s, doubling to 600 s, and never sooner than the provider asked for."""
        # The exponent is bounded because 2.0 ** 1024 is no float.
        delay = min(FIRST_DELAY * 2.0 ** min(self.failures, 10), LONGEST_DELAY)
        return Backoff(self.failures + 1, now + max(delay, min(retry_after, LONGEST_DELAY)))

    def waits(self, now: float) -> bool:
        """Whether it is too early for another attempt. A success is forgotten by starting from `Backoff()`."""
        return now < self.until


@dataclass(frozen=True, slots=True)
class Streak:
    """Deterministic failures in a row on one path (R13.5). A commit is forgotten by starting from `Streak()`."""

    failures: int = 0
    tokens: int = 0
    """Estimate of the raw history at the last failure."""
    turn: int = 0
    """Seq of the current user message at the last failure."""

    def failed(self, tokens: int, turn: int) -> Streak:
        """After one more failure, with the history at `tokens` and the current user message at `turn`."""
        return Streak(self.failures + 1, tokens, turn)

    def waits(self, tokens: int, turn: int, min_gain: int) -> bool:
        """Whether budget compaction waits: two failures, no new turn, and grown by less than `min_gain` tokens."""
        return self.failures >= FAILURES_IN_A_ROW and turn == self.turn and tokens - self.tokens < min_gain


@dataclass(frozen=True, slots=True)
class Volatility:
    """Whether a session's checkpoints are of use to its later requests (R13.5)."""

    unused: int = 0
    """Checkpoints in a row that applied to no later request."""
    untried: bool = False
    """A checkpoint was committed and no request has come since."""
    paused: int = 0
    """Requests for which budget compaction still pauses, the one that was counted last included."""

    def committed(self) -> Volatility:
        """After a checkpoint was committed."""
        return replace(self, untried=True)

    def requested(self, *, applied: bool) -> Volatility:
        """After one more request came, to which a checkpoint applied or not."""
        if applied:
            return Volatility()
        unused = self.unused + self.untried
        if unused >= UNUSED_IN_A_ROW:
            return Volatility(paused=PAUSED_REQUESTS)
        return Volatility(unused, untried=False, paused=max(self.paused - 1, 0))

    @property
    def pauses(self) -> bool:
        """Whether budget compaction pauses for the request that was counted last."""
        return self.paused > 0
