"""Fingerprints, back-off and the pauses of budget compaction (SPEC 13)."""

from dataclasses import fields, replace

import pytest

from compaction.failures import Backoff, Fingerprint, Streak, Volatility, fingerprint, remember
from tests.compaction.paths import PROMPT, ROUTE, checkpoint_at, history, plan_for, user

PATH = history(*[user(str(n)) for n in range(6)]).path
FIRST = Fingerprint("p1", "up/model", None, "ab" * 32, 4, 0)
OTHER = {
    "prompt_version": "p2",
    "route": "up/other",
    "previous_checkpoint_id": "id",
    "source_digest": "cd" * 32,
    "through_seq": 5,
    "head_anchor_seq": 3,
    "min_gain": 1,
}


def failure(number: int) -> Fingerprint:
    return replace(FIRST, through_seq=number)


@pytest.mark.parametrize("name", [field.name for field in fields(Fingerprint)])
def test_every_field_of_a_fingerprint_counts(name):  # R13.2
    assert replace(FIRST, **{name: OTHER[name]}).hash != FIRST.hash


def test_fields_cannot_run_into_each_other():  # R13.2
    """Two fingerprints whose fields joined give the same text are different ones."""
    assert replace(FIRST, prompt_version="p1u", route="p").hash != replace(FIRST, prompt_version="p1", route="up").hash
    assert replace(FIRST, previous_checkpoint_id="").hash != FIRST.hash


def test_equal_attempts_have_equal_fingerprints():  # R13.2
    made = [fingerprint(plan_for(PATH, 4), prompt_version=PROMPT, route=ROUTE).hash for _ in range(2)]
    assert made[0] == made[1]


def test_a_plan_on_another_checkpoint_is_another_attempt():  # R13.2
    plan = plan_for(PATH, 5, previous=checkpoint_at(PATH, 4))
    taken = fingerprint(plan, prompt_version=PROMPT, route=ROUTE)
    assert taken.previous_checkpoint_id == plan.previous.checkpoint_id
    assert taken.hash != fingerprint(replace(plan, previous=None), prompt_version=PROMPT, route=ROUTE).hash


def test_at_most_sixteen_are_remembered_and_the_oldest_goes_first():  # R13.2
    known = ()
    for number in range(20):
        known = remember(known, failure(number))
    assert known == tuple(failure(number).hash for number in range(4, 20))


def test_a_failure_that_repeats_is_remembered_once_and_as_newest():  # R13.2
    known = remember(remember(remember((), failure(1)), failure(2)), failure(1))
    assert known == (failure(2).hash, failure(1).hash)


def test_back_off_doubles_from_ten_seconds_to_ten_minutes():  # R13.3
    backoff, delays = Backoff(), []
    for _ in range(9):
        backoff = backoff.failed(now=1000.0)
        delays.append(backoff.until - 1000.0)
    assert delays == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_back_off_survives_any_number_of_failures():  # R13.3
    assert Backoff(failures=100_000).failed(0.0).until == 600.0


def test_a_route_is_left_alone_until_the_delay_is_over():  # R13.3
    backoff = Backoff().failed(now=100.0)
    assert backoff.waits(109.9)
    assert not backoff.waits(110.0)
    assert not Backoff().waits(0.0)


def test_back_off_heeds_the_provider_within_ten_minutes():  # R13.3
    assert Backoff().failed(0.0, retry_after=30.0).until == 30.0
    assert Backoff().failed(0.0, retry_after=5.0).until == 10.0
    assert Backoff().failed(0.0, retry_after=86_400.0).until == 600.0


def test_two_failures_in_a_row_make_budget_compaction_wait():  # R13.5
    once = Streak().failed(tokens=1000, turn=3)
    twice = once.failed(tokens=1100, turn=3)
    assert not once.waits(1100, 3, min_gain=200)
    assert twice.waits(1100, 3, min_gain=200)


def test_the_wait_ends_when_the_history_grew_or_a_turn_began():  # R13.5
    streak = Streak().failed(1000, 3).failed(1100, 3)
    assert streak.waits(1299, 3, min_gain=200)
    assert not streak.waits(1300, 3, min_gain=200)
    assert not streak.waits(1100, 9, min_gain=200)


def requests(state: Volatility, *, applied: bool, count: int) -> list[bool]:
    pauses = []
    for _ in range(count):
        state = state.requested(applied=applied)
        pauses.append(state.pauses)
    return pauses


def test_two_checkpoints_of_no_use_pause_budget_compaction_for_ten_requests():  # R13.5
    once = Volatility().committed().requested(applied=False)
    assert not once.pauses
    assert requests(once.committed(), applied=False, count=12) == [True] * 10 + [False] * 2


def test_a_checkpoint_that_applied_makes_a_session_steady_again():  # R13.5
    state = Volatility().committed().requested(applied=False).requested(applied=True)
    assert not state.committed().requested(applied=False).pauses


def test_requests_without_a_new_checkpoint_do_not_make_a_session_volatile():  # R13.5
    state = Volatility().committed()
    assert requests(state, applied=False, count=5) == [False] * 5


def test_a_checkpoint_that_applies_ends_the_pause():  # R13.5
    paused = Volatility().committed().requested(applied=False).committed().requested(applied=False)
    assert paused.pauses
    assert not paused.requested(applied=True).pauses
