"""How a history divides into turns and steps, and where a covered prefix may end (SPEC 1, R6.3).

Everything here is linear in the number of messages, and knows of a message only its role and what it calls or answers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from compaction.types import Message, Path

Span = tuple[int, int]
"""First and last seq, both included."""


class Step(NamedTuple):
    """One atomic group, or one message without calls: what no cut may divide (SPEC 1).

    A named tuple, since a long history is divided on every request, and a frozen dataclass takes five times as long.
    """

    first: int
    last: int
    role: str
    """Of the first message. A step that begins with a tool message is an orphan result."""
    has_calls: bool
    """It is an assistant message with tool calls, and the results that directly follow it."""
    complete: bool
    """Every call has its result; false of an orphan result too. A message without calls is complete."""
    closed: bool
    """It can be covered: complete, an orphan result, or a group that was abandoned, as a later user or assistant
    message shows (R6.3). Only an incomplete group that nothing of the kind follows is open."""


def steps(path: Path) -> tuple[Step, ...]:
    """The history as steps, in order and without gaps.

    A result belongs to the group that it directly follows, with only results between; a result that no call of that
    group waits for, or a second one for the same call, is an orphan. An orphan between two results of a group is
    inside it, as no cut may come there.
    """
    return tuple(_steps(path, 1))


def last_user_run(path: Path) -> Span | None:
    """The last run of consecutive `user` messages; None if there is none."""
    messages, last = path.messages, len(path)
    while last and messages[last - 1].role != "user":
        last -= 1
    first = last
    while first > 1 and messages[first - 2].role == "user":
        first -= 1
    return (first, last) if last else None


def prefill(path: Path) -> int:
    """The seq of a trailing assistant message without calls, which the model is to go on with (R3.8); 0 if none."""
    last = path.messages[-1] if path.messages else None
    return len(path) if last is not None and last.role == "assistant" and not last.calls else 0


def current_user_run(path: Path) -> Span | None:
    """The current user message: its first message, and the last that is protected with it (SPEC 1, R7.3).

    That is the last run of `user` messages, the system messages directly behind it, and a prefill behind these. None if
    there is no user message.
    """
    run = last_user_run(path)
    if run is None:
        return None
    first, last = run
    while last < len(path) and path.messages[last].role == "system":
        last += 1
    return first, last + 1 if prefill(path) == last + 1 else last


def turns(path: Path) -> tuple[Span, ...]:
    """The history as turns, in order and without gaps.

    Consecutive user messages open one turn, as they are one current user message; what precedes the first of all is a
    turn of its own.
    """
    starts = [
        seq
        for seq, message in enumerate(path.messages, 1)
        if message.role == "user" and (seq == 1 or path.messages[seq - 2].role != "user")
    ]
    if len(path) and (not starts or starts[0] > 1):
        starts.insert(0, 1)
    ends = [start - 1 for start in starts[1:]]
    return tuple(zip(starts, [*ends, len(path)], strict=False)) if starts else ()


def turn_steps(path: Path) -> tuple[Span, ...]:
    """The complete steps of the assistant behind the current user message, in order; a prefill is none (R6.4, R6.5).

    Without any user message the whole history is one turn.
    """
    run = last_user_run(path)
    after, unfinished = run[1] if run else 0, prefill(path)
    return tuple(
        (step.first, step.last)
        for step in _steps(path, after + 1)
        if step.role == "assistant" and step.complete and step.first != unfinished
    )


def opens_turn(path: Path) -> bool:
    """Whether a request with this history opens a turn: no complete step follows its current user message (R6.4)."""
    return last_user_run(path) is not None and not turn_steps(path)


def legal_cuts(path: Path) -> tuple[int, ...]:
    """The seqs after which a covered prefix may end, ascending (R6.3). Not among them: 0, the empty prefix."""
    whole = steps(path)
    cuts = set(range(1, len(path) + 1))
    for rule in _RULES:
        cuts &= rule(path, whole)
    return tuple(sorted(cuts))


def _steps(path: Path, first: int) -> list[Step]:
    """The steps from `first` on, which must begin one."""
    found: list[Step] = []
    messages, last_speaker, seq = path.messages, _last_speaker(path), first
    while seq <= len(messages):
        message, last = messages[seq - 1], seq
        if message.role == "assistant" and message.calls:
            last, complete = _group(messages, seq)
            found.append(Step(seq, last, "assistant", True, complete, complete or seq < last_speaker))
        else:
            found.append(Step(seq, seq, message.role, False, message.role != "tool", True))
        seq = last + 1
    return found


def _group(messages: Sequence[Message], seq: int) -> tuple[int, bool]:
    """The last message of the group that the assistant message at `seq` opens, and whether all calls have results."""
    calls = messages[seq - 1].calls
    waiting: dict[str | None, int] = {}
    for call in calls:
        waiting[call.id] = waiting.get(call.id, 0) + 1
    missing, last, at = len(calls), seq, seq
    while missing and at < len(messages) and messages[at].role == "tool":
        answers = messages[at].answers
        at += 1
        if left := waiting.get(answers, 0):
            waiting[answers] = left - 1
            missing -= 1
            last = at
    return last, not missing


def _last_speaker(path: Path) -> int:
    """The seq of the last user or assistant message; 0 if there is none. A group before it has been left behind."""
    for seq in range(len(path), 0, -1):
        if path.messages[seq - 1].role in ("user", "assistant"):
            return seq
    return 0


# One rule of the providers each: the cuts that it allows.

_Rule = Callable[[Path, tuple[Step, ...]], set[int]]


def _between_steps(_path: Path, whole: tuple[Step, ...]) -> set[int]:
    """Calls and their results stay together."""
    return {step.last for step in whole}


def _before_open_group(path: Path, whole: tuple[Step, ...]) -> set[int]:
    """A group that still waits for results is not covered, nor what follows it."""
    waiting = next((step.first for step in whole if not step.closed), len(path) + 1)
    return set(range(1, waiting))


def _not_before_result(path: Path, _whole: tuple[Step, ...]) -> set[int]:
    """What is sent after a checkpoint never begins with a result: not even an orphan loses what it followed."""
    before_results = {seq for seq, message in enumerate(path.messages) if message.role == "tool"}
    return set(range(1, len(path) + 1)) - before_results


_RULES: tuple[_Rule, ...] = (_between_steps, _before_open_group, _not_before_result)
