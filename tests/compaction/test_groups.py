"""Turns, steps, and legal cuts (SPEC 1, R6.3-R6.6)."""

import json
import time
from pathlib import Path as File

import pytest
from hypothesis import given, settings

from compaction.groups import (
    Step,
    current_user_run,
    last_user_run,
    legal_cuts,
    opens_turn,
    prefill,
    steps,
    turn_steps,
    turns,
)
from compaction.types import Path
from tests.laws.histories import histories, path_of, well_formed

AIRLINE = File(__file__).parents[1] / "data" / "conversations" / "tau-airline.jsonl"


def message(word):
    """`u`, `a`, `s`: a role. `c:x,y`: calls with these ids. `r:x`: a result. `r`: one without an id."""
    kind, _, ids = word.partition(":")
    if kind == "c":
        calls = [
            {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ids.split(",")
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    if kind == "r":
        return {"role": "tool", "content": "found", **({"tool_call_id": ids} if ids else {})}
    if kind == "f":
        return {"role": "assistant", "content": None, "function_call": {"name": ids, "arguments": "{}"}}
    if kind == "n":
        return {"role": "function", "name": ids, "content": "found"}
    return {"role": {"u": "user", "a": "assistant", "s": "system", "d": "developer"}[kind], "content": word}


def path(line):
    """A path from words, as in `u c:x r:x a`."""
    return path_of([message(word) for word in line.split()])


def shape(line):
    """The steps in short: seqs, and `+` complete, `-` incomplete but closed, `?` open."""
    marks = {(True, True): "+", (False, True): "-", (False, False): "?"}
    found = (f"{step.first}-{step.last}{marks[step.complete, step.closed]}" for step in steps(path(line)))
    return " ".join(found)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ""),
        ("u a u", "1-1+ 2-2+ 3-3+"),
        ("u c:x r:x a", "1-1+ 2-3+ 4-4+"),
        ("u c:x,y r:y r:x c:z r:z", "1-1+ 2-4+ 5-6+"),
        ("u c:x,x r:x r:x a", "1-1+ 2-4+ 5-5+"),
        ("u f:look n:look a", "1-1+ 2-3+ 4-4+"),
        ("s u d a", "1-1+ 2-2+ 3-3+ 4-4+"),
        # missing results
        ("u c:x", "1-1+ 2-2?"),
        ("u c:x,y r:x", "1-1+ 2-3?"),
        ("u c:x,y r:x s", "1-1+ 2-3? 4-4+"),
        ("u c:x,y r:x u", "1-1+ 2-3- 4-4+"),
        ("u c:x a", "1-1+ 2-2- 3-3+"),
        ("u c:x c:y r:y", "1-1+ 2-2- 3-4+"),
        ("u c:x c:y", "1-1+ 2-2- 3-3?"),
        # orphan results
        ("r:x u", "1-1- 2-2+"),
        ("u r:x", "1-1+ 2-2-"),
        ("u c:x r:x r:x a", "1-1+ 2-3+ 4-4- 5-5+"),
        ("u c:x r:y a", "1-1+ 2-2- 3-3- 4-4+"),
        ("u c:x r", "1-1+ 2-2? 3-3-"),
        ("u c:x,y r:x r:z r:y a", "1-1+ 2-5+ 6-6+"),
        # a result that does not directly follow
        ("u c:x s r:x", "1-1+ 2-2? 3-3+ 4-4-"),
        ("u c:x u r:x", "1-1+ 2-2- 3-3+ 4-4-"),
        # reused ids
        ("u c:x r:x c:x r:x c:x", "1-1+ 2-3+ 4-5+ 6-6?"),
    ],
)
def test_a_history_is_divided_into_steps(line, expected):
    """SPEC 1, R6.3."""
    assert shape(line) == expected


def test_a_step_says_what_it_is():
    """SPEC 1: a group, a plain message, an orphan result."""
    assert steps(path("u c:x r:x r:z")) == (
        Step(1, 1, "user", has_calls=False, complete=True, closed=True),
        Step(2, 3, "assistant", has_calls=True, complete=True, closed=True),
        Step(4, 4, "tool", has_calls=False, complete=False, closed=True),
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", None),
        ("a c:x r:x", None),
        ("u", (1, 1)),
        ("u a u u", (3, 4)),
        ("u u a", (1, 3)),  # a prefill is protected
        ("u a u c:x r:x a", (3, 3)),  # a trailing answer behind steps is not
        ("u a u s", (3, 4)),
        ("u a u s d a", (3, 6)),
        ("u a u s c:x", (3, 4)),
        ("u a s u", (4, 4)),
        ("u a a", (1, 1)),
        ("u s u", (3, 3)),
    ],
)
def test_the_current_user_message_is_the_last_run_with_what_is_behind_it(line, expected):
    """SPEC 1, R7.3."""
    assert current_user_run(path(line)) == expected


def test_the_last_user_run_alone():
    """SPEC 1."""
    assert last_user_run(path("u a u u s a")) == (3, 4)
    assert last_user_run(path("a")) is None


