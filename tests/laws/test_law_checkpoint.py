"""Laws 5 and 6: a checkpoint is used only for its own prefix, and only if it makes the projection smaller."""

from dataclasses import replace
from math import ceil

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compaction.acceptance import refusal
from compaction.checkpoint import current, from_json, to_json, why_invalid
from compaction.groups import legal_cuts
from compaction.planner import Situation, min_gain, plan, projected_tokens
from compaction.projection import ProjectionOptions, project
from compaction.types import Compact, Phase, Policy, Trigger
from tests.compaction.paths import (
    PROMPT,
    ROUTE,
    WELL_FORMED,
    budget,
    checkpoint_at,
    checkpoint_of,
    history,
    shapes,
)
from tests.laws.histories import histories, path_of, respelled

UNIQUE = {"role": "user", "content": "a sentence that no generator writes"}
EDITED = {"role": "user", "content": "a sentence that no generator writes either"}


def used(checkpoint, path):
    """Whether a request with this path gets the checkpoint, read back from the store's form."""
    found = current([from_json(to_json(checkpoint))], path, route=ROUTE, prompt_version=PROMPT)
    return found == checkpoint


@st.composite
def covered(draw):
    """A history, a legal place to cut it, and in the covered part a message that occurs once."""
    messages = draw(histories)
    messages.insert(draw(st.integers(0, len(messages))), UNIQUE)
    place = messages.index(UNIQUE)
    messages = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "next"}]
    cuts = [cut for cut in legal_cuts(path_of(messages)) if place < cut < len(messages)]
    return messages, place, draw(st.sampled_from(cuts))


@settings(max_examples=40, deadline=None)
@given(covered(), st.data())
def test_a_checkpoint_is_used_wherever_its_messages_are_the_prefix(given_history, data):  # law 5
    """Spelled as another client spells it, and whatever new turn follows."""
    messages, _, through = given_history
    checkpoint = checkpoint_at(path_of(messages), through)
    prefix = data.draw(respelled(messages[:through]))
    following = [{"role": "assistant", "content": "done"}, {"role": "user", "content": "on"}]
    assert used(checkpoint, path_of([*prefix, *following, *data.draw(shapes(WELL_FORMED))]))


@settings(max_examples=40, deadline=None)
@given(covered(), st.sampled_from(["edit", "drop", "before"]), st.data())
def test_a_checkpoint_is_never_used_for_other_messages(given_history, change, data):  # law 5
    messages, place, through = given_history
    checkpoint = checkpoint_at(path_of(messages), through)
    changed = list(messages)
    match change:
        case "edit":
            changed[place] = EDITED
        case "drop":
            del changed[place]
        case "before":
            changed.insert(data.draw(st.integers(0, place)), EDITED)
    assert not used(checkpoint, path_of([*changed, *data.draw(shapes())]))


@settings(max_examples=30, deadline=None)
@given(covered())
def test_a_checkpoint_is_never_used_for_another_tenant(given_history):  # law 5, R3.1
    messages, _, through = given_history
    assert not used(checkpoint_at(path_of(messages), through), path_of(messages, tenant="another"))


@settings(max_examples=40, deadline=None)
@given(covered(), st.data())
def test_a_checkpoint_is_never_used_for_a_history_that_ends_inside_it(given_history, data):  # law 5
    messages, _, through = given_history
    shorter = messages[: data.draw(st.integers(0, through))]
    assert not used(checkpoint_at(path_of(messages), through), path_of(shorter))


@settings(max_examples=80, deadline=None)
@given(
    shapes(),
    st.sampled_from(list(Trigger)),
    st.integers(0, 5000),
    st.sampled_from([0.5, 1.0, 1.3]),
    st.integers(0, 3000),
)
def test_an_accepted_checkpoint_makes_the_projection_smaller(messages, trigger, overhead, ratio, size):  # law 6
    h = history({"role": "user", "content": "old"}, {"role": "assistant", "content": "old"}, *messages, tokens=700)
    path = h.path
    limits, policy = budget(max(1, int(ratio * (overhead + 700 * len(path))) // 2), window=10**9), Policy()
    decision = plan(Situation(path, overhead, None, limits, policy, trigger, ratio=ratio))
    assume(isinstance(decision, Compact))
    made = decision.plan
    candidate = checkpoint_of(made)
    after = projected_tokens(path, overhead, ratio, candidate, size)
    candidate = replace(candidate, tokens_after=after)
    reason = refusal(made, candidate, path, None, policy, limits, after, route=ROUTE, prompt_version=PROMPT)
    gain = made.tokens_before - after
    wanted = min_gain(limits, policy, trigger, made.tokens_before)
    assert reason is None if gain >= wanted else reason.startswith("no gain")
    assert gain > 0 or reason is not None
    projection = project(path, candidate, ProjectionOptions(), h.raws, size)
    assert after == ceil(ratio * (overhead + projection.tokens))
    idle = made.phase is Phase.STANDALONE
    assert why_invalid(candidate, path, route=ROUTE, prompt_version=PROMPT, idle=idle) is None
