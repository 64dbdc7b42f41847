"""A shorter plan, for when the request to the summariser was itself too long (R9.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compaction.groups import legal_cuts
from compaction.types import Level, Path, Phase, Plan

MOST_HALVINGS = 3


def to_boundary(plan: Plan, path: Path, accepted: Iterable[tuple[int, str | None]]) -> Plan | None:
    """The plan up to the largest boundary that its route accepted and that is smaller; None if there is none.

    `accepted` are (through_seq, id of the checkpoint then in force) on this path. A boundary counts only for plans
    that start from the same checkpoint: that a projection was accepted says nothing about the originals (R10.5).
    """
    start = plan.previous.checkpoint_id if plan.previous else None
    usable = [seq for seq, checkpoint_id in accepted if checkpoint_id == start and seq < plan.through_seq]
    return _ending_at(plan, path, max(usable, default=0), "up to what the route has accepted")


def to_half(plan: Plan, path: Path) -> Plan | None:
    """The plan for half of its new range; None if no legal cut is left in it."""
    return _ending_at(plan, path, (plan.from_seq + plan.through_seq) // 2, "half the range")


def _ending_at(plan: Plan, path: Path, bound: int, why: str) -> Plan | None:
    """The plan with its cut at the last legal one not behind `bound`, still reaching further than before."""
    cuts = [cut for cut in legal_cuts(path) if plan.from_seq <= cut <= bound and cut < plan.through_seq]
    if not cuts:
        return None
    through = cuts[-1]
    anchor = plan.head_anchor_seq if plan.head_anchor_seq <= through else 0
    same_anchor = plan.previous is not None and plan.previous.head_anchor_seq == anchor
    return replace(
        plan,
        phase=plan.phase if anchor or plan.phase is not Phase.MID_TURN else Phase.PRE_TURN,
        through_seq=through,
        source_digest=path.digests[through],
        head_anchor_seq=anchor,
        level=plan.level if same_anchor or anchor == plan.head_anchor_seq else Level.SESSION,
        reason=f"{plan.reason}; retreated: {why}",
    )
