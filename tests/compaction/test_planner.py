"""When to compact, and where to cut (SPEC 6)."""

from dataclasses import replace

import pytest

from compaction.planner import Situation, min_gain, plan, projected_now, projected_tokens
from compaction.types import Budget, Compact, Level, Phase, Policy, Send, Trigger, Verbatim
from tests.compaction.paths import (
    ROUTE,
    UNKNOWN,
    assistant,
    budget,
    calls,
    checkpoint_at,
    checkpoint_of,
    cut,
    history,
    plan_for,
    result,
    system,
    user,
)

CHAT = history(*[m for n in range(5) for m in (user(f"u{n}"), assistant(f"a{n}"))], user("now"), tokens=1000).path
"""Five turns of 2,000 tokens, and a sixth that begins: 11,000."""


def steps_of(count, tokens=1000, first=0):
    return [(m, tokens) for n in range(first, first + count) for m in (calls(f"c{n}"), result(f"c{n}"))]


def agent(count, earlier=(), asked=1000, tokens=1000):
    """A turn of `count` tool steps, each twice `tokens`, after `earlier` messages."""
    return history(*earlier, (user("task"), asked), *steps_of(count, tokens)).path


def situation(path=CHAT, *, high=10_000, trigger=Trigger.BUDGET, checkpoint=None, policy=Policy(), **more):  # noqa: B008  # frozen
    limits = more.pop("limits", None) or budget(high)
    tokens = 200 if checkpoint else 0
    given = {"overhead": 0, "checkpoint_tokens": tokens, **more}
    return Situation(path, checkpoint=checkpoint, budget=limits, policy=policy, trigger=trigger, **given)


def planned(*args, **options):
    decision = plan(situation(*args, **options))
    assert isinstance(decision, Compact), decision
    return decision.plan


def where(*args, **options):
    made = planned(*args, **options)
    return made.phase, made.through_seq, made.head_anchor_seq


def refused(*args, **options):
    decision = plan(situation(*args, **options))
    assert isinstance(decision, Send), decision
    return decision


def test_a_request_that_fits_is_sent_verbatim():  # R12.4
    assert plan(situation(high=11_000)) == Verbatim(11_000, "fits")


def test_over_means_strictly_greater():  # R5.2
    assert isinstance(plan(situation(high=11_000)), Verbatim)
    assert isinstance(plan(situation(high=10_999)), Compact)


def test_with_an_unknown_window_nothing_is_compacted_on_a_guess():  # R5.1
    assert plan(situation(limits=UNKNOWN)) == Verbatim(11_000, "window unknown")


def test_what_fits_under_a_checkpoint_is_sent_by_it():  # R6.2
    checkpoint = checkpoint_at(CHAT, 10)
    assert plan(situation(checkpoint=checkpoint)) == Send(checkpoint, 1200, "fits")


def test_preamble_tools_and_calibration_count():  # R5.3, R5.4
    assert projected_now(situation(overhead=500, ratio=1.5)) == 17_250
    checkpoint = checkpoint_at(CHAT, 8)
    assert projected_tokens(CHAT, 500, 1.5, checkpoint, 200) == 5550
    assert isinstance(plan(situation(high=16_000, ratio=1.4)), Verbatim)
    assert isinstance(plan(situation(high=16_000, ratio=1.5)), Compact)


def test_a_better_estimate_decides_when_to_compact():  # R5.4
    assert plan(situation(estimate=9000)) == Verbatim(9000, "fits")
    assert isinstance(plan(situation(high=12_000, estimate=12_001)), Compact)


def test_a_request_that_opens_a_turn_is_cut_before_it():  # R6.4
    assert where() == (Phase.PRE_TURN, 10, 0)


def test_the_plan_says_what_it_covers_and_replaces():  # R6.4
    made = planned(overhead=500)
    assert (made.from_seq, made.level, made.previous) == (1, Level.SESSION, None)
    assert made.source_digest == CHAT.digests[10]
    assert made.tokens_raw == made.tokens_before == 11_500
    assert made.reason.startswith("pre_turn, session: everything before the current user message; 11500 tokens")


