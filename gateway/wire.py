"""Request bytes to `ChatRequest` and back, with the client's bytes kept (R2.2).

Reading finds where each message and each member stands; nothing is ever serialised again. Changing is a splice: new
bytes for the spans that must change, and the client's own for all others. The common case is read by msgspec, which
gives raw slices; whatever it refuses is read by `spans` (R2.12).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from gateway import spans
from gateway.spans import BOM, Member, NotJsonError, Span

Edit = tuple[int, int, bytes]

# msgspec and not orjson: it keeps integers above 64 bits exact.
_decode = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_REFUSED = (msgspec.DecodeError, RecursionError)

_match_member = re.compile(rb"[ \t\n\r]*+[,{][ \t\n\r]*+(\"(?:[^\"\\]++|\\.)*+\")[ \t\n\r]*+:[ \t\n\r]*+").match
_match_separator = re.compile(rb"[ \t\n\r]*+[,\[][ \t\n\r]*+").match
_match_object_end = re.compile(rb"[ \t\n\r]*+}[ \t\n\r]*+\Z").match

_FRAME_VERSION = 1
_ONE_GAP, _MANY_GAPS = 0, 1


@dataclass(frozen=True, slots=True)
class Gaps:
    """What stands around the messages of a body: before the first, between two, behind the last."""

    lead: bytes
    between: bytes | tuple[bytes, ...]
    """One separator if all are equal, else each of them."""
    trail: bytes


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completions request: the client's exact bytes, and where things stand in them.

    `output_limit` is `max_completion_tokens`, else `max_tokens`, in tokens; `output_limit_name` says which.
    `members` gives the span of each top-level value, the last of duplicate names, as providers' parsers take it.
    """

    body: bytes
    messages: tuple[bytes, ...]
    array: Span
    gaps: Gaps
    members: Mapping[str, Span]
    layout: tuple[Member, ...]
    model: str | None
    stream: bool
    n: int
    output_limit: int | None
    output_limit_name: str | None
    _values: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def raw(self, name: str) -> bytes | None:
        """The exact bytes of a top-level member's value; None if there is no such member."""
        span = self.members.get(name)
        return None if span is None else self.body[span[0] : span[1]]

    def value(self, name: str) -> Any:
        """The decoded value of a top-level member, decoded once; None if absent or unreadable. Do not change it."""
        if name not in self._values:
            raw = self.raw(name)
            self._values[name] = None if raw is None else decode_message(raw)
        return self._values[name]


@dataclass(frozen=True, slots=True)
class Frame:
    """A body without its messages: what precedes the first, what follows the last, and what stands between.

    `head` ends with the array's `[` and the white space behind it, `tail` begins with the white space before its `]`.
    `gaps` is one separator if all are equal, else each of them. Requests that differ only in their messages have
    equal frames.
    """

    head: bytes
    gaps: bytes | tuple[bytes, ...]
    tail: bytes


def read_chat_request(body: bytes) -> ChatRequest | None:
    """Read a decoded body; None if it is no JSON object with a list `messages` of objects, or no UTF-8 (R2.12)."""
    if not _is_utf8(body):
        return None
    try:
        layout = _fast_layout(body) or spans.object_members(body, len(BOM) if body.startswith(BOM) else 0)
    except NotJsonError:
        return None
    members = {member.name: (member.start, member.end) for member in layout}
    array = members.get("messages")
    if array is None or body[array[0]] != ord("["):
        return None
    messages, gaps = _split(body, array)
    if not all(message.startswith(b"{") for message in messages):
        return None
    return _request(body, messages, array, gaps, members, layout)


def decode_message(raw: bytes) -> Any:
    """The value of JSON text, integers exact; None if even the slow reader cannot read it.

    Depth is not limited: whoever walks the value must not recurse without a limit.
    """
    try:
        return _decode(raw)
    except _REFUSED:
        pass
    try:
        return spans.decode(raw)
    except NotJsonError:
        return None


