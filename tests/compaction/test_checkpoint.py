"""The checkpoint record: id, JSON form, validity on a path (SPEC 7)."""

import json
from dataclasses import fields, replace

import pytest

from compaction.checkpoint import (
    checkpoint_id,
    current,
    damage,
    from_json,
    length_prefixed,
    segments_with,
    to_json,
    why_invalid,
)
from compaction.types import Checkpoint, Level, Phase
from tests.compaction.paths import (
    PROMPT,
    ROUTE,
    assistant,
    calls,
    checkpoint_at,
    checkpoint_of,
    cut,
    forged,
    history,
    plan_for,
    result,
    user,
)

PATH = history(
    user("1"), assistant("2"), user("3"), assistant("4"),
    user("5"), calls("a"), result("a"), calls("b"), result("b"), calls("c"), result("c"),
).path  # fmt: skip
OTHER_PATH = history(user("1"), assistant("2"), user("another 3"), assistant("4"), user("5")).path
PLAIN = checkpoint_at(PATH, 4)
MID_TURN = checkpoint_at(PATH, 9, anchor=5, phase=Phase.MID_TURN)
NATIVE = checkpoint_of(plan_for(PATH, 4), provider_route=ROUTE, provider_state='{"blob":"x"}')
CHANGES = {
    "schema": 4, "format": 4, "canon": 9, "prompt": "p2", "previous_checkpoint_id": "other", "session_id": "s2",
    "phase": "mid_turn", "through_seq": 5, "source_digest": "00", "head_anchor_seq": 1, "projection_kind": "native",
    "level": "segmented", "provider_route": "r", "provider_state": "{}", "model": "m2",
}  # fmt: skip
FIGURES = {"tokens_raw": 1, "tokens_before": 2, "tokens_after": 3, "created_at": "2027-01-01T00:00:00Z"}


def reason(checkpoint, path=PATH, route=ROUTE, **options):
    return why_invalid(checkpoint, path, route=route, prompt_version=PROMPT, **options)


def chain(count):
    """A checkpoint of `count` segments over a long chat, and its path."""
    path = history(*[turn for n in range(9) for turn in (user(f"u{n}"), assistant(f"a{n}"))], user("now")).path
    checkpoint = None
    for number in range(1, count + 1):
        checkpoint = checkpoint_at(path, 2 * number, previous=checkpoint)
    return checkpoint, path


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_any_field_gives_another_id(name):  # R7.2
    assert checkpoint_id(replace(PLAIN, **{name: CHANGES[name]})) != PLAIN.checkpoint_id


@pytest.mark.parametrize("change", [{"from_seq": 2}, {"through_seq": 3}, {"source_digest": "00"}, {"text": "other"}])
def test_a_change_of_any_segment_gives_another_id(change):  # R7.2
    changed = replace(PLAIN, segments=(replace(PLAIN.segments[0], **change),))
    assert checkpoint_id(changed) != PLAIN.checkpoint_id


def test_the_id_does_not_depend_on_itself_token_figures_and_time():  # R7.2
    segment = replace(PLAIN.segments[0], tokens=999)
    changed = replace(PLAIN, checkpoint_id="x", segments=(segment,), **FIGURES)
    assert checkpoint_id(changed) == PLAIN.checkpoint_id


def test_every_field_is_either_in_the_id_or_known_not_to_be():  # R7.2
    assert {field.name for field in fields(Checkpoint)} == {*CHANGES, *FIGURES, "checkpoint_id", "segments"}


def test_fields_are_length_prefixed():  # R7.2
    assert length_prefixed(["ab", "c"]) != length_prefixed(["a", "bc"])
    assert len({length_prefixed([value]) for value in ("1", 1, None, "", "None")}) == 5


def test_the_json_form_gives_the_same_checkpoint_back():  # R7.1
    odd = forged(PLAIN, segments=(replace(PLAIN.segments[0], text="é \ud800 \U0001f600"),))
    for checkpoint in (PLAIN, MID_TURN, NATIVE, odd):
        text = to_json(checkpoint)
        assert from_json(text) == checkpoint
        assert text.isascii()


@pytest.mark.parametrize("name", [field.name for field in fields(Checkpoint)])
def test_a_record_without_a_required_field_is_malformed(name):  # R7.3
    data = json.loads(to_json(PLAIN))
    del data[name]
    assert from_json(json.dumps(data)) is None


@pytest.mark.parametrize("name", ["from_seq", "through_seq", "source_digest", "text", "tokens"])
def test_a_segment_without_a_required_field_is_malformed(name):  # R7.3
    data = json.loads(to_json(PLAIN))
    del data["segments"][0][name]
    assert from_json(json.dumps(data)) is None