def test_the_fallback_is_what_would_be_sent_now():  # R13.1
    assert plan(situation()).fallback == Send(None, 11_000, "compaction failed", over=True)
    checkpoint = checkpoint_at(CHAT, 2)
    assert plan(situation(high=8000, checkpoint=checkpoint)).fallback.checkpoint == checkpoint
    assert plan(situation(high=20_000, trigger=Trigger.MANUAL)).fallback == Verbatim(11_000, "compaction failed")


def test_a_run_of_user_messages_is_the_current_one():  # R6.4
    path = history(user("1"), assistant("2"), user("3"), user("4"), tokens=3000).path
    assert where(path) == (Phase.PRE_TURN, 2, 0)


def test_a_system_message_and_a_prefill_are_protected_with_the_current_user_message():  # SPEC 1
    path = history(user("1"), assistant("2"), user("3"), system("4"), assistant("5"), tokens=3000).path
    assert where(path) == (Phase.PRE_TURN, 2, 0)


def test_earlier_turns_are_kept_as_far_as_they_fit():  # R6.4
    policy = Policy(keep_recent_turns=2, keep_recent_tokens=0.4)
    assert where(policy=policy) == (Phase.PRE_TURN, 6, 0)
    assert where(policy=replace(policy, keep_recent_turns=1)) == (Phase.PRE_TURN, 8, 0)
    assert where(policy=replace(policy, keep_recent_tokens=0.39)) == (Phase.PRE_TURN, 8, 0)
    assert where(policy=replace(policy, keep_recent_tokens=0.1)) == (Phase.PRE_TURN, 10, 0)


def test_calibrated_tokens_count_against_what_is_kept():  # R6.4, R5.4
    policy = Policy(keep_recent_turns=2, keep_recent_tokens=0.4)
    assert where(policy=policy, ratio=1.5) == (Phase.PRE_TURN, 8, 0)


def test_earlier_turns_are_not_kept_where_nothing_would_fit():  # R6.4
    policy = Policy(keep_recent_turns=2, keep_recent_tokens=0.4)
    path = history(*[(user(), 1000), (assistant(), 1000)] * 5, (user("long"), 6500)).path
    assert where(path, policy=policy) == (Phase.PRE_TURN, 10, 0)


def test_kept_turns_are_covered_when_nothing_else_is_left():  # R6.4, R6.7
    policy = Policy(keep_recent_turns=2, keep_recent_tokens=0.4)
    path = history(*[(user(), 1000), (assistant(), 1000)] * 5, (user("long"), 7000)).path
    assert where(path, policy=policy, checkpoint=checkpoint_at(path, 6)) == (Phase.PRE_TURN, 10, 0)


def test_more_turns_may_be_wished_for_than_there_are():  # R6.4
    policy = Policy(keep_recent_turns=50, keep_recent_tokens=0.9)
    assert where(policy=policy) == (Phase.PRE_TURN, 2, 0)


def test_inside_a_turn_the_newest_steps_that_fit_are_kept_and_the_task_is_the_anchor():  # R6.5
    assert where(agent(5)) == (Phase.MID_TURN, 9, 1)  # 20 % of 10,000: one step of 2,000
    assert where(agent(5), policy=Policy(keep_recent_tokens=0.4)) == (Phase.MID_TURN, 7, 1)


def test_the_newest_step_is_kept_however_large():  # R6.5
    path = history(user("task"), *steps_of(3), calls("big"), (result("big"), 9000)).path
    assert where(path, high=12_000) == (Phase.MID_TURN, 7, 1)


def test_all_of_the_newest_parallel_group_is_kept():  # R6.5
    path = history(user("task"), *steps_of(4), calls("x", "y", "z"), *[(result(c), 1500) for c in "zxy"]).path
    assert where(path) == (Phase.MID_TURN, 9, 1)


