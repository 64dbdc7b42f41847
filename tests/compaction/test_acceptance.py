"""May a candidate be committed? (R9.2)."""

from dataclasses import replace

import pytest

from compaction.acceptance import OVERTAKEN, refusal
from compaction.types import Level, Phase, Policy, Trigger
from tests.compaction.paths import (
    PROMPT,
    ROUTE,
    UNKNOWN,
    assistant,
    budget,
    checkpoint_at,
    checkpoint_of,
    cut,
    forged,
    history,
    plan_for,
    user,
)

PATH = history(user("1"), assistant("2"), user("3"), assistant("4"), user("5")).path
PLAN = plan_for(PATH, 4)  # replaces 1,000 tokens
BUDGET = budget(2000)  # min_gain: 200


def answer(plan=PLAN, candidate=None, path=PATH, current_id=None, after=300, limits=BUDGET, route=ROUTE):
    candidate = candidate or checkpoint_of(plan)
    return refusal(
        plan, candidate, path, current_id, Policy(), limits, after, route=route, prompt_version=PROMPT
    )  # fmt: skip


def test_a_candidate_that_is_smaller_is_accepted():  # R9.2
    assert answer() is None


def test_it_must_be_smaller_by_min_gain():  # R9.2
    assert answer(after=800) is None
    assert answer(after=801) == "no gain: 1000 tokens before, 801 after"


@pytest.mark.parametrize("trigger", [Trigger.PROVIDER, Trigger.MANUAL])
def test_any_gain_is_enough_where_relief_was_asked_for(trigger):  # R9.2
    plan = replace(PLAN, trigger=trigger)
    assert answer(plan, after=999) is None
    assert answer(plan, after=1000) == "no gain: 1000 tokens before, 1000 after"


def test_without_a_known_window_any_gain_is_enough():  # R9.2
    assert answer(after=999, limits=UNKNOWN) is None


def test_a_candidate_is_dropped_when_another_was_first():  # R9.2
    assert answer(current_id="winner") == OVERTAKEN
    plan = plan_for(PATH, 4, previous=checkpoint_at(PATH, 2))
    assert answer(plan, current_id=None) == OVERTAKEN
    assert answer(plan, current_id=plan.previous.checkpoint_id) is None


@pytest.mark.parametrize("change", [{"phase": "mid_turn"}, {"level": "segmented"}, {"head_anchor_seq": 1}])
def test_a_candidate_is_what_was_planned(change):  # R9.2
    assert answer(candidate=forged(checkpoint_of(PLAN), **change)) == "not what was planned"


def test_a_candidate_of_another_range_is_refused():  # R9.2
    assert answer(candidate=checkpoint_at(PATH, 2)) == "not what was planned"
    previous = checkpoint_at(PATH, 2)
    other = checkpoint_of(plan_for(PATH, 4, previous=previous, level=Level.SESSION))
    assert answer(PLAN, other, current_id=previous.checkpoint_id) == "not what was planned"


def test_the_covered_range_still_has_its_digest():  # R9.2
    changed = history(user("1"), assistant("edited"), user("3"), assistant("4"), user("5")).path
    assert answer(path=changed) == "made from other messages"


def test_fields_must_be_legal():  # R9.2
    assert answer(candidate=forged(checkpoint_of(PLAN), session_id="")) == "required field is empty: session_id"


def test_native_state_is_checked_but_not_measured():  # R9.2
    native = checkpoint_of(PLAN, provider_route=ROUTE, provider_state='{"blob":1}')
    assert answer(candidate=native, after=5000) is None
    assert answer(candidate=forged(native, provider_state="{")) == "native state is not JSON"


def test_an_idle_session_may_be_covered_whole():  # R6.6
    path = cut(PATH, 4)
    assert answer(plan_for(path, 4), path=path) == "covers the current user message"
    assert answer(plan_for(path, 4, phase=Phase.STANDALONE), path=path) is None
