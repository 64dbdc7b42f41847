"""The slow reader reads what the fast ones refuse, exactly (R2.12)."""

import json
import math
import time

import pytest

from gateway import spans
from gateway.spans import NotJsonError

VALID = [
    "{}",
    "[]",
    " [ ] ",
    '{"a":1}',
    ' {"a" : [1, 2.0, -0, -1.5e+10] , "b":{"c":null,"d":true,"e":false}}\r\n\t',
    '["\\u00e9\\n\\"\\\\\\/\\ud83d\\ude00", "é😀", ""]',
    "[123456789012345678901234567890, -9223372036854775809, 18446744073709551616]",
    "[NaN, Infinity, -Infinity, 1e999]",
    '{"a":1,"b":2,"a":3}',
    '["\\ud800", {"\\udfff": "x\\ud800"}]',
    "[[[[]]],{},[{}]]",
    '"text"',
    "0",
]

INVALID = [
    "",
    " ",
    "{",
    "[1,]",
    "[,1]",
    "[1 2]",
    '{"a":1,}',
    '{"a" 1}',
    '{"a":}',
    "{1:2}",
    "[}",
    "{]",
    "[[}]",
    "[1}",
    '{"a":1]',
    "[01]",
    "[1.]",
    "[.5]",
    "[+1]",
    "[-]",
    "[1e]",
    "[tru]",
    "[truex]",
    '["a]',
    '["\n"]',
    '["\\x"]',
    '["\\u12"]',
    "['a']",
    "[1]]",
    "{} {}",
    "[1] x",
    "[-NaN]",
    "[nan]",
]


@pytest.mark.parametrize("text", VALID)
def test_values_are_those_of_the_standard_reader(text):
    assert repr(spans.decode(text.encode())) == repr(json.loads(text))  # R2.12


@pytest.mark.parametrize("text", INVALID)
def test_what_is_not_json_is_refused_by_every_reading(text):
    data = text.encode()
    for read in (spans.decode, spans.array_elements, spans.object_members):
        with pytest.raises(NotJsonError):
            read(data)


def test_invalid_utf8_is_refused():
    with pytest.raises(NotJsonError):
        spans.decode(b'["\xff"]')


def test_members_come_with_exact_spans_duplicates_included():
    text = b' {"a" : {"b":[1,{"a":0}]} ,\n"\\u0061":"x" , "c":[ ]}\n'
    members = spans.object_members(text)
    assert [member.name for member in members] == ["a", "a", "c"]
    assert [text[member.start : member.end] for member in members] == [b'{"b":[1,{"a":0}]}', b'"x"', b"[ ]"]
    assert [text[member.key : member.key + 1] for member in members] == [b'"'] * 3


def test_elements_come_with_exact_spans():
    text = b'[ 1 , [2,[3]],{"a":[4]} ,"]" ]'
    assert [text[start:end] for start, end in spans.array_elements(text)] == [b"1", b"[2,[3]]", b'{"a":[4]}', b'"]"']


def test_another_kind_of_value_is_refused():
    for read, text in ((spans.array_elements, b"{}"), (spans.object_members, b"[]"), (spans.object_members, b"1")):
        with pytest.raises(NotJsonError, match="another kind"):
            read(text)


def test_depth_has_no_limit_and_costs_linear_time():
    """No recursion: twenty thousand levels, where other readers stop at a thousand."""
    depth = 20_000
    text = b"[" * depth + b"1" + b"]" * depth
    value = spans.decode(text)
    for _ in range(depth):
        (value,) = value
    assert value == 1
    assert spans.array_elements(text) == ((1, len(text) - 1),)


def test_many_values_are_left_to_the_provider(monkeypatch):
    """The bound keeps one body from holding up all other requests."""
    monkeypatch.setattr(spans, "_MOST_TOKENS", 100)
    assert len(spans.array_elements(b"[" + b"1," * 50 + b"1]")) == 51
    with pytest.raises(NotJsonError, match="too many"):
        spans.array_elements(b"[" + b"1," * 200 + b"1]")


def test_an_integer_is_exact_or_refused_never_rounded():
    assert spans.decode(b"1" * 4_000) == int("1" * 4_000)
    with pytest.raises(NotJsonError):
        spans.decode(b"1" * 5_000)


def test_not_a_number_is_read():
    assert math.isnan(spans.decode(b"[NaN]")[0])


@pytest.mark.parametrize("piece", ["\\n", "\\\\", "é", "a"])
def test_a_long_string_takes_linear_time(piece):
    """Possessive matching: an unclosed string of a megabyte fails at once."""
    began = time.process_time()
    with pytest.raises(NotJsonError):
        spans.decode(('["' + piece * 500_000).encode())
    assert time.process_time() - began < 2