def splice(
    request: ChatRequest,
    messages: Sequence[bytes] | None = None,
    members: Mapping[str, bytes | None] | None = None,
) -> bytes:
    """The body with other messages, and with top-level members set (raw JSON) or removed (None); all else kept (R2.2).

    A new member goes last. A removed one is removed with all its duplicates; a replaced one where it counts, last.
    Raises ValueError if `members` names `messages`.
    """
    changes = members or {}
    if "messages" in changes:
        raise ValueError("messages are given by their own parameter")
    edits = _member_edits(request.layout, changes)
    if messages is not None and tuple(messages) != request.messages:
        frame = frame_of(request)
        gap = frame.gaps if isinstance(frame.gaps, bytes) else b","
        edits.append((len(frame.head), len(request.body) - len(frame.tail), gap.join(messages)))
    return _apply(request.body, edits)


def with_messages(request: ChatRequest, messages: Sequence[bytes]) -> bytes:
    """The body with other elements in its messages array, every other byte kept."""
    return splice(request, messages)


def with_include_usage(request: ChatRequest) -> bytes | None:
    """The value for `stream_options` that asks for usage (R2.5); None if the client asks, or sent no object there."""
    raw = request.raw("stream_options")
    if raw is None or raw == b"null":
        return b'{"include_usage":true}'
    options = request.value("stream_options")
    if not isinstance(options, dict) or options.get("include_usage"):
        return None
    layout = spans.object_members(raw)
    if not layout:
        return b'{"include_usage":true}'
    return _apply(raw, _member_edits(layout, {"include_usage": b"true"}))


def frame_of(request: ChatRequest) -> Frame:
    """What remains of the body when its messages are taken out (R4.1: exact bytes can be rebuilt)."""
    body, gaps = request.body, request.gaps
    first = request.array[0] + 1 + len(gaps.lead)
    last = request.array[1] - 1 - len(gaps.trail)
    between = gaps.between if len(request.messages) > 1 else _likely_gap(request, first)
    return Frame(body[:first], between, body[last:])


def rebuild(frame: Frame, messages: Sequence[bytes]) -> bytes:
    """The body that `frame` was taken from, given its messages. Raises ValueError if their number cannot be right."""
    if isinstance(frame.gaps, bytes):
        return frame.head + frame.gaps.join(messages) + frame.tail
    if len(messages) != len(frame.gaps) + 1:
        raise ValueError(f"{len(messages)} messages for {len(frame.gaps)} separators")
    parts = [frame.head, messages[0]]
    for gap, message in zip(frame.gaps, messages[1:], strict=True):
        parts += (gap, message)
    parts.append(frame.tail)
    return b"".join(parts)


def dump_frame(frame: Frame) -> bytes:
    """A compact byte form, equal for equal frames, with a version in its first byte."""
    many = not isinstance(frame.gaps, bytes)
    gaps = frame.gaps if isinstance(frame.gaps, tuple) else (frame.gaps,)
    parts = [bytes((_FRAME_VERSION, _MANY_GAPS if many else _ONE_GAP))]
    for part in (frame.head, frame.tail, *gaps):
        parts += (_varint(len(part)), part)
    return b"".join(parts)


def load_frame(data: bytes) -> Frame:
    """The frame that `dump_frame` wrote. Raises ValueError if the bytes are damaged or of another version."""
    if len(data) < 2 or data[0] != _FRAME_VERSION or data[1] not in (_ONE_GAP, _MANY_GAPS):
        raise ValueError("not a frame of this version")
    parts, at = [], 2
    while at < len(data):
        length, at = _read_varint(data, at)
        parts.append(data[at : at + length])
        at += length
    if at != len(data) or len(parts) < 3 or (data[1] == _ONE_GAP and len(parts) != 3):
        raise ValueError("a damaged frame")
    head, tail, *gaps = parts
    return Frame(head, gaps[0] if data[1] == _ONE_GAP else tuple(gaps), tail)


def _is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fast_layout(body: bytes) -> tuple[Member, ...]:
    """The members of the body, if msgspec can read it and no name comes twice; else an empty tuple.

    Values follow each other in order, so each must stand where the name before it ends. A collapsed duplicate breaks
    that: the walk then meets another value, or does not end at the closing brace.
    """
    try:
        values = _decode_object(body)
    except _REFUSED:
        return ()
    found, end = [], 0
    for name, value in values.items():
        key = _match_member(body, end)
        raw = bytes(value)
        if key is None or not body.startswith(raw, key.end()):
            return ()
        start = key.end()
        end = start + len(raw)
        found.append(Member(name, key.start(1), start, end))
    return tuple(found) if _match_object_end(body, end) else ()