def test_only_a_trailing_assistant_message_without_calls_is_a_prefill():
    """R3.8."""
    assert [prefill(path(line)) for line in ("u a", "u c:x", "u a u", "", "a")] == [2, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ()),
        ("a c:x r:x", ((1, 3),)),
        ("u a u c:x r:x a", ((1, 2), (3, 6))),
        ("s a u a", ((1, 2), (3, 4))),
        ("u u a u", ((1, 3), (4, 4))),
        ("u s u a", ((1, 2), (3, 4))),
    ],
)
def test_a_turn_is_a_user_message_and_everything_up_to_the_next(line, expected):
    """SPEC 1: a run of user messages opens one turn."""
    assert turns(path(line)) == expected


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("u", ()),
        ("u a u", ()),
        ("u a", ()),  # a prefill
        ("u c:x", ()),
        ("u c:x,y r:x", ()),
        ("u r:x s", ()),
        ("u c:x r:x", ((2, 3),)),
        ("u a s", ((2, 2),)),
        ("u a u c:x r:x c:y,z r:z r:y", ((4, 5), (6, 8))),
        ("u c:x r:x c:y r:y a", ((2, 3), (4, 5))),
        ("u c:x c:y r:y", ((3, 4),)),
    ],
)
def test_a_request_opens_a_turn_until_a_step_behind_the_user_message_is_complete(line, done):
    """R6.4, R6.5."""
    assert turn_steps(path(line)) == done
    assert opens_turn(path(line)) is (not done)


def test_without_a_user_message_all_is_one_turn_that_nothing_opens():
    """R6.4: a task in the preamble."""
    assert turn_steps(path("c:x r:x c:y r:y")) == ((1, 2), (3, 4))
    assert not opens_turn(path("c:x r:x"))
    assert not opens_turn(path("c:x"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ()),
        ("u a u", (1, 2, 3)),
        ("u c:x,y r:x r:y a", (1, 4, 5)),
        ("u c:x", (1,)),
        ("u a u c:x,y r:x s", (1, 2, 3)),
        ("u c:x,y r:x u a", (1, 3, 4, 5)),
        ("u c:x r:x r:z a", (1, 4, 5)),
        ("r:x u", (1, 2)),
        ("u r:x", (2,)),
        ("u c:x r:q", (1,)),
        ("u c:x u c:y", (1, 2, 3)),
    ],
)
def test_a_cut_is_between_groups_before_an_open_one_and_not_before_a_result(line, expected):
    """R6.3."""
    assert legal_cuts(path(line)) == expected


def links(messages):
    """Calls and their results by the letter of R6.3: each result with the assistant message that it directly follows."""
    found, missing = [], []
    for at, item in enumerate(messages, 1):
        if item.role != "assistant" or not item.calls:
            continue
        waiting = [call.id for call in item.calls]
        for behind in range(at + 1, len(messages) + 1):
            if messages[behind - 1].role != "tool":
                break
            if messages[behind - 1].answers in waiting:
                waiting.remove(messages[behind - 1].answers)
                found.append((at, behind))
        if waiting:
            missing.append(at)
    return found, missing


@given(histories)
@settings(max_examples=50)
def test_no_legal_cut_parts_a_result_from_its_call(messages):
    """R6.3, on histories of any shape, by another reading of the rule."""
    whole = path_of(messages)
    found, missing = links(whole.messages)
    cuts = legal_cuts(whole)
    assert all(not call <= cut < result for cut in cuts for call, result in found)
    for call in missing:
        if all(item.role not in ("user", "assistant") for item in whole.messages[call:]):
            assert all(cut < call for cut in cuts)
    assert list(cuts) == sorted(set(cuts))


@given(histories)
@settings(max_examples=50)
def test_steps_and_turns_partition_the_history(messages):
    """SPEC 1: in order, without gaps, and no turn divides a step."""
    whole = path_of(messages)
    parts = [(step.first, step.last) for step in steps(whole)]
    for spans in (parts, turns(whole)):
        covered = [seq for first, last in spans for seq in range(first, last + 1)]
        assert covered == list(range(1, len(whole) + 1))
    assert {first for first, _ in turns(whole)} <= {first for first, _ in parts}
    assert sum(not step.closed for step in steps(whole)) <= 1
    assert set(legal_cuts(whole)) <= {last for _, last in parts}


@given(well_formed)
@settings(max_examples=50)
def test_in_a_well_formed_history_every_end_of_a_step_is_a_legal_cut(messages):
    """R6.3: nothing blocks it."""
    whole = path_of(messages)
    assert all(step.complete for step in steps(whole))
    assert legal_cuts(whole) == tuple(step.last for step in steps(whole))


def test_real_conversations_have_only_complete_steps():
    """R6.3, on real data: 416 calls, 39 with an id used before."""
    groups = 0
    with AIRLINE.open() as lines:
        for line in lines:
            found = steps(path_of(json.loads(line)["messages"]))
            assert all(step.complete for step in found)
            groups += sum(step.has_calls for step in found)
    assert groups == 416


@pytest.mark.parametrize("line", ["u c:x r:x a ", "u ", "c:x ", "r:x ", "c:x,y,z r:z r:y r:q "])
@pytest.mark.parametrize("function", [steps, turns, turn_steps, opens_turn, current_user_run, legal_cuts])
def test_each_function_is_linear(function, line):
    """R16.2: ten times what a long session has; work that grew with the square would take minutes."""
    words = (line * 20_000).split()[:20_000]
    kinds = {word: path(word).messages[0] for word in set(words)}
    whole = Path(tuple(kinds[word] for word in words), (b"",) * 20_001, (b"",) * 20_001)
    start = time.perf_counter()
    function(whole)
    assert time.perf_counter() - start < 3
