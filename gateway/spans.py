"""The slow, exact reader of JSON text: any depth, lone surrogates, NaN, a byte order mark, duplicate names (R2.12).

One tokenizer holds the grammar: RFC 8259 plus `NaN` and `Infinity`, as most providers' own parsers read it. It keeps
its own stack, so depth costs memory and never recursion, and every byte is looked at once. Spans and values are two
readings of the same tokens. About 0.1 ms per 10 kB of long strings, 3 us per small value.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

BOM = b"\xef\xbb\xbf"

_WHITE = rb"[ \t\n\r]*+"
_STRING_TEXT = rb'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_PLAIN = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|-?Infinity|NaN|true|false|null"

_match_value = re.compile(_WHITE + rb"(?:([\[{])|(" + _STRING_TEXT + rb")|(" + _PLAIN + rb"))").match
_match_key = re.compile(_WHITE + rb"(" + _STRING_TEXT + rb")" + _WHITE + rb":").match
_match_next = re.compile(_WHITE + rb"([,\]}])").match
_match_white = re.compile(_WHITE).match

_CONSTANTS: dict[bytes, Any] = {b"true": True, b"false": False, b"null": None}
_OBJECT, _ARRAY = ord("}"), ord("]")

# About two seconds of one core. A body beyond is left to the provider: no client may hold up all others.
_MOST_TOKENS = 500_000


class NotJsonError(ValueError):
    """The text is not JSON, or not of the kind that was asked for."""


class Member(NamedTuple):
    """One member of an object: its decoded name, where its name begins, and the span of its value."""

    name: str
    key: int
    start: int
    end: int


# Kinds of token; the first three are the groups of _match_value. Plain integers, since an enum halves the speed.
_OPEN, _STRING, _SCALAR, _CLOSE, _KEY = 1, 2, 3, 4, 5
Span = tuple[int, int]
_Token = tuple[int, int, int]


def object_members(text: bytes, at: int = 0) -> tuple[Member, ...]:
    """All members, duplicates too, of the object that is the only value of `text` from `at` on.

    Raises `NotJsonError` if there is none, or anything but white space behind it.
    """
    found = []
    for key, start, end in _children(text, at, b"{"):
        name = _string(text[key[0] : key[1]])
        found.append(Member(name, key[0], start, end))
    return tuple(found)


def array_elements(text: bytes) -> tuple[tuple[int, int], ...]:
    """The span of each element of the array that is the only value of `text`. Raises `NotJsonError`."""
    return tuple((start, end) for _, start, end in _children(text, 0, b"["))


def decode(text: bytes) -> Any:
    """The value of `text`, at any depth; integers exact, other numbers as doubles, the last of duplicate names.

    Raises `NotJsonError`, also for an integer longer than Python converts (4,300 digits).
    """
    root: list[Any] = []
    stack: list[list[Any] | dict[str, Any]] = [root]
    names: list[str] = []
    end = 0
    for kind, start, end in _tokens(text, 0):
        if kind == _KEY:
            names.append(_string(text[start:end]))
            continue
        if kind == _CLOSE:
            stack.pop()
            continue
        value = _value(kind, text[start:end])
        holder = stack[-1]
        if isinstance(holder, dict):
            holder[names.pop()] = value
        else:
            holder.append(value)
        if kind == _OPEN:
            stack.append(value)
    _only_white_behind(text, end)
    return root[0]


def _value(kind: int, token: bytes) -> Any:
    if kind == _OPEN:
        return {} if token == b"{" else []
    if kind == _STRING:
        return _string(token)
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if token.lstrip(b"-").isdigit():
        try:
            return int(token)
        except ValueError as error:
            raise NotJsonError(str(error)) from error
    return float(token)


def _string(token: bytes) -> str:
    try:
        text = token.decode()
    except UnicodeDecodeError as error:
        raise NotJsonError(str(error)) from error
    decoded: str = json.loads(text) if "\\" in text else text[1:-1]
    return decoded


def _children(text: bytes, at: int, opener: bytes) -> Iterator[tuple[Span, int, int]]:
    """Name span (empty in arrays) and value span of each direct child of the container at `at`."""
    at = _behind_white(text, at)
    if not text.startswith(opener, at):
        raise NotJsonError("another kind of value")
    depth, key, begin, end = 0, (0, 0), 0, at
    for kind, start, end in _tokens(text, at):
        if kind == _KEY:
            key = (start, end) if depth == 1 else key
            continue
        if kind == _CLOSE:
            depth -= 1
        elif depth == 1:
            begin = start
        if kind == _OPEN:
            depth += 1
        elif depth == 1:
            yield key, begin, end
    _only_white_behind(text, end)


def _tokens(text: bytes, at: int) -> Iterator[_Token]:
    """The tokens of one value, punctuation left out, each with its span. Raises `NotJsonError` where grammar ends."""
    closers = bytearray()
    for _ in range(_MOST_TOKENS):
        if closers and closers[-1] == _OBJECT:
            key = _match_key(text, at)
            if key is None:
                raise NotJsonError(f"a member name was expected at byte {at}")
            yield _KEY, key.start(1), key.end(1)
            at = key.end()
        value = _match_value(text, at)
        if value is None:
            raise NotJsonError(f"a value was expected at byte {at}")
        group = value.lastindex or 0
        start, at = value.span(group)
        yield group, start, at
        if group == _OPEN:
            closers.append(_OBJECT if text[start] == ord("{") else _ARRAY)
            inside = _behind_white(text, at)
            if text[inside : inside + 1] != closers[-1:]:
                continue
        ends, at = _ends_and_comma(text, at, closers)
        yield from ends
        if not closers:
            return
    raise NotJsonError("too many values for the slow reader")


def _ends_and_comma(text: bytes, at: int, closers: bytearray) -> tuple[list[_Token], int]:
    """The ends that follow a value, taken from `closers`, up to and with the comma before the next value."""
    ends = []
    while closers:
        after = _match_next(text, at)
        if after is None:
            raise NotJsonError(f"a comma or an end was expected at byte {at}")
        start, at = after.span(1)
        if text[start] == ord(","):
            break
        if text[start] != closers.pop():
            raise NotJsonError(f"another end was expected at byte {start}")
        ends.append((_CLOSE, start, at))
    return ends, at


def _behind_white(text: bytes, at: int) -> int:
    white = _match_white(text, at)
    return white.end() if white else at


def _only_white_behind(text: bytes, end: int) -> None:
    if _behind_white(text, end) != len(text):
        raise NotJsonError(f"text behind the value at byte {end}")