def _split(body: bytes, array: Span) -> tuple[tuple[bytes, ...], Gaps]:
    """The elements of the array that `array` spans, which is known to be valid JSON, and what stands around them."""
    text = body[array[0] : array[1]]
    try:
        elements = tuple(map(bytes, _decode_array(text)))
    except _REFUSED:
        elements = tuple([text[start:end] for start, end in spans.array_elements(text)])
    return elements, _gaps(text, elements)


def _gaps(text: bytes, elements: tuple[bytes, ...]) -> Gaps:
    """What stands around the elements of the array `text`; fast where all separators are the same."""
    if not elements:
        return Gaps(text[1:-1], b",", b"")
    first = _behind_separator(text, 0)
    end = first + len(elements[0])
    gap = text[end : _behind_separator(text, end)] if len(elements) > 1 else b","
    joined = gap.join(elements)
    if text.startswith(joined, first):
        return Gaps(text[1:first], gap, text[first + len(joined) : -1])
    between = []
    for element in elements[1:]:
        start = _behind_separator(text, end)
        between.append(text[end:start])
        end = start + len(element)
    return Gaps(text[1:first], tuple(between), text[end:-1])


def _behind_separator(text: bytes, at: int) -> int:
    separator = _match_separator(text, at)
    return separator.end() if separator else at


def _request(
    body: bytes,
    messages: tuple[bytes, ...],
    array: Span,
    gaps: Gaps,
    members: Mapping[str, Span],
    layout: tuple[Member, ...],
) -> ChatRequest:
    def value(name: str) -> Any:
        span = members.get(name)
        return None if span is None else decode_message(body[span[0] : span[1]])

    limits = ((name, _positive(value(name))) for name in ("max_completion_tokens", "max_tokens"))
    limit_name, limit = next(((name, limit) for name, limit in limits if limit is not None), (None, None))
    return ChatRequest(
        body=body,
        messages=messages,
        array=array,
        gaps=gaps,
        members=members,
        layout=layout,
        model=_text(value("model")),
        stream=value("stream") is True,
        n=_positive(value("n")) or 1,
        output_limit=limit,
        output_limit_name=limit_name,
    )


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _text(value: Any) -> str | None:
    """A string that can be stored and sent; one with lone surrogates cannot."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() or value.encode(errors="replace").decode() == value else None


def _member_edits(layout: tuple[Member, ...], changes: Mapping[str, bytes | None]) -> list[Edit]:
    """The edits that make `changes` in a non-empty object of which at least one member stays."""
    last = {member.name: member for member in layout}
    edits: list[Edit] = [
        (last[name].start, last[name].end, value)
        for name, value in changes.items()
        if value is not None and name in last
    ]
    edits += _removals(layout, {name for name, value in changes.items() if value is None})
    added = [
        b"," + msgspec.json.encode(name) + b":" + value
        for name, value in changes.items()
        if value is not None and name not in last
    ]
    if added:
        edits.append((layout[-1].end, layout[-1].end, b"".join(added)))
    return edits


def _removals(layout: tuple[Member, ...], names: Iterable[str]) -> list[Edit]:
    """A member goes with the comma before it; those before the first that stays go with the comma behind them."""
    kept = next((index for index, member in enumerate(layout) if member.name not in names), len(layout))
    edits = [(left.end, right.end, b"") for left, right in pairwise(layout[kept:]) if right.name in names]
    if kept:
        edits.append((layout[0].key, layout[kept].key, b""))
    return edits


def _apply(body: bytes, edits: list[Edit]) -> bytes:
    """The body with each edit's span replaced. Spans do not overlap."""
    parts: list[bytes] = []
    at = 0
    for start, end, new in sorted(edits):
        parts += (body[at:start], new)
        at = end
    parts.append(body[at:])
    return b"".join(parts)


def _likely_gap(request: ChatRequest, first: int) -> bytes:
    """The separator that this client would write between messages, where fewer than two show none.

    A guess, so that a conversation's first request has the frame of its later ones; nothing depends on it.
    """
    body = request.body
    lead = body[request.array[0] + 1 : first]
    if lead or len(request.layout) < 2:
        return b"," + lead
    left, right = request.layout[:2]
    return b"," + body[left.end : right.key].partition(b",")[2]


def _varint(number: int) -> bytes:
    """LEB128: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return number, at
    raise ValueError("a damaged frame")
