"""The chain of digests, and how an echo is recognised (R3.3, R3.7)."""

import json
import time
from pathlib import Path as File

import pytest

from compaction.canonical import (
    begin_chain,
    build_path,
    extend_chain,
    is_truncation_of,
    loose_text,
    read_message,
    root_digest,
)
from tests.compaction.messages import assistant, call, image, loose, path, text, tool, user

AIRLINE = File(__file__).parents[1] / "data" / "conversations" / "tau-airline.jsonl"
MARK = {"cache_control": {"type": "ephemeral"}}

# The chain


def test_the_root_is_the_tenants():
    """R3.1, R3.3."""
    assert path(tenant="a").digests == (root_digest("a"),) != (root_digest("b"),)
    assert path(tenant="a").nodes[0] not in (path(tenant="b").nodes[0], root_digest("a"))
    assert len(root_digest("\ud800")) == 32


def test_a_result_is_linked_to_its_call_by_place_and_not_by_id():
    """R3.2: ids are linkage only. Case 11, case 21."""

    def pair(one, two):
        return path(assistant(None, call(call_id=one), call(call_id=two)), tool(one, "a"), tool(two, "b"))

    assert pair("x", "y").digests == pair("call_0", "call_1").digests


def test_results_in_another_order_or_of_another_call_are_another_history():
    """R3.2: order, linkage."""
    calls = assistant(None, call(call_id="x"), call(call_id="y"))
    linked = [
        path(calls, tool("x"), tool("y")),
        path(calls, tool("y"), tool("x")),
        path(calls, tool("z"), tool("y")),
        path(calls, tool("z"), tool("z")),
        path(calls, tool("x"), tool("x")),
        path(calls, tool("x"), {"role": "tool", "content": "found"}),
    ]
    assert len({found.digests[-1] for found in linked[:3]}) == 3
    assert linked[4].digests == linked[5].digests  # a second result for a call answers none
    assert len({found.digests[-1] for found in linked}) == 5


def test_a_reused_id_means_the_latest_open_call():
    """R3.2: the k-th call, whatever it is called; several with one id are answered in order."""
    reused = path(assistant(None, call(call_id="x")), user("again"), assistant(None, call(call_id="x")), tool("x"))
    distinct = path(assistant(None, call(call_id="a")), user("again"), assistant(None, call(call_id="b")), tool("b"))
    first = path(assistant(None, call(call_id="a")), user("again"), assistant(None, call(call_id="b")), tool("a"))
    assert reused.digests == distinct.digests != first.digests
    among = path(assistant(None, call(call_id="x")), assistant(None, call(call_id="x"), call(call_id="y")), tool("x"))
    known = path(assistant(None, call(call_id="a")), assistant(None, call(call_id="b"), call(call_id="c")), tool("b"))
    assert among.digests == known.digests
    twice = path(assistant(None, call(call_id="x"), call(call_id="x")), tool("x"), tool("x"))
    named = path(assistant(None, call(call_id="a"), call(call_id="b")), tool("a"), tool("b"))
    assert twice.digests == named.digests


def test_a_legacy_call_is_linked_by_its_name():
    """R3.2: `function` and `tool` are equal."""
    legacy = path(
        assistant(None, function_call={"name": "look", "arguments": ""}),
        {"role": "function", "name": "look", "content": "found"},
    )
    assert legacy.digests == path(assistant(None, call(call_id="c9")), tool("c9")).digests


def conversations():
    with AIRLINE.open() as lines:
        return [json.loads(line)["messages"] for line in lines]


def renamed(messages):
    """Every call gets an id of its own; each result directly follows its call."""
    count, waiting, out = 0, {}, []
    for message in json.loads(json.dumps(messages)):
        for found in message.get("tool_calls") or ():
            count += 1
            waiting[found["id"]] = found["id"] = f"unique_{count}"
        if message["role"] == "tool":
            message["tool_call_id"] = waiting[message["tool_call_id"]]
        out.append(message)
    return out


def test_conversations_that_reuse_ids_pair_by_position():
    """R3.2, on real data: 39 calls carry the id of an earlier one."""
    reused = 0
    for messages in conversations():
        ids = [found["id"] for message in messages for found in message.get("tool_calls") or ()]
        reused += len(ids) - len(set(ids))
        assert path(*renamed(messages)).digests == path(*messages).digests
    assert reused == 39


def test_equal_prefixes_of_real_conversations_are_equal_and_no_more():
    """R3.4: 40 conversations open with the same system message and then differ."""
    paths = [path(*messages) for messages in conversations()]
    assert len({found.digests[1] for found in paths}) == 1
    assert len({found.digests[-1] for found in paths}) == 40


def test_a_long_history_is_chained_in_linear_time():
    """R16.2: ten times what a long session has; work that grew with the square would take minutes."""
    kinds = path(user("u"), assistant(None, call()), tool("c1")).messages
    assert _seconds(lambda: build_path("t", kinds * 7000)) < 3


