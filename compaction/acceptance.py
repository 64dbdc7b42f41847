"""May a candidate be committed? (R9.2)."""

from __future__ import annotations

from compaction.checkpoint import TEXT, why_invalid
from compaction.planner import min_gain
from compaction.types import Budget, Checkpoint, Path, Phase, Plan, Policy

OVERTAKEN = "another checkpoint became current meanwhile"
"""No failure: the winner is used, and the candidate dropped."""


def refusal(
    plan: Plan,
    candidate: Checkpoint,
    path: Path,
    current_id: str | None,
    policy: Policy,
    budget: Budget,
    tokens_after: int,
    *,
    route: str,
    prompt_version: str,
) -> str | None:
    """Why a candidate is not committed, or None: it may be (R9.2). Whether its text is valid was asked before (R8.3).

    `current_id` names the path's current checkpoint; `tokens_after` is `planner.projected_tokens` with the candidate.
    """
    if candidate.previous_checkpoint_id != current_id:
        return OVERTAKEN
    if not _as_planned(plan, candidate):
        return "not what was planned"
    idle = plan.phase is Phase.STANDALONE
    invalid = why_invalid(candidate, path, route=route, prompt_version=prompt_version, idle=idle)
    if invalid is not None:
        return invalid
    return _too_large(plan, candidate, policy, budget, tokens_after)


def _as_planned(plan: Plan, candidate: Checkpoint) -> bool:
    previous_id = plan.previous.checkpoint_id if plan.previous else None
    wanted = (previous_id, plan.phase, plan.through_seq, plan.source_digest.hex(), plan.head_anchor_seq, plan.level)
    return wanted == (
        candidate.previous_checkpoint_id,
        candidate.phase,
        candidate.through_seq,
        candidate.source_digest,
        candidate.head_anchor_seq,
        candidate.level,
    )


def _too_large(plan: Plan, candidate: Checkpoint, policy: Policy, budget: Budget, tokens_after: int) -> str | None:
    if candidate.projection_kind != TEXT:
        return None
    gain = plan.tokens_before - tokens_after
    needed = min_gain(budget, policy, plan.trigger, plan.tokens_before)
    return None if gain >= needed else f"no gain: {plan.tokens_before} tokens before, {tokens_after} after"
