"""Request bytes are read without being changed, and changed only where they must be (R2.2, R2.12)."""

import json
import time
from pathlib import Path

import pytest

from gateway import wire
from gateway.wire import (
    Frame,
    decode_message,
    dump_frame,
    frame_of,
    load_frame,
    read_chat_request,
    rebuild,
    splice,
    with_include_usage,
    with_messages,
)

USER = b'{"role":"user","content":"hi"}'
DATA = Path(__file__).parent.parent / "data"


def body_of(*messages, rest=b""):
    return b'{"model":"m","messages":[' + b",".join(messages) + b"]" + rest + b"}"


def read(body):
    request = read_chat_request(body)
    assert request is not None
    return request


def test_members_and_messages_are_the_clients_exact_bytes():
    body = (
        b' { "model" : "gpt" , "temperature":1.0,"seed":12345678901234567890123,\n"messages": [ '
        b'{"role": "user", "content": "caf\\u00e9 \\/"} ,\r\n{"content":"\xc3\xa9","role":"user"}\t] , "stream":true }\n'
    )
    request = read(body)
    assert request.messages == (
        b'{"role": "user", "content": "caf\\u00e9 \\/"}',
        b'{"content":"\xc3\xa9","role":"user"}',
    )
    assert rebuild(frame_of(request), request.messages) == body
    assert body[slice(*request.array)].startswith(b"[ {")
    assert body[slice(*request.array)].endswith(b"\t]")
    assert request.raw("temperature") == b"1.0"
    assert request.value("seed") == 12345678901234567890123  # exact, though above 64 bits
    assert (request.model, request.stream) == ("gpt", True)
    assert request.raw("absent") is None
    assert request.value("absent") is None


@pytest.mark.parametrize(
    ("rest", "limit", "name"),
    [
        (b"", None, None),
        (b',"max_tokens":5', 5, "max_tokens"),
        (b',"max_tokens":5,"max_completion_tokens":7', 7, "max_completion_tokens"),
        (b',"max_tokens":5,"max_completion_tokens":null', 5, "max_tokens"),
        (b',"max_tokens":"5"', None, None),
        (b',"max_tokens":5.0', None, None),
        (b',"max_tokens":true', None, None),
        (b',"max_tokens":-1', None, None),
    ],
)
def test_output_limit_is_the_newer_name_first_and_whole_numbers_only(rest, limit, name):
    request = read(body_of(USER, rest=rest))
    assert (request.output_limit, request.output_limit_name) == (limit, name)


@pytest.mark.parametrize(("rest", "n"), [(b"", 1), (b',"n":3', 3), (b',"n":0', 1), (b',"n":null', 1), (b',"n":"2"', 1)])
def test_n_is_one_unless_it_is_a_positive_number(rest, n):
    assert read(body_of(USER, rest=rest)).n == n


@pytest.mark.parametrize("value", [b"false", b"null", b"1", b'"true"'])
def test_only_true_streams(value):
    assert read(body_of(USER, rest=b',"stream":' + value)).stream is False


@pytest.mark.parametrize("model", [b"null", b"5", b'"\\ud800"'])
def test_a_model_that_is_no_text_is_none(model):
    assert read(b'{"model":' + model + b',"messages":[]}').model is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"messages":null}',
        b'{"messages":{}}',
        b'{"messages":"[]"}',
        b'{"messages":["hi"]}',
        b'{"messages":[{}, 1]}',
        b'{"messages":[{}],}',
        b'{"messages":[{}]} x',
        b'{"messages":[{}]',
        b'{"messages":[{"content":"\xff"}]}',  # no UTF-8, which raw slices alone would not notice
        b'{"messages":[{"content":"\xed\xa0\x80"}]}',
        '{"messages":[{}]}'.encode("utf-16"),
        b'{"messages":[{}],"messages":1}',
        b"\xef\xbb\xbf\xef\xbb\xbf" + body_of(USER),
    ],
)
def test_what_cannot_be_read_is_none(body):
    assert read_chat_request(body) is None  # R2.12


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b"\xef\xbb\xbf" + body_of(USER), [USER]),
        (body_of(b'{"content":"\\ud800"}', USER), [b'{"content":"\\ud800"}', USER]),
        (body_of(USER, rest=b',"x":NaN,"y":-Infinity'), [USER]),
        (b'{"messages":[],"messages":[' + USER + b"]}", [USER]),
        (b'{"messages":[1],"m\\u0065ssages":[' + USER + b"]}", [USER]),
        (
            body_of(b'{"content":' + b"[" * 5000 + b"]" * 5000 + b"}"),
            [b'{"content":' + b"[" * 5000 + b"]" * 5000 + b"}"],
        ),
        (body_of(USER, rest=b',"x":' + b'{"a":' * 5000 + b"1" + b"}" * 5000), [USER]),
        (b'{"a":1,"messages":[' + USER + b'],"a":1}', [USER]),
        (b'{"a":12,"messages":[' + USER + b'],"a":1}', [USER]),
        (b'{"messages":[],"a":1,"messages":[]}', []),
    ],
)
def test_what_fast_parsers_refuse_or_collapse_is_read(body, messages):
    request = read(body)
    assert list(request.messages) == messages  # R2.12
    assert rebuild(frame_of(request), messages) == body
    assert splice(request) == body