def _seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# Echoes

LOOSELY_EQUAL = {
    "outer white space": (assistant("a"), assistant("\n a ")),
    "think block": (assistant("<think>hm\n</think>\n\na"), assistant("a")),
    "thinking block": (assistant("a <Thinking>hm</Thinking>b"), assistant("a b")),
    "thinking part": (assistant([{"type": "thinking", "thinking": "hm"}, text("a")]), assistant("a")),
    "blanked text beside calls": (assistant("I will look.", call()), assistant("", call())),
    "arguments": (assistant(None, call('{"a":1}')), assistant("x", call('{ "a" : 1.0 }', call_id="z"))),
    "annotations": (assistant("a", annotations=[{"url": "u"}]), assistant("a")),
    "audio by id": (assistant(None, audio={"id": "a", "data": "d", "transcript": "t"}), assistant(None, audio={"id": "a"})),
    "refusal as a part": (assistant(None, refusal="No."), assistant([{"type": "refusal", "refusal": "No."}])),
    "refusal as text": (assistant(None, refusal="No."), assistant("No.")),
    "null and empty": (assistant(None), assistant("")),
}  # fmt: skip


@pytest.mark.parametrize("pair", LOOSELY_EQUAL.values(), ids=LOOSELY_EQUAL.keys())
def test_an_echo_is_recognised_loosely(pair):
    """R3.7."""
    assert loose(pair[0]) == loose(pair[1])


LOOSELY_DIFFERENT = {
    "text": (assistant("a"), assistant("b")),
    "call": (assistant(None, call("[1]")), assistant(None, call("[2]"))),
    "call and text": (assistant("a", call()), assistant("a")),
    "part": (assistant([image("u")]), assistant([image("v")])),
    "audio": (assistant(None, audio={"id": "a"}), assistant(None, audio={"id": "b"})),
    "odd audio": (assistant(None, audio=["a"]), assistant(None, audio=["b"])),
}  # fmt: skip


@pytest.mark.parametrize("pair", LOOSELY_DIFFERENT.values(), ids=LOOSELY_DIFFERENT.keys())
def test_an_edited_echo_is_not(pair):
    """R3.7."""
    assert loose(pair[0]) != loose(pair[1])


def test_only_an_assistant_message_has_a_loose_form():
    """R3.7."""
    assert [loose(message) for message in (user("a"), tool("c"), {"role": "system", "content": "s"})] == [b"", b"", b""]


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        ("<think>hm</think> a", "a"),
        ("hm</think> a", "a"),
        ("<think>never closed", "<think>never closed"),
        ("a <reasoning>x</reasoning> b <think>y</think>", "a  b"),
        ("<think>a <thinking>b</thinking> c</think>d", "d"),
        ("<think>x</think>a</think>b", "a</think>b"),
        ("a</b>", "a</b>"),
        ("<thinker>a</thinker>", "<thinker>a</thinker>"),
        ("\r\na\r\nb", "a\nb"),
        ("", ""),
    ],
)  # fmt: skip
def test_think_blocks_are_removed(sent, left):
    """R3.7."""
    assert loose_text(sent) == left


def test_think_blocks_are_removed_in_linear_time():
    """R16.2: a megabyte of opening tags."""
    assert _seconds(lambda: loose_text("<think>" * 150_000 + "</")) < 2


@pytest.mark.parametrize(
    ("echo", "reply", "expected"),
    [
        ("Hello wo", "Hello world", True),
        ("Hello ", "Hello world", True),
        ("Hello world", "Hello world", True),
        ("Hello you", "Hello world", False),
        ("Hello world!", "Hello world", False),
        ("Hel", "<think>hm</think>Hello", True),
        ("<think>h", "<think>hm</think>Hello", True),
        ("a\r\nb", "a\nbc", True),
        ("", "Hello", False),
        (" ", "", False),
        ("x", "", False),
    ],
)
def test_a_reply_cut_short_is_recognised(echo, reply, expected):
    """R3.7: truncated to what was delivered. Case 10."""
    assert is_truncation_of(echo, reply) is expected


def test_a_chain_extended_in_any_steps_is_the_whole_chain():
    """R16.2: what an earlier request's chain holds need not be made again, and gives the same path."""
    for messages in conversations()[:6]:
        read_ones = [
            read_message(message, json.dumps(message).encode()).message(index) for index, message in enumerate(messages)
        ]
        whole = build_path("t", read_ones)
        for step in (1, 3, 7):
            chain = begin_chain("t")
            for start in range(0, len(read_ones), step):
                chain = extend_chain(chain, read_ones[start : start + step])
            assert chain.path == whole
            assert chain.path.tokens(3, 9) == sum(range(2, 9))
