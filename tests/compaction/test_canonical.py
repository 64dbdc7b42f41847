"""The canonical form, the chain, and how an echo is recognised (R3.2, R3.3, R3.7)."""

import json
from hashlib import sha256
from pathlib import Path as File

import pytest

from compaction.canonical import read_message
from compaction.canonical_json import MAX_DEPTH
from tests.compaction.messages import assistant, call, canon, image, nested, read, text, tool, user

AIRLINE = File(__file__).parents[1] / "data" / "conversations" / "tau-airline.jsonl"
MARK = {"cache_control": {"type": "ephemeral"}}

EQUAL = {
    "null keys": (assistant("a"), assistant("a", refusal=None, annotations=None, audio=None, function_call=None, tool_calls=None)),
    "empty keys": (assistant("a"), assistant("a", refusal="", annotations=[], audio={}, function_call={}, tool_calls=[])),
    "parsed": (assistant("a"), assistant("a", parsed={"x": 1})),
    "parsed arguments": (
        assistant(None, call()),
        assistant(None, {"id": "c1", "function": {"name": "look", "arguments": "{}", "parsed_arguments": {}}}),
    ),
    "index": (assistant(None, call()), assistant(None, call(index=0))),
    "cache mark of a message": (user("a"), user("a", **MARK)),
    "cache mark of a part": (user([text("a")]), user([text("a", prompt_cache_breakpoint=True, **MARK)])),
    "cache mark inside a part": (
        user([{"type": "file", "file": {"file_id": "f"}}]),
        user([{"type": "file", "file": {"file_id": "f", **MARK}, **MARK}]),
    ),
    "cache mark of a call": (assistant(None, call()), assistant(None, call(**MARK))),
    "reasoning": (
        assistant("a"),
        assistant("a", reasoning="r", reasoning_content="r", reasoning_details=[1], thinking_blocks=[{"signature": "s"}]),
    ),
    "vendor fields": (assistant("a"), assistant("a", provider_specific_fields={"x": 1}, extra_content={"y": 2})),
    "signature of a call": (
        assistant(None, call()),
        assistant(None, call(extra_content={"google": {"thought_signature": "s"}})),
    ),
    "unknown key": (user("a"), user("a", id="msg_1", timestamp=5)),
    "unknown key of a text part": (user([text("a")]), user([text("a", id=1)])),
    "name of an assistant": (assistant("a"), assistant("a", name="bot")),
    "name of a tool": (tool("c", "a"), tool("c", "a", name="look")),
    "null name of a user": (user("a"), user("a", name=None)),
    "detail": (user([image("u")]), user([image("u", detail="high")])),
    "file name": (
        user([{"type": "file", "file": {"file_data": "d", "filename": "a.pdf"}}]),
        user([{"type": "file", "file": {"file_data": "d", "filename": "b.pdf"}}]),
    ),
    "developer": ({"role": "system", "content": "s"}, {"role": "developer", "content": "s"}),
    "function": (tool("look", "r"), {"role": "function", "name": "look", "content": "r"}),
    "string and text part": (user("ab"), user([text("ab")])),
    "adjacent text parts": (user("ab"), user([text("a"), text("b")])),
    "text parts around an image": (user([text("ab"), image("u")]), user([text("a"), text("b"), image("u")])),
    "empty list": (user(""), user([])),
    "null content beside calls": (assistant(None, call()), assistant("", call())),
    "missing content beside calls": (assistant(None, call()), {"role": "assistant", "tool_calls": [call()]}),
    "empty parts beside calls": (assistant(None, call()), assistant([text("")], call())),
    "CRLF": (user("a\r\nb"), user("a\nb")),
    "CRLF across parts": (user("a\nb"), user([text("a\r"), text("\nb")])),
    "key order": (assistant(None, call('{"a":1,"b":2}')), assistant(None, call('{ "b" : 2, "a" : 1 }'))),
    "escapes": (assistant(None, call('{"é":"\\u00e9"}')), assistant(None, call('{"\\u00e9":"é"}'))),
    "empty arguments": (assistant(None, call("")), assistant(None, call("{}"))),
    "blank arguments": (assistant(None, call(" ")), assistant(None, call("{ }"))),
    "null arguments": (assistant(None, call(None)), assistant(None, call("{}"))),
    "arguments as an object": (assistant(None, call({"a": 1})), assistant(None, call('{"a": 1}'))),
    "whole double": (assistant(None, call('{"a":1.0}')), assistant(None, call('{"a":1}'))),
    "exponent": (assistant(None, call('{"a":1e3}')), assistant(None, call('{"a":1000}'))),
    "negative zero": (assistant(None, call('{"a":-0.0}')), assistant(None, call('{"a":0}'))),
    "doubles": (assistant(None, call('{"a":0.1}')), assistant(None, call('{"a":0.1000000000000000055}'))),
    "unparsable arguments": (assistant(None, call('{"a":')), assistant(None, call(' {"a":\n'))),
    "call id": (assistant(None, call(call_id="c1")), assistant(None, call(call_id="other"))),
    "legacy call": (
        assistant(None, call('{"a": 1}')),
        assistant(None, function_call={"name": "look", "arguments": '{"a":1}'}),
    ),
    "number in a part": (user([{"type": "clip", "fps": 1.0}]), user([{"fps": 1, "type": "clip"}])),
    "call of an unknown type": (
        assistant(None, {"id": "a", "index": 1, "type": "mcp", "mcp": {"id": 1}}),
        assistant(None, {"id": "b", "type": "mcp", "mcp": {"id": 1}}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL.keys())
def test_what_says_the_same_has_the_same_canonical_form(pair):
    """R3.2: ignored and equal."""
    assert canon(pair[0]) == canon(pair[1])


DIFFERENT = {
    "role": (user("a"), {"role": "system", "content": "a"}),
    "unknown roles": ({"role": "critic", "content": "a"}, {"role": "judge", "content": "a"}),
    "case": (user("a"), user("A")),
    "outer white space": (user("a"), user("a ")),
    "inner white space": (user("a b"), user("a  b")),
    "lone CR": (user("a\rb"), user("a\nb")),
    "user name": (user("a", name="x"), user("a", name="y")),
    "end of the user name": (user("b", name="at"), user("tb", name="a")),
    "user name and text": (user("bc", name="a"), user("c", name="ab")),
    "order of parts": (user([text("a"), image("u")]), user([image("u"), text("a")])),
    "text around an image": (user([text("a"), image("u"), text("b")]), user([text("ab"), image("u")])),
    "image": (user([image("u")]), user([image("v")])),
    "file bytes, same name": (
        user([{"type": "file", "file": {"file_data": "d", "filename": "a.pdf"}}]),
        user([{"type": "file", "file": {"file_data": "e", "filename": "a.pdf"}}]),
    ),
    "file id": (user([{"type": "file", "file": {"file_id": "1"}}]), user([{"type": "file", "file": {"file_id": "2"}}])),
    "part of unknown type": (user([{"type": "clip", "x": 1}]), user([{"type": "clip", "x": 2}])),
    "format of audio": (
        user([{"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}}]),
        user([{"type": "input_audio", "input_audio": {"data": "d", "format": "mp3"}}]),
    ),
    "text part and its JSON as text": (user([image("u")]), user(json.dumps(image("u")))),
    "64-bit integers": (
        assistant(None, call('{"id":9007199254740993}')),
        assistant(None, call('{"id":9007199254740992}')),
    ),
    "integer and the double it rounds to": (
        assistant(None, call('{"id":9007199254740993}')),
        assistant(None, call('{"id":9007199254740993.0}')),
    ),
    "integer and double from 2**53 on": (
        assistant(None, call('{"id":9007199254740992}')),
        assistant(None, call('{"id":9007199254740992.0}')),
    ),
    "integers beyond 64 bits": (
        assistant(None, call('{"id":123456789012345678901234567890}')),
        assistant(None, call('{"id":123456789012345678901234567891}')),
    ),
    "true and 1": (assistant(None, call('{"a":true}')), assistant(None, call('{"a":1}'))),
    "string and number": (assistant(None, call('{"a":"1"}')), assistant(None, call('{"a":1}'))),
    "cache mark as an argument": (assistant(None, call('{"cache_control":1}')), assistant(None, call("{}"))),
    "CRLF inside arguments": (assistant(None, call('{"a":"\\r\\n"}')), assistant(None, call('{"a":"\\n"}'))),
    "order of arguments in a list": (assistant(None, call("[1,2]")), assistant(None, call("[2,1]"))),
    "call name": (assistant(None, call(name="a")), assistant(None, call(name="b"))),
    "order of calls": (assistant(None, call("[1]"), call("[2]")), assistant(None, call("[2]"), call("[1]"))),
    "one call more": (assistant(None, call()), assistant(None, call(), call())),
    "text beside calls": (assistant("a", call()), assistant(None, call())),
    "name and arguments": (assistant(None, call("b", "a")), assistant(None, call("", "ab"))),
    "null content and none, no calls": (assistant(None), assistant("")),
    "refusal": (assistant(None, refusal="No."), assistant(None)),
    "audio": (assistant(None, audio={"id": "a"}), assistant(None, audio={"id": "b"})),
    "annotations": (assistant("a", annotations=[{"url": "u"}]), assistant("a")),
    "custom tool": (
        assistant(None, {"id": "c", "type": "custom", "custom": {"name": "look", "input": "{}"}}),
        assistant(None, call()),
    ),
    "input of a custom tool": (
        assistant(None, {"id": "c", "type": "custom", "custom": {"name": "look", "input": "a"}}),
        assistant(None, {"id": "c", "type": "custom", "custom": {"name": "look", "input": "b"}}),
    ),
    "lone surrogates": (user("\ud800"), user("\ud801")),
    "lone surrogate and replacement": (user("\ud800"), user("\ufffd")),
    "odd call lists": (assistant(None, tool_calls={"a": 1}), assistant(None, tool_calls={"a": 2})),
    "odd legacy calls": (assistant(None, function_call="a"), assistant(None, function_call="b")),
    "odd calls": (assistant(None, None), assistant(None, 5)),
    "odd contents": (user(5), user(6)),
    "odd refusals": (assistant(None, refusal=[1]), assistant(None, refusal=[2])),
    "unknown keys of an unknown role": ({"role": "critic", "x": 1}, {"role": "critic", "x": 2}),
}  # fmt: skip


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_counts_changes_the_canonical_form(pair):
    """R3.2: counting."""
    assert canon(pair[0]) != canon(pair[1])


@pytest.mark.parametrize("value", [None, 5, "text", [1], [], True])
def test_a_value_that_is_no_object_is_read_by_its_bytes(value):
    """R2.12, R3.2."""
    reading = read(value)
    assert (reading.role, reading.calls, reading.answers, reading.loose) == ("", (), None, b"")
    assert reading.canon != read_message(value, b"other bytes").canon
    assert reading.sha256 == sha256(json.dumps(value).encode()).digest()


@pytest.mark.parametrize(
    ("role", "read_as"),
    [("developer", "system"), ("function", "tool"), ("critic", "critic"), (None, ""), (["user"], ""), ("", "")],
)
def test_the_role_is_as_sent_but_for_old_names(role, read_as):
    """R3.2."""
    assert read({"role": role, "content": "a"}).role == read_as


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1, MAX_DEPTH + 1, 900, 100_000])
def test_deep_arguments_are_read_and_told_apart(depth):
    """R2.12: nesting never raises."""
    one, other = (assistant(None, call(nested(depth).replace("1", digit))) for digit in "12")
    assert canon(one) != canon(other)
    assert canon(one) == canon(json.loads(json.dumps(one)))


def test_whether_arguments_are_too_deep_does_not_depend_on_brackets_in_strings():
    """R3.2: many brackets are no depth."""
    many = json.dumps({"code": "{" * 500, "a": 1})
    assert canon(assistant(None, call(many))) == canon(assistant(None, call(many.replace(" ", ""))))


def deep_value(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_message_nested_too_deep_is_read_by_its_bytes_with_its_calls():
    """R2.12: and groups still find what belongs together."""
    message = assistant(
        [{"type": "x", "x": deep_value(50_000)}], call(call_id="c7", name="f"), None, function_call={"name": "g"}
    )
    one, other = read_message(message, b"bytes"), read_message(message, b"other bytes")
    assert one.canon != other.canon
    assert one.loose != other.loose
    assert [(found.id, found.name) for found in one.calls] == [("c7", "f"), ("", ""), ("g", "g")]
    assert read_message(tool("c7", [deep_value(50_000)]), b"x").answers == "c7"
    assert read_message({"role": "assistant", "tool_calls": deep_value(500)}, b"x").calls == (
        read(assistant(None, 1)).calls
    )


def test_an_integer_too_long_to_convert_is_read():
    """R2.12."""
    digits = "1" * 5000
    assert canon(assistant(None, call(f'{{"a":{digits}}}'))) != canon(assistant(None, call(f'{{"a":{digits}1}}')))
    message = user([{"type": "x", "x": 10**5000}])
    assert read_message(message, b"a").canon != read_message(message, b"b").canon


# Texts, media, marks


def test_texts_are_all_that_is_counted():
    """R5.3: texts, names, call names and arguments; reasoning carriers are not."""
    message = assistant([text("a"), text("b")], call('{"x": 1}'), refusal="No.", reasoning_content="hidden")
    assert read(message).texts == ("ab", "No.", "look", '{"x": 1}')
    assert read(user("hi", name="anna")).texts == ("anna", "hi")
    assert read(tool("c", "found", name="look")).texts == ("found",)
    assert read(assistant(None, call({"x": 1.0}))).texts == ("look", '{"x":1}')
    assert read(assistant(None, {"id": "c", "custom": {"name": "n", "input": "i"}})).texts == ("n", "i")
    assert read(user("")).texts == ()


def test_base64_of_typed_parts_is_never_text():
    """R5.3."""
    data = "iVBORw0K" * 1000
    parts = [
        image(f"data:image/png;base64,{data}"),
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "file", "file": {"file_data": data, "filename": "a.pdf"}},
        {"type": "unheard_of", "payload": data, "note": "seen", "cache_control": {"ttl": "1h"}},
        {"type": "unheard_of", "url": f"data:x/y;base64,{data[:8]}"},
    ]
    reading = read(user([text("look"), *parts]))
    assert reading.texts == ("look", "seen")
    assert [kind for kind, _ in reading.media] == ["image", "audio", "file", "file", "file"]
    assert reading.media[3] == ("file", 6000)
    assert 6000 <= reading.media[1][1] <= 6010


def test_base64_in_a_text_is_text():
    """R5.3: the model reads it as such."""
    data = "data:image/png;base64," + "iVBORw0K" * 1000
    assert read(user(data)).texts == (data,)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
def test_a_part_without_what_its_type_says_is_read(kind):
    """R2.12."""
    assert read(user([{"type": kind}, {"type": kind, kind: "x"}])).media[0][1] == 0


@pytest.mark.parametrize(
    "part", ["text", None, {"type": ["text"]}, {"type": "text"}, {"type": "text", "text": None}, {}]
)
def test_an_odd_part_is_hashed_whole(part):
    """R3.2: parts of unknown type."""
    assert canon(user([part])) != canon(user([]))


def test_the_last_cache_mark_is_found_with_its_ttl():
    """R12.1."""
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert read(user([text("a", **MARK), text("b", **hour), text("c")])).cache_mark == '{"type":"ephemeral","ttl":"1h"}'
    assert read(tool("c", "a", **MARK)).cache_mark == '{"type":"ephemeral"}'
    assert read(user("cache_control")).cache_mark is None
    assert read(user("a", cache_control=None)).cache_mark is None


def test_a_reading_becomes_a_message_once_its_tokens_are_known():
    """SPEC 5: everything else is taken over."""
    reading = read(assistant("a", call()))
    message = reading.message(42)
    assert message.tokens == 42
    for name in ("role", "sha256", "canon", "loose", "size", "calls", "answers", "cache_mark"):
        assert getattr(message, name) == getattr(reading, name)
