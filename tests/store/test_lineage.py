"""The decision itself, as a table; that the store asks it the right questions is in `test_identity_cases`."""

from typing import Any

import pytest

from store.lineage import Decision, Echo, Lineage, Place, Situation, Tip, decide
from store.rows import ReplyKey
from store.sqlite.tree import deepest

SAID = Echo(b"canon", b"loose", "hello")
KEY = ReplyKey(b"canon", b"loose", "")


def tip(branch: int, *, flying: bool = False, delivered: bool = True, session: int = 1, keys: Any = (KEY,)) -> Tip:
    return Tip(branch, session, f"s{session}", 3, flying, delivered, tuple(keys))


def outcome(decision: Decision) -> tuple[Lineage, int | None, int | None]:
    return decision.lineage, decision.session, decision.branch


def situation(*tips: Tip, **more: Any) -> Situation:
    """Three messages are known; by default the path has two more, the first of them an echo."""
    return Situation(**{"length": 5, "known": 3, "tips": tips, "echo": SAID} | more)


EQUAL = {"length": 3, "echo": None}
NO_ECHO = {"echo": None}
NAMED = {"explicit": True, "named": 1}
UNKNOWN_NAME = {"explicit": True, "named": None}
LOOSE = ReplyKey(b"other", b"loose", "")
CUT = ReplyKey(b"x", b"y", "hello world")
OTHER = ReplyKey(b"x", b"y", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (situation(known=0, tips=()), ("new", None, None)),
        (situation(known=0, tips=(), **NAMED), ("new", 1, None)),
        # equal requests (R3.8)
        (situation(tip(7), **EQUAL), ("twin", None, None)),
        (situation(tip(7), **EQUAL, **NAMED), ("twin", 1, None)),
        (situation(tip(7), **EQUAL, retry_count=1), ("retried", 1, 7)),
        (situation(tip(7, flying=True), **EQUAL), ("twin", None, None)),
        (situation(tip(7, flying=True), **EQUAL, retry_count=2), ("retried", 1, 7)),
        (situation(tip(9, flying=True), tip(7, delivered=False), **EQUAL), ("retried", 1, 7)),
        (situation(tip(9), tip(7, flying=True), **EQUAL, retry_count=1), ("retried", 1, 7)),
        # echoes (R3.7)
        (situation(tip(9, keys=[OTHER]), tip(7)), ("continued", 1, 7)),
        (situation(tip(9, keys=[LOOSE]), tip(7)), ("continued", 1, 7)),
        (situation(tip(9, keys=[CUT]), tip(7, keys=[LOOSE])), ("continued", 1, 7)),
        (situation(tip(9, keys=[OTHER]), tip(7, keys=[CUT])), ("continued", 1, 7)),
        (situation(tip(9), tip(7)), ("continued", 1, 9)),
        (situation(tip(9, flying=True, keys=()), tip(7, keys=[OTHER])), ("continued", 1, 7)),
        (situation(tip(9, flying=True, keys=())), ("twin", None, None)),
        # a reply that was dropped
        (situation(tip(9), tip(7, keys=()), **NO_ECHO), ("continued", 1, 7)),
        (situation(tip(9), **NO_ECHO), ("rewound", 1, None)),
        (situation(tip(9, flying=True), **NO_ECHO), ("twin", None, None)),
        # explicit ids prefer their own
        (situation(tip(9, session=2), tip(7, keys=[OTHER]), **NAMED), ("continued", 1, 7)),
        (situation(tip(9, session=2), **NAMED), ("forked", 1, None)),
        (situation(tip(9, session=2), **UNKNOWN_NAME), ("forked", None, None)),
        (situation(tip(9, session=2), **NAMED, holder=Place(None, 4)), ("rewound", 1, None)),
        # inside a branch
        (situation(origin=Place("s5")), ("forked", None, None)),
        (situation(**NAMED, holder=Place(None, 4)), ("rewound", 1, None)),
        # the same answer twice
        (situation(waiting=(tip(4),), waiting_echo=SAID), ("continued", 1, 4)),
        (situation(waiting=(tip(4, flying=True),), waiting_echo=SAID), ("forked", None, None)),
        (situation(waiting=(tip(4, keys=[OTHER]),), waiting_echo=SAID), ("forked", None, None)),
        (situation(tip(7), **EQUAL, waiting=(tip(4),), waiting_echo=SAID), ("continued", 1, 4)),
        (situation(waiting=(tip(4, session=2),), waiting_echo=SAID, **NAMED), ("forked", 1, None)),
    ],
)
def test_decision(given: Situation, expected: tuple[str, int | None, int | None]):
    """R3.6, R3.8"""
    assert outcome(decide(given)) == expected


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (situation(tip(7), **EQUAL), ("forked_from", {"session": "s1", "seq": 3})),
        (situation(origin=Place("s5")), ("forked_from", {"session": "s5", "seq": 3})),
        (situation(), ("forked_from", {"session": None, "seq": 3})),
        (
            situation(tip(9, session=2, keys=[OTHER]), tip(8, session=3), **NAMED),
            ("forked_from", {"session": "s3", "seq": 3}),
        ),
        (situation(tip(9), **NO_ECHO), ("history_rewound", {"to_seq": 3, "from_branch": 9})),
        (situation(**NAMED, holder=Place(None, 4)), ("history_rewound", {"to_seq": 3, "from_branch": 4})),
    ],
)
def test_what_a_decision_writes_down(given: Situation, note: tuple[str, dict[str, Any]]):
    """R4.1"""
    assert [(found.kind, found.data) for found in decide(given).notes] == [note]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 30, 1000])
def test_deepest_known_is_found_with_few_looks(length: int):
    """R4.2: never a walk from the root; what is new costs, not what is there."""
    for known in {0, 1, length // 3, length - 9, length - 3, length - 2, length - 1, length} & set(range(length + 1)):
        looks: list[int] = []

        def is_known(seq: int, known: int = known, looks: list[int] = looks) -> bool:
            looks.append(seq)
            return seq <= known

        assert deepest(0, length, is_known) == known
        new = length - known
        assert len(looks) <= (new + 1 if new <= 3 else 25)