@pytest.mark.parametrize(
    "change",
    [{"schema": "3"}, {"through_seq": True}, {"through_seq": 4.0}, {"model": None}, {"segments": {}},
     {"segments": [3]}, {"provider_state": {}}],
)  # fmt: skip
def test_a_field_of_another_type_is_malformed(change):  # R7.3
    assert from_json(json.dumps({**json.loads(to_json(PLAIN)), **change})) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "[" * 100_000])
def test_what_is_no_json_object_is_malformed(text):  # R7.3
    assert from_json(text) is None


def test_the_first_checkpoint_has_one_segment_from_the_first_event():  # R7.5
    segments = segments_with(plan_for(PATH, 4), "text", 7)
    assert [(s.from_seq, s.through_seq, s.source_digest, s.tokens) for s in segments] == [
        (1, 4, PATH.digests[4].hex(), 7)
    ]


def test_an_appended_segment_leaves_the_earlier_ones_as_they_are():  # R7.4
    two, path = chain(2)
    three = segments_with(plan_for(path, 6, previous=two), "new", 7)
    assert three[:2] == two.segments
    assert (three[2].from_seq, three[2].through_seq) == (5, 6)


def test_a_session_level_summary_replaces_all_segments():  # R7.5
    two, path = chain(2)
    segments = segments_with(plan_for(path, 6, previous=two, level=Level.SESSION), "whole", 7)
    assert [(s.from_seq, s.through_seq) for s in segments] == [(1, 6)]


@pytest.mark.parametrize("checkpoint", [PLAIN, MID_TURN, NATIVE])
def test_a_checkpoint_is_valid_on_the_path_that_it_was_made_from(checkpoint):  # R7.3
    assert reason(checkpoint) is None


@pytest.mark.parametrize("change", [{"schema": 2}, {"format": 2}, {"canon": 0}, {"prompt": "p0"}])
def test_another_version_is_invalid(change):  # R7.3
    assert reason(forged(PLAIN, **change)) == "made by another version"


@pytest.mark.parametrize("name", ["session_id", "source_digest", "created_at"])
def test_an_empty_required_field_is_invalid(name):  # R7.3
    assert reason(forged(PLAIN, **{name: ""})) == f"required field is empty: {name}"


@pytest.mark.parametrize("name", ["projection_kind", "phase", "level"])
def test_unknown_words_are_invalid(name):  # R7.3
    assert reason(forged(PLAIN, **{name: "odd"})) == f"unknown {name.replace('_', ' ')}"


def test_text_has_one_to_four_segments():  # R7.3
    four, path = chain(4)
    five, _ = chain(5)
    assert reason(four, path) is None
    assert reason(five, path) == "not 1 to 4 segments"
    assert reason(forged(PLAIN, segments=())) == "not 1 to 4 segments"


def test_segments_have_text():  # R7.3
    assert reason(forged(PLAIN, segments=(replace(PLAIN.segments[0], text=" \n"),))) == "a segment has no text"


def test_text_has_no_provider_state():  # R7.1
    assert reason(forged(PLAIN, provider_route=ROUTE)) == "a text checkpoint has provider state"
    assert reason(forged(PLAIN, provider_state="{}")) == "a text checkpoint has provider state"


@pytest.mark.parametrize(
    "ranges",
    [[(2, 4)], [(1, 3)], [(1, 2), (4, 4)], [(1, 2), (2, 4)], [(1, 3), (4, 3), (4, 4)], [(3, 4), (1, 2)]],
)
def test_segments_are_gapless_in_order_and_cover_the_prefix(ranges):  # R7.3
    segment = PLAIN.segments[0]
    segments = tuple(
        replace(segment, from_seq=first, through_seq=last, source_digest=PATH.digests[last].hex())
        for first, last in ranges
    )
    assert reason(forged(PLAIN, segments=segments)) == "the segments do not cover the prefix in order"


def test_native_needs_route_and_state():  # R7.3
    for change in ({"provider_route": None}, {"provider_route": ""}, {"provider_state": None}):
        assert reason(forged(NATIVE, **change)) == "a native checkpoint lacks its route or state"


def test_native_state_is_json():  # R7.3
    for state in ("", "{", "[" * 100_000):
        assert reason(forged(NATIVE, provider_state=state)) == "native state is not JSON"


def test_native_is_for_its_own_route_only():  # R7.3, R9.1
    assert reason(NATIVE, route="up/other") == "native state of another route"
    assert reason(PLAIN, route="up/other") is None


def test_the_id_must_recompute():  # R7.3
    assert reason(replace(PLAIN, model="changed")) == "the id does not recompute"


def test_a_path_with_other_messages_is_refused():  # R7.3, R3.4
    assert reason(PLAIN, OTHER_PATH) == "made from other messages"


def test_a_shorter_path_is_refused():  # R7.3
    assert reason(PLAIN, cut(PATH, 3)) == "covers messages that are not on the path"
    assert reason(forged(PLAIN, through_seq=0, segments=()), PATH) == "not 1 to 4 segments"
    assert reason(forged(NATIVE, through_seq=0, segments=())) == "covers messages that are not on the path"