def test_a_turn_of_too_few_steps_is_not_cut():  # R6.5
    decision = refused(agent(1, asked=9000))
    assert decision == Send(None, 11_000, "no legal cut", over=True)
    assert where(agent(2, tokens=3000)) == (Phase.MID_TURN, 3, 1)
    assert refused(agent(2, tokens=3000), policy=Policy(min_mid_turn_steps=3)).reason == "no legal cut"


def test_inside_a_turn_the_turn_is_kept_whole_if_that_is_relief_enough():  # R6.5
    earlier = [(user("old"), 4000), (assistant("old"), 4000)]
    assert where(agent(2, earlier, tokens=500)) == (Phase.PRE_TURN, 2, 0)
    assert where(agent(5, earlier, tokens=500)) == (Phase.MID_TURN, 9, 3)


def test_inside_a_turn_of_few_steps_covering_what_came_before_is_better_than_nothing():  # R6.5
    assert where(agent(1, [(user("old"), 4000), (assistant("old"), 4000)], asked=6000)) == (Phase.PRE_TURN, 2, 0)


def test_when_the_turns_before_are_covered_already_the_turn_itself_is_cut():  # R6.5
    path = agent(4, [(user("old"), 100), (assistant("old"), 100)], tokens=1500)
    checkpoint = checkpoint_at(path, 2)
    assert where(path, checkpoint=checkpoint) == (Phase.MID_TURN, 9, 3)


def test_an_open_group_at_the_tail_is_never_covered():  # R6.3
    path = history(user("task"), *steps_of(5), calls("x", "y"), result("x"), tokens=1000).path
    assert where(path) == (Phase.MID_TURN, 9, 1)
    standalone = where(path, trigger=Trigger.MANUAL)
    assert standalone == (Phase.STANDALONE, 11, 1)


def test_an_abandoned_group_is_covered():  # R6.3
    path = history(user("1"), calls("lost"), user("3"), assistant("4"), user("5"), tokens=3000).path
    assert where(path) == (Phase.PRE_TURN, 4, 0)


def test_a_history_without_a_user_message_is_one_turn_without_an_anchor():  # R6.5
    path = history(*steps_of(6)).path
    assert where(path) == (Phase.MID_TURN, 10, 0)


def test_nothing_can_be_cut_before_the_first_message():  # R5.5
    assert refused(history((user("long"), 20_000)).path) == Send(None, 20_000, "no legal cut", over=True)
    assert refused(history().path, overhead=20_000) == Send(None, 20_000, "no legal cut", over=True)


def test_a_plan_reaches_further_than_the_checkpoint_in_force():  # R6.7
    path = history((user("1"), 9000), (assistant("2"), 100), (user("long"), 11_000)).path
    decision = refused(path, checkpoint=checkpoint_at(path, 2))
    assert decision.reason == "pre_turn: covers nothing new"
    assert decision.over


def test_a_plan_frees_at_least_min_gain():  # R6.7
    path = history((user("1"), 600), (assistant("2"), 600), (user("long"), 9500)).path
    assert refused(path).reason == "pre_turn: would free 820 tokens, 1000 are worth it"
    assert where(path, policy=Policy(min_gain=0.08)) == (Phase.PRE_TURN, 2, 0)


@pytest.mark.parametrize("trigger", [Trigger.PROVIDER, Trigger.MANUAL])
def test_relief_that_was_asked_for_is_not_measured(trigger):  # R6.7
    path = history((user("1"), 600), (assistant("2"), 600), (user("long"), 9500)).path
    assert planned(path, trigger=trigger).through_seq == 2


def test_a_compaction_that_frees_nothing_is_not_tried():  # R6.7
    path = history((user("1"), 10), (assistant("2"), 10), (user("long"), 9500)).path
    assert refused(path, trigger=Trigger.PROVIDER).reason == "pre_turn: would free 0 tokens, 1 are worth it"


