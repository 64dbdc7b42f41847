"""Law 2: in every projection each call has its results, in order, and the current user message keeps its bytes."""

import json
from collections import Counter

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compaction.checkpoint import why_invalid
from compaction.groups import current_user_run, last_user_run, legal_cuts
from compaction.planner import Situation, plan
from compaction.projection import ProjectionOptions, faults, project
from compaction.types import Compact, Kept, Policy, Trigger
from tests.compaction.paths import PROMPT, ROUTE, assistant, budget, checkpoint_at, checkpoint_of, history, shapes, user
from tests.laws.histories import exact_bytes, histories, path_of, prefix_of, texts, well_formed

options = st.builds(
    ProjectionOptions, st.sampled_from(["user", "system", "developer"]), st.booleans(), st.booleans()
)  # fmt: skip
policies = st.builds(
    Policy,
    min_gain=st.sampled_from([0.0, 0.1]),
    keep_recent_turns=st.integers(0, 2),
    keep_recent_tokens=st.sampled_from([0.0, 0.2, 0.9]),
    min_mid_turn_steps=st.integers(1, 3),
)


OLD_TURN = [user("old"), assistant("old")]


def messages_of(projection, raws):
    """What goes over the wire after the preamble."""
    return [raws[piece.seq - 1] if isinstance(piece, Kept) else piece.body for piece in projection.pieces]


def call_ids(message):
    calls = message.get("tool_calls")
    found = [call["id"] for call in calls if isinstance(call, dict) and "id" in call] if isinstance(calls, list) else []
    return found + ([message["function_call"].get("name")] if isinstance(message.get("function_call"), dict) else [])


def complaints(raws):
    """What a strict provider says to these messages: calls without result, and results without call."""
    found, waiting, caller = Counter(), Counter(), None
    for raw in [*raws, b"{}"]:
        message = json.loads(raw)
        if message.get("role") in ("tool", "function"):
            answered = message.get("tool_call_id", message.get("name"))
            if isinstance(answered, str) and waiting[answered] > 0:
                waiting[answered] -= 1
            else:
                found["orphan", raw] += 1
        else:
            if waiting.total():
                found["unanswered", caller] += 1
            caller = raw
            waiting = Counter(call_ids(message)) if message.get("role") == "assistant" else Counter()
    return found


def made_checkpoint(path, policy, trigger, text):
    """The checkpoint that the planner wants here, if any."""
    total = path.tokens(1, len(path))
    decision = plan(Situation(path, 0, None, budget(max(1, total // 3), window=10**9), policy, trigger))
    assume(isinstance(decision, Compact))
    return checkpoint_of(decision.plan, text + "x")


@settings(max_examples=80, deadline=None)
@given(
    histories, policies, st.sampled_from([Trigger.BUDGET, Trigger.PROVIDER]), options, texts
)  # fmt: skip
def test_a_projection_has_no_unpaired_call_that_the_client_did_not_send(messages, policy, trigger, option, text):
    messages = [*OLD_TURN, *messages]
    raws, path = [exact_bytes(message) for message in messages], path_of(messages, tokens=500)
    checkpoint = made_checkpoint(path, policy, trigger, text)
    assert why_invalid(checkpoint, path, route=ROUTE, prompt_version=PROMPT) is None
    projection = project(path, checkpoint, option, raws)
    assert faults(path, projection) == ()
    assert complaints(messages_of(projection, raws)) <= complaints(raws)


@settings(max_examples=40, deadline=None)
@given(well_formed, policies, options, texts)
def test_a_well_formed_history_is_projected_to_a_well_formed_one(messages, policy, option, text):
    messages = [*OLD_TURN, *messages]
    raws, path = [exact_bytes(message) for message in messages], path_of(messages, tokens=500)
    projection = project(path, made_checkpoint(path, policy, Trigger.BUDGET, text), option, raws)
    assert not complaints(messages_of(projection, raws))


@settings(max_examples=80, deadline=None)
@given(histories, policies, options, texts)
def test_the_current_user_message_keeps_its_bytes(messages, policy, option, text):
    """As a message of its own; or, joined with the checkpoint, its text or parts."""
    messages = [*OLD_TURN, *messages]
    raws, path = [exact_bytes(message) for message in messages], path_of(messages, tokens=500)
    projection = project(path, made_checkpoint(path, policy, Trigger.BUDGET, text), option, raws)
    run = current_user_run(path)
    assume(run)
    kept = {piece.seq for piece in projection.pieces if isinstance(piece, Kept)}
    for seq in range(run[0], run[1] + 1):
        if seq not in kept:
            content = exact_bytes(messages[seq - 1]["content"])[1:-1]
            assert option.merge_consecutive
            assert content in projection.pieces[0].body


@settings(max_examples=150, deadline=None)
@given(shapes(), st.booleans(), st.booleans(), st.data())
def test_a_longer_history_only_adds_to_the_projection(messages, merge, parts, data):  # R12.3
    """Whatever is covered and whatever comes later, what was sent before stays as it was."""
    h, option = history(*OLD_TURN, *messages), ProjectionOptions(merge_consecutive=merge, content_parts=parts)
    cuts = [cut for cut in legal_cuts(h.path) if cut < len(h.path)]
    assume(cuts)
    through = data.draw(st.sampled_from(cuts))
    run = last_user_run(prefix_of(h.path, through))
    anchor = data.draw(st.sampled_from([0, run[0]])) if run else 0
    checkpoint = checkpoint_at(h.path, through, anchor=anchor)
    sent = b""
    for last in range(through + 1, len(h.path) + 1):
        projection = project(prefix_of(h.path, last), checkpoint, option, h.raws)
        now = b"\n".join(messages_of(projection, h.raws))
        assert now.startswith(sent)
        sent = now
