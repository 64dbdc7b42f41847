"""How many tokens things take, what a window leaves for them, and what providers teach about both (SPEC 5, R10.4).

Counts come from outside; the time too, as seconds since the epoch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from compaction.canonical import Reading
from compaction.types import Budget, Policy

PER_MESSAGE = 4
"""Tokens that a message costs beside its text (R5.3)."""
IMAGE_TOKENS = 765
BYTES_PER_TOKEN = 16
"""Bytes of audio, video or a file for one token."""
MEDIA_SHARE = 4
"""One such part is never estimated above a quarter of the window."""
DEFAULT_RESERVE = 16_384
SAMPLES = 8
LOWEST_RATIO, HIGHEST_RATIO = 0.5, 3.0
TRUSTED_ESTIMATE = 4096
"""Below, an answer cannot be told to have lost its input (R5.6)."""
REFUSED_SHARE = 0.95
"""Where a refusal states no limit, this share of what was refused is taken for it (R10.4)."""
LEARNED_SECONDS = 24 * 3600.0


def message_tokens(
    reading: Reading,
    counted: int,
    window: int | None = None,
    *,
    image_tokens: int = IMAGE_TOKENS,
    bytes_per_token: int = BYTES_PER_TOKEN,
) -> int:
    """Estimated tokens of a message whose texts were counted as `counted` (R5.3)."""
    media = media_tokens(reading.media, window, image_tokens=image_tokens, bytes_per_token=bytes_per_token)
    return counted + PER_MESSAGE + media


def media_tokens(
    media: Iterable[tuple[str, int]],
    window: int | None = None,
    *,
    image_tokens: int = IMAGE_TOKENS,
    bytes_per_token: int = BYTES_PER_TOKEN,
) -> int:
    """Estimated tokens of parts that are not text, given as (kind, bytes) (R5.3)."""
    total = 0
    for kind, size in media:
        tokens = image_tokens if kind == "image" else ceil(size / bytes_per_token)
        total += tokens if kind == "image" or window is None else min(tokens, window // MEDIA_SHARE)
    return total


def budget(window: int | None, output_limit: int | None, max_input_tokens: int | None, policy: Policy) -> Budget:
    """What a window leaves for the input (R5.2).

    An output limit that is no positive number asks for no limit. With an unknown window, `max_input_tokens` alone is
    the high water, and without either nothing is compacted on a guess (R5.1).
    """
    reserve = 0
    high = None
    if window is not None:
        asked = output_limit if output_limit is not None and output_limit > 0 else min(window // 4, DEFAULT_RESERVE)
        reserve = min(asked, window // 2)
        high = window - reserve
    if max_input_tokens is not None:
        high = max_input_tokens if high is None else min(high, max_input_tokens)
    if high is None:
        return Budget(window=None, reserve=0, high=None, soft=None, low=None)
    high = max(high, 1)
    return Budget(window, reserve, high, soft=int(policy.soft * high), low=int(policy.target * high))


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far a route's own token counts lie from the estimates: its last ratios, oldest first (R5.4)."""

    ratios: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """The largest of the last ratios, since too high an estimate costs less than too low a one; 1 if there is none."""
        return max(self.ratios, default=1.0)

    def with_sample(self, estimate: int, reported: int) -> "Calibration":
        """After an answer, with its prompt tokens and the uncalibrated estimate of the same upstream request.

        Figures that are not positive teach nothing.
        """
        if estimate <= 0 or reported <= 0:
            return self
        ratio = min(max(reported / estimate, LOWEST_RATIO), HIGHEST_RATIO)
        return Calibration((*self.ratios, ratio)[-SAMPLES:])


def calibrated(estimate: int, calibration: Calibration) -> int:
    """The estimate of a whole request as this route would count it (R5.4)."""
    return ceil(calibration.ratio * estimate)


def continued(reported: int, added: int, calibration: Calibration) -> int:
    """The estimate of a request that adds to one whose prompt tokens were reported; `added` is uncalibrated (R5.4).

    Only where preamble, tools, checkpoint and shortenings are the same.
    """
    return reported + calibrated(added, calibration)


def looks_truncated(estimate: int, reported: int) -> bool:
    """Whether an answer did not see its whole input, by the calibrated estimate (R5.6).

    `reported` prompt tokens include cached ones. A provider that reports none, or 0, is not suspected.
    """
    return estimate > TRUSTED_ESTIMATE and 0 < 2 * reported < estimate


@dataclass(frozen=True, slots=True)
class AcceptedInput:
    """The largest input that a route has taken lately: prompt tokens as reported, and when."""

    tokens: int
    at: float

    def exceeds(self, tokens: int, now: float) -> bool:
        """Whether more than `tokens` were taken, in the last 24 hours."""
        return self.tokens > tokens and now - self.at < LEARNED_SECONDS


@dataclass(frozen=True, slots=True)
class LearnedLimit:
    """A window that a route's refusals have shown (R10.4)."""

    limit: int
    learned_at: float
    expires_at: float

    def in_force(self, now: float) -> bool:
        """Whether it still holds. Once it does not, the next request above it is the probe (R10.4)."""
        return now < self.expires_at


def accepted(known: AcceptedInput | None, tokens: int, now: float) -> AcceptedInput:
    """After an ordinary answer: the largest accepted input of the last 24 hours."""
    return known if known is not None and known.exceeds(tokens, now) else AcceptedInput(tokens, now)


def learn(
    known: LearnedLimit | None,
    *,
    stated: int | None,
    estimate: int,
    accepted_input: AcceptedInput | None,
    now: float,
    seconds: float = LEARNED_SECONDS,
) -> LearnedLimit | None:
    """After an input overflow: the limit that is then known (R10.4).

    `stated` is the limit in the error, and `estimate` the calibrated estimate of what was refused. The provider's word
    replaces what was learned before, unless the route took more than that within 24 hours; a share of the estimate,
    where nothing is stated, only lowers it. A silent truncation is learned with its reported tokens as `stated` (R5.6).
    """
    if stated is not None and stated > 0:
        if accepted_input is not None and accepted_input.exceeds(stated, now):
            return known
        limit = stated
    else:
        limit = max(int(estimate * REFUSED_SHARE), 1)
        if known is not None and known.in_force(now):
            limit = min(limit, known.limit)
    return LearnedLimit(limit, now, now + seconds)


def effective_window(window: int | None, learned: LearnedLimit | None, now: float) -> int | None:
    """The window to plan with: the learned limit where it is lower, or where nothing else is known (R5.1)."""
    if learned is None or not learned.in_force(now):
        return window
    return learned.limit if window is None else min(window, learned.limit)
