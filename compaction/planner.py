"""When to compact, and where to cut (SPEC 6): the situation of one request in, one decision out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from compaction.checkpoint import MAX_SEGMENTS, TEXT
from compaction.groups import Span, current_user_run, legal_cuts, prefill, turn_steps, turns
from compaction.projection import put_back
from compaction.types import (
    Budget,
    Checkpoint,
    Compact,
    Decision,
    Level,
    Path,
    Phase,
    Plan,
    Policy,
    Send,
    Trigger,
    Verbatim,
)

FRAME_TOKENS = 80
"""About what the words around the segments of a checkpoint message cost."""
EXPECTED_SHARE = 4
"""A summary is expected to be a quarter of its source ..."""
EXPECTED_TOKENS = 1024
"""... and no longer than this. Only the acceptance of R9.2 measures; this decides what is worth trying."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a decision depends on. Tokens are estimates before calibration unless it says otherwise."""

    path: Path
    overhead: int
    """Preamble, tools and response format."""
    checkpoint: Checkpoint | None
    """The one in force: valid on this path (R7.3)."""
    budget: Budget
    policy: Policy
    trigger: Trigger
    ratio: float = 1.0
    """The route's calibration (R5.4)."""
    checkpoint_tokens: int = 0
    """The checkpoint message as it is projected."""
    estimate: int | None = None
    """Calibrated tokens of what would be sent now, where more is known than `ratio` times the own estimate (R5.4)."""
    summary_room: int | None = None
    """Tokens of originals that fit one request to the summariser (R7.5); None: not known."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A place where the covered prefix may end."""

    phase: Phase
    through: int
    anchor: int
    why: str


@dataclass(frozen=True, slots=True)
class _Option:
    """A cut with what it is expected to bring, in calibrated tokens."""

    cut: _Cut
    after: int
    objection: str | None


def plan(situation: Situation) -> Decision:
    """Decide what is done before a request is sent (R6.1-R6.8). A pure function: equal situations, equal decisions.

    With an unknown window the `budget` trigger never compacts (R5.1); `provider` then cuts as far as is legal.
    """
    tokens = situation.estimate if situation.estimate is not None else projected_now(situation)
    high = situation.budget.high
    over = high is not None and tokens > high
    if situation.trigger is Trigger.BUDGET and not over:
        return _as_is(situation, tokens, "fits" if high is not None else "window unknown", over=False)
    over = over or situation.trigger is Trigger.PROVIDER
    options = _options(situation)
    worthy = [option for option in options if option.objection is None]
    if not worthy:
        reasons = dict.fromkeys(f"{option.cut.phase}: {option.objection}" for option in options)
        return Send(situation.checkpoint, tokens, "; ".join(reasons) or "no legal cut", over=over)
    chosen = _choose(worthy, high)
    fallback = _as_is(situation, tokens, "compaction failed", over=over)
    return Compact(_plan(situation, chosen), fallback)


def projected_tokens(
    path: Path, overhead: int, ratio: float, checkpoint: Checkpoint | None = None, checkpoint_tokens: int = 0
) -> int:
    """Calibrated estimate of what is sent when `checkpoint` is in force: what R9.2 compares, before and after."""
    if checkpoint is None:
        return ceil(ratio * (overhead + path.tokens(1, len(path))))
    rest = _rest(path, checkpoint.through_seq, checkpoint.head_anchor_seq)
    return ceil(ratio * (overhead + checkpoint_tokens + rest))


def projected_now(situation: Situation) -> int:
    """Calibrated estimate of the effective projection: what would be sent if nothing were done (R9.2)."""
    return projected_tokens(
        situation.path,
        situation.overhead,
        situation.ratio,
        situation.checkpoint,
        situation.checkpoint_tokens,
    )


def min_gain(budget: Budget, policy: Policy, trigger: Trigger, before: int) -> int:
    """Tokens that a compaction must free: a share of high water, or anything where relief is asked for (R6.7).

    What is above the whole window (`before`) would be refused: then anything helps, whoever asks.
    """
    if budget.high is None or trigger is not Trigger.BUDGET:
        return 1
    if budget.window is not None and before > budget.window:
        return 1
    return max(1, ceil(policy.min_gain * budget.high))