@pytest.mark.parametrize(
    "members",
    [
        b'"a":1,"x":2,"a":1',
        b'"a":12,"x":2,"a":1',
        b'"a":"1","x":2,"a":"1"',
        b'"a":1,"x":222,"a":{"p":1,"kkkkkkk":22}',  # lengths made so that a careless walk ends at the last brace
    ],
)
def test_no_duplicate_hides_from_the_fast_reader(members):
    request = read(b'{"messages":[],' + members + b"}")
    assert [member.name for member in request.layout] == ["messages", "a", "x", "a"]
    assert splice(request, members={"a": None, "x": None}) == b'{"messages":[]}'


def test_of_duplicate_members_the_last_counts():
    request = read(b'{"model":"a","messages":[],"model":"b"}')
    assert request.model == "b"
    assert request.raw("model") == b'"b"'


def test_a_value_equal_to_a_name_or_to_another_value_is_not_confused():
    body = b'{"messages":[{"a":"messages"},{"a":"messages"}],"model":"messages","user":"model","x":[{"a":"messages"}]}'
    request = read(body)
    assert request.model == "messages"
    assert {name: request.raw(name) for name in ("user", "x")} == {"user": b'"model"', "x": b'[{"a":"messages"}]'}
    assert request.messages == (b'{"a":"messages"}',) * 2
    assert splice(request, [b"{}", b"{}"]) == body.replace(b'{"a":"messages"},{"a":"messages"}', b"{},{}", 1)


def test_a_message_is_decoded_exactly():
    assert decode_message(b'{"a":123456789012345678901234567890,"b":-9223372036854775809}') == {
        "a": 123456789012345678901234567890,
        "b": -9223372036854775809,
    }
    assert decode_message(b'{"a":"\\ud800"}') == {"a": "\ud800"}
    assert decode_message(b"1e999") == float("inf")
    assert decode_message(b"{") is None
    assert decode_message(b"1" * 5000) is None


# --- frames (R4.1) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dump",
    [
        json.dumps,
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: json.dumps(value, indent=2),
        lambda value: json.dumps(value, indent="\t", separators=(",", ":")),
    ],
)
@pytest.mark.parametrize("key_order", [("model", "messages", "stream"), ("messages", "model", "stream")])
def test_frames_are_equal_whatever_the_number_of_messages(dump, key_order):
    """A conversation's requests share one stored frame, from its first message on."""
    frames = set()
    for count in (1, 2, 3, 50):
        values = {"model": "m", "stream": True, "messages": [{"role": "user", "content": str(i)} for i in range(count)]}
        body = dump({name: values[name] for name in key_order}).encode()
        request = read(body)
        frame = frame_of(request)
        assert rebuild(frame, request.messages) == body
        frames.add(dump_frame(frame))
    assert len(frames) == 1


@pytest.mark.parametrize(
    "array", [b"[]", b"[ ]", b"[{}]", b"[ {} ]", b"[{},{} ,{}]", b"[{}, {},\n{}\n]", b"[\n{} , {} , {} ]"]
)
def test_a_frame_and_its_messages_are_the_body(array):
    body = b'{"model":"m", "messages" :' + array + b',"n":1}'
    request = read(body)
    frame = frame_of(request)
    assert rebuild(frame, request.messages) == body
    assert load_frame(dump_frame(frame)) == frame


def test_a_frame_of_uneven_separators_refuses_another_number_of_messages():
    frame = frame_of(read(b'{"messages":[{},{} ,{}]}'))
    assert isinstance(frame.gaps, tuple)
    with pytest.raises(ValueError, match="2 messages for 2 separators"):
        rebuild(frame, [b"{}", b"{}"])


def test_a_damaged_frame_is_refused():
    data = dump_frame(Frame(b"head" * 100, (b",", b", "), b"tail"))
    for bad in (b"", b"\x01", b"\x02" + data[1:], data[:1] + b"\x07" + data[2:], data[:-1], data[:3], data + b"\x80"):
        with pytest.raises(ValueError, match="frame"):
            load_frame(bad)


# --- splices (R2.2) ------------------------------------------------------------------------------------------------


