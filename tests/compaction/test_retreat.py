"""A plan that is too long for the summariser is made shorter, on legal cuts (R9.4)."""

from dataclasses import replace

from compaction.groups import legal_cuts
from compaction.retreat import to_boundary, to_half
from compaction.types import Level, Phase
from tests.compaction.paths import assistant, calls, checkpoint_at, history, plan_for, result, user

PATH = history(
    *[message for n in range(6) for message in (user(), calls(f"c{n}"), result(f"c{n}"), assistant())], user()
).path


def test_half_the_range_ends_on_a_legal_cut():
    plan = plan_for(PATH, 24)
    shorter = to_half(plan, PATH)
    assert shorter is not None
    assert shorter.through_seq == 12
    assert shorter.through_seq in legal_cuts(PATH)
    assert shorter.source_digest == PATH.digests[12]
    assert "half" in shorter.reason


def test_a_range_of_one_group_cannot_be_halved():
    assert to_half(plan_for(PATH, 1), PATH) is None


def test_the_largest_smaller_boundary_of_the_same_start_counts():
    """R10.5: what was accepted behind another checkpoint says nothing about the originals."""
    plan = plan_for(PATH, 24)
    shorter = to_boundary(plan, PATH, [(24, None), (20, "other"), (16, None), (8, None)])
    assert shorter is not None
    assert shorter.through_seq == 16
    assert to_boundary(plan, PATH, [(20, "other")]) is None
    assert to_boundary(plan, PATH, []) is None


def test_a_cut_before_the_anchor_has_no_anchor():
    """R7.1, R7.4: then the phase is another, and a segment of the old anchor cannot be appended to."""
    plan = replace(plan_for(PATH, 23), phase=Phase.MID_TURN, head_anchor_seq=21, level=Level.SEGMENTED)
    shorter = to_half(plan, PATH)
    assert shorter is not None
    assert (shorter.phase, shorter.head_anchor_seq, shorter.level) == (Phase.PRE_TURN, 0, Level.SESSION)


def test_a_cut_behind_the_anchor_keeps_it():
    path = history(user(), *[message for n in range(8) for message in (calls(f"c{n}"), result(f"c{n}"))]).path
    previous = checkpoint_at(path, 3, anchor=1)
    plan = replace(
        plan_for(path, 15),
        from_seq=4,
        phase=Phase.MID_TURN,
        head_anchor_seq=1,
        level=Level.SEGMENTED,
        previous=previous,
    )
    shorter = to_half(plan, path)
    assert shorter is not None
    assert (shorter.phase, shorter.head_anchor_seq, shorter.level) == (Phase.MID_TURN, 1, Level.SEGMENTED)
    assert shorter.through_seq == 9
