"""Which conversation a request belongs to: a pure decision over what the store knows of its path (R3.5-R3.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from compaction.canonical import is_truncation_of
from store.rows import ReplyKey


class Lineage(StrEnum):
    """How a request relates to what was known before it."""

    NEW = "new"
    CONTINUED = "continued"
    RETRIED = "retried"
    REWOUND = "rewound"
    FORKED = "forked"
    TWIN = "twin"
    """An equal beginning that is another conversation."""


@dataclass(frozen=True, slots=True)
class Tip:
    """The end of a branch: where its next request is expected to go on."""

    branch: int
    session: int
    session_name: str
    head_seq: int
    in_flight: bool
    delivered: bool
    """The newest request has ended with a whole answer."""
    replies: tuple[ReplyKey, ...] = ()
    """What answers to the head, as far as they were delivered, are recognised by. Empty: nothing was delivered."""

    @property
    def free(self) -> bool:
        """No request is in flight."""
        return not self.in_flight


@dataclass(frozen=True, slots=True)
class Echo:
    """An assistant message of the request, where it may be a reply that the client sends back."""

    canon: bytes
    loose: bytes
    text: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where on a path something is: a branch, or a session, and a position."""

    session_name: str | None
    """None: that session was deleted."""
    branch: int | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the decision depends on. Tips are ordered newest first."""

    length: int
    """Messages on the request's path."""
    known: int
    """The deepest seq whose digest is known to the tenant."""
    retry_count: int = 0
    explicit: bool = False
    """The client named a session."""
    named: int | None = None
    """The key of that session, if it exists."""
    tips: tuple[Tip, ...] = ()
    """Branches that end at `known`."""
    echo: Echo | None = None
    """The message after `known`, if it may be an echo: an assistant's, and not the last of the path (R3.8)."""
    waiting: tuple[Tip, ...] = ()
    """Branches that end just before the last echo at or before `known`: they may have got the same answer as the
    branch that went on first."""
    waiting_echo: Echo | None = None
    holder: Place | None = None
    """The newest branch of the named session that passes through `known`."""
    origin: Place | None = None
    """The session that sent the node at `known` first."""


@dataclass(frozen=True, slots=True)
class Note:
    """An entry that the decision adds to the log."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes. No session: a new one. No branch: a new one in that session."""

    lineage: Lineage
    session: int | None
    branch: int | None
    shared: int
    """Messages up to this seq are not new to the branch: it has them, or shares them with what it came from."""
    notes: tuple[Note, ...] = ()


def decide(situation: Situation) -> Decision:
    """Where a request goes (R3.6, R3.8)."""
    if situation.known == 0:
        return Decision(Lineage.NEW, situation.named, None, 0)
    tips = _eligible(situation, situation.tips)
    if not tips:
        return _waiting(situation) or _inside(situation)
    equal = situation.known == situation.length
    found = _equal(situation, tips) if equal else _grown(situation, tips)
    if found is None or found.lineage is Lineage.REWOUND:
        # What looks like a dropped reply may be the echo of an equal one, after a prefill of the same text (R3.8).
        found = _waiting(situation) or found
    return found or _twin(situation, tips[0])


def is_settled(decision: Decision) -> bool:
    """Whether `waiting`, `holder` and `origin` could not change a decision made without them."""
    return decision.lineage not in {Lineage.TWIN, Lineage.FORKED, Lineage.REWOUND}


def recognise(tips: Sequence[Tip], echo: Echo) -> Tip | None:
    """The tip whose reply the echo equals: strictly, else loosely, else cut short; of several the newest (R3.7)."""
    for rule in (_equals, _equals_loosely, _is_cut):
        for tip in tips:
            if any(rule(key, echo) for key in tip.replies):
                return tip
    return None


def _equals(key: ReplyKey, echo: Echo) -> bool:
    return key.canon == echo.canon


def _equals_loosely(key: ReplyKey, echo: Echo) -> bool:
    return bool(echo.loose) and key.loose == echo.loose


def _is_cut(key: ReplyKey, echo: Echo) -> bool:
    return bool(key.text) and is_truncation_of(echo.text, key.text)


def _eligible(situation: Situation, tips: Iterable[Tip]) -> tuple[Tip, ...]:
    """With an explicit id only that session's tips, else all."""
    return tuple(tip for tip in tips if not situation.explicit or tip.session == situation.named)


def _first(tips: Iterable[Tip], wanted: Callable[[Tip], bool]) -> Tip | None:
    return next(filter(wanted, tips), None)


def _equal(situation: Situation, tips: Sequence[Tip]) -> Decision | None:
    """An equal request: a retry adds nothing to its branch, anything else is another conversation (R3.8)."""
    again = _first(tips, lambda tip: tip.free and not tip.delivered)
    if again is None and situation.retry_count > 0:
        again = _first(tips, lambda tip: tip.in_flight) or tips[0]
    return Decision(Lineage.RETRIED, again.session, again.branch, situation.known) if again else None


def _grown(situation: Situation, tips: Sequence[Tip]) -> Decision | None:
    """A tip, and messages that are new."""
    if situation.echo is not None:
        tip = recognise(tips, situation.echo) or _first(tips, lambda tip: tip.free)
        return _continued(tip) if tip else None
    unanswered = _first(tips, lambda tip: tip.free and not tip.replies)
    if unanswered is not None:
        return _continued(unanswered)
    answered = _first(tips, lambda tip: tip.free)
    return _rewound(situation, answered.session, answered.branch) if answered else None


def _continued(tip: Tip) -> Decision:
    return Decision(Lineage.CONTINUED, tip.session, tip.branch, tip.head_seq)


def _rewound(situation: Situation, session: int | None, branch: int | None) -> Decision:
    note = Note("history_rewound", {"to_seq": situation.known, "from_branch": branch})
    return Decision(Lineage.REWOUND, session, None, situation.known, (note,))


def _waiting(situation: Situation) -> Decision | None:
    """A branch that got the same answer as the one that went on first, and now goes on itself."""
    if situation.waiting_echo is None:
        return None
    tips = [tip for tip in _eligible(situation, situation.waiting) if tip.free]
    tip = recognise(tips, situation.waiting_echo)
    return _continued(tip) if tip else None


def _twin(situation: Situation, tip: Tip) -> Decision:
    if situation.explicit:
        return Decision(Lineage.TWIN, situation.named, None, situation.known)
    return Decision(Lineage.TWIN, None, None, situation.known, (_forked_from(situation, Place(tip.session_name)),))


def _inside(situation: Situation) -> Decision:
    """What is known ends inside a branch, or at the tip of a session that is not the named one."""
    if situation.holder is not None:
        return _rewound(situation, situation.named, situation.holder.branch)
    note = _forked_from(situation, _source(situation))
    return Decision(Lineage.FORKED, situation.named, None, situation.known, (note,))


def _source(situation: Situation) -> Place:
    """The conversation that a fork left: the tip that it answers to, else any tip, else who sent the node first."""
    recognised = recognise(situation.tips, situation.echo) if situation.echo else None
    tip = recognised or next(iter(situation.tips), None)
    return Place(tip.session_name) if tip else situation.origin or Place(None)


def _forked_from(situation: Situation, source: Place) -> Note:
    return Note("forked_from", {"session": source.session_name, "seq": situation.known})