def test_min_gain_is_a_share_of_high_water_and_never_nothing():  # R6.7
    assert min_gain(budget(10_000), Policy(), Trigger.BUDGET, 11_000) == 1000
    assert min_gain(budget(10_000), Policy(min_gain=0.0), Trigger.BUDGET, 11_000) == 1
    assert min_gain(budget(10_000), Policy(), Trigger.PROVIDER, 11_000) == 1
    assert min_gain(UNKNOWN, Policy(), Trigger.BUDGET, 11_000) == 1
    # What is above the whole window would be refused: then anything helps.
    assert min_gain(budget(10_000), Policy(), Trigger.BUDGET, 20_001) == 1


def test_a_hopeless_plan_is_not_made():  # R6.7
    path = history((user("1"), 5000), (assistant("2"), 5000), (user("long"), 20_001)).path
    assert refused(path).reason == "pre_turn: hopeless: what must stay exceeds the window"
    assert where(history((user("1"), 5000), (assistant("2"), 5000), (user("long"), 20_000)).path)[1] == 2
    assert refused(path, trigger=Trigger.PROVIDER).over


def test_large_results_count_as_shortened_when_hope_is_judged():  # R6.7
    path = history(user("task"), *steps_of(3), calls("x"), (result("x"), 50_000)).path
    assert where(path) == (Phase.MID_TURN, 7, 1)
    assert refused(path, policy=Policy(result_tokens=30_000)).reason.endswith("exceeds the window")


def test_what_stays_includes_preamble_and_kept_system_messages():  # R6.7, R6.8
    path = history((user("1"), 5000), (system("s"), 1000), (user("long"), 5000)).path
    assert planned(path, overhead=14_000).through_seq == 2
    assert refused(path, overhead=14_001).reason.endswith("exceeds the window")


def test_the_provider_forces_relief_though_the_estimate_fits():  # R10.2
    assert where(high=20_000, trigger=Trigger.PROVIDER) == (Phase.PRE_TURN, 10, 0)
    assert plan(situation(high=20_000, trigger=Trigger.PROVIDER)).plan.trigger is Trigger.PROVIDER


def test_the_provider_makes_plans_for_an_unknown_window():  # R10.2
    """All that is legal is covered: one step stays, no earlier turn does."""
    policy = Policy(keep_recent_turns=3)
    assert where(limits=UNKNOWN, trigger=Trigger.PROVIDER, policy=policy) == (Phase.PRE_TURN, 10, 0)
    assert where(agent(5), limits=UNKNOWN, trigger=Trigger.PROVIDER) == (Phase.MID_TURN, 9, 1)


def test_the_provider_gets_all_but_one_step_when_nothing_else_is_left():  # R10.2
    path = agent(5)
    policy = Policy(keep_recent_tokens=0.6)
    checkpoint = checkpoint_at(path, 5, anchor=1, phase=Phase.MID_TURN)
    options = {"checkpoint": checkpoint, "policy": policy, "high": 10_000}
    assert where(path, trigger=Trigger.PROVIDER, **options) == (Phase.MID_TURN, 9, 1)
    assert plan(situation(path, **options)) == Send(checkpoint, 7200, "fits")


def test_when_nothing_can_be_compacted_the_provider_has_decided():  # R10.2
    path = history((user("long"), 5000)).path
    assert refused(path, limits=UNKNOWN, trigger=Trigger.PROVIDER).over


def test_an_idle_session_is_covered_as_far_as_it_is_complete():  # R6.6
    answered = cut(CHAT, 10)
    assert where(answered, trigger=Trigger.MANUAL) == (Phase.STANDALONE, 10, 0)


def test_an_unanswered_user_message_is_not_covered():  # R6.6
    assert where(trigger=Trigger.MANUAL) == (Phase.STANDALONE, 10, 0)


