"""Law 9: planning is a function, and compacting again at once is a no-op."""

from copy import deepcopy

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compaction.checkpoint import why_invalid
from compaction.groups import legal_cuts, steps
from compaction.planner import Situation, plan, projected_now
from compaction.types import Budget, Compact, Phase, Policy, Trigger
from tests.compaction.paths import PROMPT, ROUTE, assistant, checkpoint_of, history, shapes, user

OLD_TURN = [user("old"), assistant("old")]
policies = st.builds(
    Policy,
    min_gain=st.sampled_from([0.0, 0.1]),
    keep_recent_turns=st.integers(0, 3),
    keep_recent_tokens=st.sampled_from([0.0, 0.2, 0.5]),
    min_mid_turn_steps=st.integers(1, 3),
    append_on_anchor_change=st.booleans(),
)


@st.composite
def situations(draw, *triggers):
    path = history(*OLD_TURN, *draw(shapes()), tokens=draw(st.sampled_from([50, 500, 5000]))).path
    overhead, ratio = draw(st.sampled_from([0, 500, 5000])), draw(st.sampled_from([0.5, 1.0, 1.7]))
    total = ratio * (overhead + path.tokens(1, len(path)))
    trigger = draw(st.sampled_from(triggers))
    shares = [int(total * share) + 1 for share in (0.2, 0.5, 0.8)]
    high = draw(st.sampled_from(shares if trigger is Trigger.BUDGET else [None, *shares]))
    window = high and high * draw(st.integers(3, 20))
    known = high is not None
    limits = Budget(window, 0, high, int(high * 0.8) if known else None, int(high * 0.6) if known else None)
    return Situation(path, overhead, None, limits, draw(policies), trigger, ratio)


def after_compaction(situation, made):
    """The same request once the plan was carried out, and the summary came out as large as was expected."""
    checkpoint = checkpoint_of(made)
    expected = int(made.reason.rsplit("about ", 1)[1].split(" ")[0])
    bare = Situation(**{**fields_of(situation), "checkpoint": checkpoint, "checkpoint_tokens": 0})
    size = int((expected - projected_now(bare)) / situation.ratio)
    return Situation(**{**fields_of(bare), "checkpoint_tokens": max(size, 1)})


def fields_of(situation):
    return {name: getattr(situation, name) for name in situation.__slots__}


@settings(max_examples=70, deadline=None)
@given(situations(*Trigger))
def test_equal_situations_lead_to_equal_decisions(situation):
    assert plan(situation) == plan(deepcopy(situation))


@settings(max_examples=70, deadline=None)
@given(situations(Trigger.BUDGET, Trigger.MANUAL))
def test_compacting_again_at_once_is_a_no_op(situation):
    decision = plan(situation)
    assume(isinstance(decision, Compact))
    assert not isinstance(plan(after_compaction(situation, decision.plan)), Compact)


@settings(max_examples=70, deadline=None)
@given(situations(Trigger.PROVIDER))
def test_a_provider_that_refuses_again_and_again_gets_ever_more_relief_until_none_is_left(situation):
    """Each refusal is news, so this is no repetition of the same plan; but it ends."""
    reached = 0
    for _ in range(4):
        decision = plan(situation)
        if not isinstance(decision, Compact):
            return
        assert decision.plan.through_seq > reached
        reached = decision.plan.through_seq
        situation = after_compaction(situation, decision.plan)
    raise AssertionError("a fourth compaction of the same request")


@settings(max_examples=70, deadline=None)
@given(situations(*Trigger))
def test_a_plan_covers_a_complete_prefix_and_leads_to_a_valid_checkpoint(situation):  # R6.3, R7.3
    decision = plan(situation)
    assume(isinstance(decision, Compact))
    made, path = decision.plan, situation.path
    assert made.through_seq in legal_cuts(path)
    assert all(step.closed for step in steps(path) if step.first <= made.through_seq)
    idle = made.phase is Phase.STANDALONE
    assert why_invalid(checkpoint_of(made), path, route=ROUTE, prompt_version=PROMPT, idle=idle) is None