def test_the_digest_of_each_segment_is_checked():  # R7.3
    two, path = chain(2)
    broken = forged(two, segments=(replace(two.segments[0], source_digest="00" * 32), two.segments[1]))
    assert reason(broken, path) == "made from other messages"


def test_the_anchor_is_a_user_message_inside_the_covered_prefix():  # R7.3
    assert reason(forged(PLAIN, head_anchor_seq=3)) is None
    assert reason(forged(PLAIN, head_anchor_seq=5)) == "the anchor lies outside the covered prefix"
    assert reason(forged(PLAIN, head_anchor_seq=-1)) == "the anchor lies outside the covered prefix"
    assert reason(forged(PLAIN, head_anchor_seq=4)) == "the anchor is no user message"


def test_the_current_user_message_is_never_covered_unless_it_is_the_anchor():  # R7.3
    """A regenerate that ends at the cut does not lose the message that it asks for."""
    assert reason(checkpoint_at(PATH, 9)) == "covers the current user message"
    assert reason(checkpoint_at(PATH, 4), cut(PATH, 4)) == "covers the current user message"
    assert reason(checkpoint_at(PATH, 9, anchor=3)) == "covers the current user message"
    assert reason(checkpoint_at(PATH, 9, anchor=5)) is None


def test_the_newest_complete_step_is_never_covered():  # R7.3
    """A retry that ends at the cut does not lose the results that it was about to use."""
    assert reason(MID_TURN, cut(PATH, 9)) == "covers the newest complete step"
    assert reason(MID_TURN, cut(PATH, 10)) == "covers the newest complete step"
    assert reason(MID_TURN, PATH) is None


def test_an_idle_session_has_no_current_message():  # R6.6
    answered = cut(PATH, 4)
    checkpoint = checkpoint_at(answered, 4, phase=Phase.STANDALONE)
    assert reason(checkpoint, answered) is not None
    assert reason(checkpoint, answered, idle=True) is None
    assert reason(checkpoint, PATH) is None


def test_a_history_without_a_user_message_has_nothing_to_protect_but_its_newest_step():  # R7.3
    path = history(calls("a"), result("a"), calls("b"), result("b")).path
    assert reason(checkpoint_at(path, 2), path) is None
    assert reason(checkpoint_at(path, 4), path) == "covers the newest complete step"


def test_a_cut_never_falls_into_a_group_that_another_branch_completes():  # R7.3, R12.2
    """Abandoned on the branch where the checkpoint was made, answered on this one."""
    begun = (user("1"), calls("a", "b"), result("a"))
    abandoned = history(*begun, user("never mind"), assistant("fine"), user("next")).path
    completed = history(*begun, result("b"), assistant("done"), user("next")).path
    checkpoint = checkpoint_at(abandoned, 3)
    assert reason(checkpoint, abandoned) is None
    assert reason(checkpoint, completed) == "the cut lies before a result of this path"
    assert reason(checkpoint_at(completed, 4), completed) is None


def test_the_current_checkpoint_is_the_valid_one_that_covers_most():  # R7.6
    shorter, longer = checkpoint_at(PATH, 2), checkpoint_at(PATH, 4)
    invalid = replace(checkpoint_at(PATH, 9, anchor=5), model="tampered")
    found = current([shorter, invalid, longer], PATH, route=ROUTE, prompt_version=PROMPT)
    assert found == longer
    assert current([invalid], PATH, route=ROUTE, prompt_version=PROMPT) is None
    assert current([], PATH, route=ROUTE, prompt_version=PROMPT) is None


def test_of_two_that_cover_the_same_the_newest_then_the_highest_id_wins():  # R7.6
    older = checkpoint_at(PATH, 4, "older")
    newer = replace(checkpoint_at(PATH, 4, "newer"), created_at="2026-12-02T00:00:00Z")
    twin = replace(checkpoint_at(PATH, 4, "twin"), created_at="2026-12-02T00:00:00Z")
    winner = max(newer, twin, key=lambda checkpoint: checkpoint.checkpoint_id)
    for order in ([older, newer, twin], [twin, newer, older]):
        assert current(order, PATH, route=ROUTE, prompt_version=PROMPT) == winner


@pytest.mark.parametrize("checkpoint", [PLAIN, MID_TURN, NATIVE])
def test_a_sound_record_is_not_damaged_whatever_path_and_route_it_is_for(checkpoint):  # R7.6
    assert damage(checkpoint, prompt_version=PROMPT) is None


def test_a_record_that_no_path_can_use_is_damaged():  # R7.6
    assert damage(PLAIN, prompt_version="p2") == "made by another version"
    assert damage(replace(PLAIN, model="changed"), prompt_version=PROMPT) == "the id does not recompute"
    assert damage(forged(NATIVE, provider_state="{"), prompt_version=PROMPT) == "native state is not JSON"