def test_other_messages_leave_every_other_byte():
    body = b'{ "model":"m" ,"messages": [ {"a":1.0} , {"b":2} ], "x": 1.0}'
    request = read(body)
    assert with_messages(request, [b'{"b":2}', b'{"c":3}', b'{"d":4}']) == (
        b'{ "model":"m" ,"messages": [ {"b":2} , {"c":3} , {"d":4} ], "x": 1.0}'
    )
    assert with_messages(request, []) == b'{ "model":"m" ,"messages": [  ], "x": 1.0}'
    assert with_messages(request, request.messages) == body


def test_equal_messages_keep_uneven_separators():
    body = b'{"messages":[{},{} ,{}]}'
    request = read(body)
    assert with_messages(request, list(request.messages)) == body
    assert with_messages(request, [b"{}", b'{"a":1}']) == b'{"messages":[{},{"a":1}]}'


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"a": b"2"}, b'{"a":2 , "messages":[],"b":true}'),
        ({"b": None}, b'{"a":1 , "messages":[]}'),
        ({"a": None}, b'{"messages":[],"b":true}'),
        ({"a": None, "b": None}, b'{"messages":[]}'),
        ({"new": b"[]"}, b'{"a":1 , "messages":[],"b":true,"new":[]}'),
        ({"b": None, "new": b"[]", "c\n": b"0"}, b'{"a":1 , "messages":[],"new":[],"c\\n":0}'),
        ({"a": None, "b": b"0", "new": b"1"}, b'{"messages":[],"b":0,"new":1}'),
        ({"absent": None}, b'{"a":1 , "messages":[],"b":true}'),
        ({}, b'{"a":1 , "messages":[],"b":true}'),
    ],
)
def test_members_are_set_added_and_removed(changes, expected):
    request = read(b'{"a":1 , "messages":[],"b":true}')
    assert splice(request, members=changes) == expected


def test_duplicates_are_replaced_where_they_count_and_removed_everywhere():
    request = read(b'{"x":1,"x":2,"messages":[],"y":0,"x":3}')
    assert splice(request, members={"x": b"9"}) == b'{"x":1,"x":2,"messages":[],"y":0,"x":9}'
    assert splice(request, members={"x": None}) == b'{"messages":[],"y":0}'


def test_messages_and_members_change_together():
    request = read(body_of(USER, rest=b',"stream":true'))
    assert splice(request, [USER, b'{"x":1}'], {"stream": None, "model": b'"n"', "tools": b"[]"}) == (
        b'{"model":"n","messages":[' + USER + b',{"x":1}],"tools":[]}'
    )


def test_messages_are_no_member_to_set():
    with pytest.raises(ValueError, match="messages"):
        splice(read(body_of(USER)), members={"messages": b"[]"})


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (b"", b'{"include_usage":true}'),
        (b',"stream_options":null', b'{"include_usage":true}'),
        (b',"stream_options":{ }', b'{"include_usage":true}'),
        (b',"stream_options":{"a" : 1.0}', b'{"a" : 1.0,"include_usage":true}'),
        (b',"stream_options":{"include_usage" : false, "a":1}', b'{"include_usage" : true, "a":1}'),
        (b',"stream_options":{"include_usage":null}', b'{"include_usage":true}'),
        (b',"stream_options":{"include_usage":true}', None),
        (b',"stream_options":true', None),
        (b',"stream_options":[]', None),
        (b',"stream_options":"x"', None),
    ],
)
def test_usage_is_asked_for_unless_the_client_asks(rest, expected):
    assert with_include_usage(read(body_of(USER, rest=rest))) == expected  # R2.5


# --- real requests, and speed --------------------------------------------------------------------------------------


def test_a_real_conversation_is_split_like_the_standard_reader_does():
    for line in (DATA / "wire_conversation.jsonl").read_bytes().splitlines():
        request = read(line)
        assert [decode_message(raw) for raw in request.messages] == json.loads(line)["messages"]
        assert rebuild(frame_of(request), request.messages) == line


def test_a_long_request_is_read_in_time_linear_in_its_length():
    """Generous bounds, for slow machines; the benchmark holds the real ones (R16.2)."""
    message = json.dumps({"role": "user", "content": "x" * 1900}).encode()
    body = body_of(*[message] * 4000)
    began = time.process_time()
    assert len(read(body).messages) == 4000
    assert time.process_time() - began < 0.5


def test_the_fast_reader_takes_ordinary_requests(monkeypatch):
    """The slow reader is not needed for escapes, odd white space or big integers."""
    monkeypatch.setattr(wire.spans, "object_members", None)
    monkeypatch.setattr(wire.spans, "array_elements", None)
    body = b' {"a\\u0062" : "\\"}" ,"messages":[ {"x":"]"} ,{"y":123456789012345678901234567890}]\n}'
    assert len(read(body).messages) == 2