def test_of_an_open_turn_the_task_stays_as_anchor():  # R6.6
    """The client may be running its tools: its next request goes on inside the turn."""
    assert where(agent(3), trigger=Trigger.MANUAL) == (Phase.STANDALONE, 7, 1)


def test_an_idle_history_without_a_user_message_is_covered_whole():  # R6.6
    assert where(history(*steps_of(3)).path, trigger=Trigger.MANUAL) == (Phase.STANDALONE, 6, 0)


def test_there_may_be_nothing_to_compact_on_demand():  # R6.6
    decision = refused(history(user("hi")).path, trigger=Trigger.MANUAL)
    assert decision == Send(None, 100, "no legal cut", over=False)
    assert refused(history().path, trigger=Trigger.MANUAL).reason == "no legal cut"


def long_chat():
    return history(*[m for n in range(9) for m in (user(f"u{n}"), assistant(f"a{n}"))], user("now"), tokens=1000).path


def segmented(path, count, anchor=0):
    checkpoint = None
    for number in range(1, count + 1):
        checkpoint = checkpoint_at(path, 2 * number, previous=checkpoint, anchor=anchor)
    return checkpoint


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_segment_is_appended_while_there_are_fewer_than_four(count):  # R7.4
    path = long_chat()
    made = planned(path, checkpoint=segmented(path, count))
    assert (made.level, made.from_seq, made.through_seq) == (Level.SEGMENTED, 2 * count + 1, 18)
    assert made.tokens_raw == 19_000
    assert made.tokens_before == 19_000 - 2000 * count + 200


def test_one_summary_replaces_four_segments():  # R7.5
    path = long_chat()
    made = planned(path, checkpoint=segmented(path, 4))
    assert (made.level, made.from_seq) == (Level.SESSION, 9)


def test_it_is_made_from_the_originals_if_they_fit_one_request():  # R7.5
    path = long_chat()
    assert planned(path, checkpoint=segmented(path, 4), summary_room=18_000).from_seq == 1
    assert planned(path, checkpoint=segmented(path, 4), summary_room=17_999).from_seq == 9
    assert planned(path, checkpoint=segmented(path, 3), summary_room=18_000).from_seq == 7


def test_another_anchor_needs_another_summary():  # R7.5
    path = long_chat()
    made = planned(path, checkpoint=segmented(path, 1, anchor=1))
    assert (made.level, made.from_seq) == (Level.SESSION, 3)
    kept = planned(path, checkpoint=segmented(path, 1, anchor=1), policy=Policy(append_on_anchor_change=True))
    assert (kept.level, kept.from_seq) == (Level.SEGMENTED, 3)


def test_the_same_anchor_lets_a_turn_grow_by_segments():  # R7.4
    path = agent(8)
    made = planned(path, checkpoint=checkpoint_at(path, 5, anchor=1, phase=Phase.MID_TURN))
    assert (made.level, made.from_seq, made.through_seq, made.head_anchor_seq) == (Level.SEGMENTED, 6, 15, 1)


def test_on_native_state_no_segment_is_appended():  # R7.4
    native = checkpoint_of(plan_for(CHAT, 2), provider_route=ROUTE, provider_state="{}")
    made = planned(high=8000, checkpoint=native)
    assert (made.level, made.from_seq) == (Level.SESSION, 1)


def test_compacting_again_at_once_is_a_no_op():  # law 9
    for path, options in ((CHAT, {}), (agent(6), {}), (CHAT, {"trigger": Trigger.MANUAL})):
        made = planned(path, **options)
        checkpoint = checkpoint_of(made)
        assert not isinstance(plan(situation(path, checkpoint=checkpoint, **options)), Compact)


def test_a_small_window_expects_small_summaries():  # R6.7
    limits = Budget(window=1600, reserve=400, high=1200, soft=960, low=720)
    path = history((user("1"), 500), (assistant("2"), 900), (user("now"), 50)).path
    assert planned(path, limits=limits).reason.endswith("1450 tokens, about 330 after")