def _as_is(situation: Situation, tokens: int, reason: str, *, over: bool) -> Send | Verbatim:
    if situation.checkpoint is None and not over:
        return Verbatim(tokens, reason)
    return Send(situation.checkpoint, tokens, reason, over=over)


def _choose(worthy: list[_Option], high: int | None) -> _Option:
    """The first that is expected to fit; if none is, the one that relieves most."""
    fits = (option for option in worthy if high is None or option.after <= high)
    return next(fits, min(worthy, key=lambda option: option.after))


def _options(situation: Situation) -> list[_Option]:
    """The possible cuts, best first."""
    run, cuts = current_user_run(situation.path), legal_cuts(situation.path)
    if situation.trigger is Trigger.MANUAL:
        return _weighed(situation, _standalone(situation.path, run, cuts))
    before_run = _weighed(situation, _pre_turn(situation, run, cuts))
    inside = _weighed(situation, _mid_turn(situation, run, cuts))
    low = situation.budget.low
    if not inside:
        return before_run
    enough = [option for option in before_run if low is not None and option.after <= low]
    return [*enough, *inside, *(option for option in before_run if option not in enough)]


def _standalone(path: Path, run: Span | None, cuts: Sequence[int]) -> list[_Cut]:
    """Everything that is complete; of a turn that is not yet answered the user message is the anchor (R6.6)."""
    if run is None or prefill(path):
        return _at(cuts, Phase.STANDALONE, len(path), 0, "everything is complete")
    if not turn_steps(path):
        return _at(cuts, Phase.STANDALONE, run[0] - 1, 0, "up to the unanswered user message")
    return _at(cuts, Phase.STANDALONE, len(path), run[0], "the complete steps of an open turn")


def _pre_turn(situation: Situation, run: Span | None, cuts: Sequence[int]) -> list[_Cut]:
    """Everything before the current user message, less the earlier turns that stay if they can (R6.4)."""
    if run is None:
        return []
    cut = _at(cuts, Phase.PRE_TURN, run[0] - 1, 0, "everything before the current user message")
    first_kept = _first_kept_turn(situation, run[0])
    if first_kept == run[0]:
        return cut
    return [*_at(cuts, Phase.PRE_TURN, first_kept - 1, 0, "everything before the turns to be kept"), *cut]


def _first_kept_turn(situation: Situation, run_first: int) -> int:
    path = situation.path
    earlier = [turn for turn in turns(path) if turn[1] < run_first]
    newest_first = reversed(earlier[len(earlier) - min(situation.policy.keep_recent_turns, len(earlier)) :])
    return min(_fitting(situation, newest_first), default=run_first)


def _mid_turn(situation: Situation, run: Span | None, cuts: Sequence[int]) -> list[_Cut]:
    """Inside a turn: all but the newest complete steps (R6.5).

    All but one step are the next best cut, for where the recent steps are still too much.
    Without any user message (a task in the preamble) the whole history is one turn, without an anchor.
    """
    done = turn_steps(situation.path)
    if len(done) < max(situation.policy.min_mid_turn_steps, 1):
        return []
    anchor, run_last = run or (0, 0)
    recent = _fitting(situation, reversed(done)) or [done[-1][0]]
    found = _at(cuts, Phase.MID_TURN, recent[-1] - 1, anchor, "all but the newest steps of the turn")
    if len(recent) > 1:
        found += _at(cuts, Phase.MID_TURN, done[-1][0] - 1, anchor, "all but the newest step of the turn")
    return [cut for cut in found if cut.through > run_last]


def _fitting(situation: Situation, spans: Iterable[Span]) -> list[int]:
    """First seqs of the leading spans that together fit `keep_recent_tokens` of high water; none if it is unknown."""
    high = situation.budget.high
    left = situation.policy.keep_recent_tokens * high if high is not None else 0.0
    firsts: list[int] = []
    for first, last in spans:
        left -= situation.ratio * situation.path.tokens(first, last)
        if left < 0:
            break
        firsts.append(first)
    return firsts


def _at(cuts: Sequence[int], phase: Phase, bound: int, anchor: int, why: str) -> list[_Cut]:
    """The last legal cut that is not behind `bound` (R6.3)."""
    index = bisect_right(cuts, bound)
    if index == 0:
        return []
    through = cuts[index - 1]
    return [_Cut(phase, through, anchor if anchor <= through else 0, why)]


def _weighed(situation: Situation, cuts: list[_Cut]) -> list[_Option]:
    """What each cut would bring, and what speaks against it (R6.7)."""
    before = projected_now(situation)
    options = []
    for cut in cuts:
        after = _expected(situation, cut)
        options.append(_Option(cut, after, _objection(situation, cut, before - after)))
    return options


def _objection(situation: Situation, cut: _Cut, gain: int) -> str | None:
    covered = situation.checkpoint.through_seq if situation.checkpoint else 0
    if cut.through <= covered:
        return "covers nothing new"
    window = situation.budget.window
    if window is not None and _floor(situation, cut) > window:
        return "hopeless: what must stay exceeds the window"
    needed = min_gain(situation.budget, situation.policy, situation.trigger, projected_now(situation))
    return f"would free {max(gain, 0)} tokens, {needed} are worth it" if gain < needed else None


def _expected(situation: Situation, cut: _Cut) -> int:
    """Calibrated tokens of the projection that a cut is expected to lead to."""
    previous = situation.checkpoint
    covered = previous.through_seq if previous else 0
    new = situation.path.tokens(covered + 1, cut.through)
    appended = _level(situation, cut.anchor) is Level.SEGMENTED
    message = _expected_message(situation.budget, situation.checkpoint_tokens, new, appended=appended)
    rest = _rest(situation.path, cut.through, cut.anchor)
    return ceil(situation.ratio * (situation.overhead + message + rest))


def _expected_message(budget: Budget, checkpoint_tokens: int, new: int, *, appended: bool) -> int:
    """Tokens of the next checkpoint message. What is summarised already is not expected to shrink by the same share."""
    most = EXPECTED_TOKENS if budget.window is None else min(EXPECTED_TOKENS, budget.window // 8)
    summary = new // EXPECTED_SHARE
    if appended:
        return checkpoint_tokens + min(summary, most)
    return FRAME_TOKENS + min(max(checkpoint_tokens - FRAME_TOKENS, 0) + summary, most)


def _floor(situation: Situation, cut: _Cut) -> int:
    """Calibrated tokens that no summary can save: large tool results count as shortened (R6.7)."""
    path, most = situation.path, situation.policy.result_tokens
    kept = (*(path.at(seq) for seq in put_back(path, cut.through, cut.anchor)), *path.messages[cut.through :])
    tokens = sum(min(message.tokens, most) if message.role == "tool" else message.tokens for message in kept)
    return ceil(situation.ratio * (situation.overhead + tokens))


def _rest(path: Path, through: int, anchor: int) -> int:
    """Tokens of what is sent verbatim beside the checkpoint message."""
    back = sum(path.at(seq).tokens for seq in put_back(path, through, anchor))
    return back + path.tokens(through + 1, len(path))


def _level(situation: Situation, anchor: int) -> Level:
    """Whether a segment can be appended (R7.4), or one summary replaces what there is (R7.5)."""
    previous = situation.checkpoint
    if previous is None or previous.projection_kind != TEXT or len(previous.segments) >= MAX_SEGMENTS:
        return Level.SESSION
    same_anchor = previous.head_anchor_seq == anchor
    return Level.SEGMENTED if same_anchor or situation.policy.append_on_anchor_change else Level.SESSION


def _from_seq(situation: Situation, cut: _Cut, level: Level) -> int:
    """The first message that the summariser reads: 1 if one summary is made from the originals (R7.5)."""
    previous, room = situation.checkpoint, situation.summary_room
    if previous is None or previous.projection_kind != TEXT:
        return 1
    from_originals = room is not None and situation.path.tokens(1, cut.through) <= room
    return 1 if level is Level.SESSION and from_originals else previous.through_seq + 1


def _plan(situation: Situation, option: _Option) -> Plan:
    cut, path = option.cut, situation.path
    level = _level(situation, cut.anchor)
    before = projected_now(situation)
    return Plan(
        trigger=situation.trigger,
        phase=cut.phase,
        from_seq=_from_seq(situation, cut, level),
        through_seq=cut.through,
        source_digest=path.digests[cut.through],
        head_anchor_seq=cut.anchor,
        level=level,
        previous=situation.checkpoint,
        tokens_raw=projected_tokens(path, situation.overhead, situation.ratio),
        tokens_before=before,
        reason=f"{cut.phase}, {level}: {cut.why}; {before} tokens, about {option.after} after",
    )
