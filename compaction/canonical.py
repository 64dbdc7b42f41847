"""What a message says, as a hash that spelling does not change, and the chain of those hashes (R3.2, R3.3, R3.7).

Every field that is hashed goes in as tag, length, data: no two messages that differ can read alike. What is forwarded
is never made from anything here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from compaction.canonical_json import canonical_arguments, canonical_json, last_cache_mark, strings
from compaction.types import Call, Message, Path

CANON_VERSION = 1
"""Version of the canonical form. Any change of what is hashed needs another (R7.3)."""

_ROLES = {"developer": "system", "function": "tool"}
_KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "video",
    "input_video": "video",
    "video": "video",
    "file": "file",
    "input_file": "file",
}
_IGNORED_IN_PART = {"image_url": "detail", "file": "filename"}
_THOUGHT_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})

_is_base64 = re.compile(r"[A-Za-z0-9+/_\-\r\n]{512,}={0,2}").fullmatch
_think_tags = re.compile(r"<(/?)(think|thinking|reasoning)>", re.IGNORECASE).finditer


class Reading(NamedTuple):
    """A message as read once from its exact bytes, its tokens not yet counted: all of `Message` but `tokens`.

    A named tuple, since making a frozen dataclass costs as much as all the rest of reading a short text.
    """

    role: str
    sha256: bytes
    canon: bytes
    loose: bytes
    size: int
    texts: tuple[str, ...]
    """What is counted: all texts, call names and arguments; never base64 of typed parts (R5.3)."""
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    cache_mark: str | None = None
    media: tuple[tuple[str, int], ...] = ()
    """Kind (`image`, `audio`, `video`, `file`) and bytes of each part that is not text."""

    def message(self, tokens: int) -> Message:
        """The `Message`, once its tokens are known (`compaction.size.message_tokens`)."""
        return Message(
            role=self.role,
            sha256=self.sha256,
            canon=self.canon,
            loose=self.loose,
            tokens=tokens,
            size=self.size,
            calls=self.calls,
            answers=self.answers,
            cache_mark=self.cache_mark,
        )


def _field(tag: bytes, data: bytes) -> bytes:
    return tag + len(data).to_bytes(8, "big") + data


_ABSENT = _field(b"0", b"")
_EMPTY = _field(b"t", b"")
_BLANKS = (_ABSENT, _EMPTY)


class _ReadCall(NamedTuple):
    """A call, its fields for the hash, and its texts for the count."""

    call: Call
    fields: bytes
    texts: tuple[str, ...]


class _Content(NamedTuple):
    """A content, as a string or a list of parts, taken apart."""

    fields: list[bytes]
    texts: list[str]
    media: list[tuple[str, int]]
    loose_text: list[str]
    loose_parts: list[bytes]


def read_message(message: object, raw: bytes) -> Reading:
    """Read one message. Never raises, whatever JSON value it is.

    `message` is the decoded JSON and `raw` its exact bytes. A value that is no object, or nested beyond `canonical_json.MAX_DEPTH`, is
    hashed by its bytes; a message of an unknown role is hashed whole. Such a role reads as sent, one that is no string
    as "".
    """
    if not isinstance(message, dict):
        return _read_bytes("", raw)
    sent = message.get("role")
    role = _ROLES.get(sent, sent) if isinstance(sent, str) else ""
    try:
        return _read_object(message, raw, role)
    except ValueError:  # too deep, or an integer of more digits than Python converts
        return _read_bytes(role, raw, _linked_calls(message) if role == "assistant" else (), _answers(message, role))


def root_digest(tenant: str) -> bytes:
    """`digest(0)`: where the chain of a tenant begins (R3.1, R3.3)."""
    return sha256(_field(b"d", b"palimpsest/3") + _field(b"t", _utf8(tenant))).digest()


@dataclass(frozen=True, slots=True)
class Chain:
    """A path, and what is needed to extend it."""

    path: Path
    waiting: Mapping[str | None, tuple[int, ...]]
    """Ordinals of the calls that have no result yet, by id."""
    calls: int
    """How many calls the history has."""


def begin_chain(tenant: str) -> Chain:
    """The chain of an empty history."""
    node = sha256(_field(b"d", b"palimpsest/node") + _field(b"t", _utf8(tenant))).digest()
    return Chain(Path((), (root_digest(tenant),), (node,), (0,)), {}, 0)


def extend_chain(chain: Chain, messages: Sequence[Message]) -> Chain:
    """The chain with more messages (R3.3).

    A digest holds, of a tool result, which call of the history it answers (1 = the first, 0 = none): ids may be renamed
    and reused. That a call is the k-th needs no hashing: the order says it.
    """
    path = chain.path
    digests, nodes, totals = list(path.digests), list(path.nodes), list(path.totals)
    digest, node, total = digests[-1], nodes[-1], totals[-1]
    waiting, calls = dict(chain.waiting), chain.calls
    for message in messages:
        said = digest + message.canon
        if message.role == "tool":
            said += _answered(waiting, message.answers).to_bytes(8, "big")
        elif message.calls:
            calls = _await_results(waiting, message.calls, calls)
        digest = sha256(said).digest()
        node = sha256(node + message.sha256).digest()
        total += message.tokens
        digests.append(digest)
        nodes.append(node)
        totals.append(total)
    extended = Path((*path.messages, *messages), tuple(digests), tuple(nodes), tuple(totals))
    return Chain(extended, waiting, calls)


def build_path(tenant: str, messages: Sequence[Message]) -> Path:
    """The history of a request, with the chained digest and the chained node of every position (R3.3)."""
    return extend_chain(begin_chain(tenant), messages).path


def loose_text(text: str) -> str:
    """The text of a reply as a loose echo is compared by: LF, no think blocks, no outer white space (R3.7).

    A closing tag without an opening one ends a block that began with the text: some chat templates open it in the
    prompt. A block that is never closed is text.
    """
    text = text.replace("\r\n", "\n")
    if "</" not in text:
        return text.strip()
    kept: list[str] = []
    start, opened, at = 0, "", 0
    for tag in _think_tags(text):
        closing, name = tag[1], tag[2].lower()
        if not closing and not opened:
            opened, at = name, tag.start()
        elif closing and opened == name:
            kept.append(text[start:at])
            start, opened = tag.end(), ""
        elif closing and not opened and not kept:
            start = tag.end()
    kept.append(text[start:])
    return "".join(kept).strip()


def is_truncation_of(echo_text: str, reply_text: str) -> bool:
    """Whether an echo is a reply cut short: some first part of it, white space at the ends aside (R3.7).

    An echo without text says nothing, so it is none.
    """
    echo = echo_text.replace("\r\n", "\n").strip()
    if echo and reply_text.replace("\r\n", "\n").strip().startswith(echo):
        return True
    echo = loose_text(echo_text)
    return bool(echo) and loose_text(reply_text).startswith(echo)


def _await_results(waiting: dict[str | None, tuple[int, ...]], calls: tuple[Call, ...], before: int) -> int:
    """Note calls that wait for results; returns the ordinal of the last.

    A reused id means the latest message that calls it; within one message, equal ids are answered in order.
    """
    for call in calls:
        waiting.pop(call.id, None)
    for ordinal, call in enumerate(calls, before + 1):
        waiting[call.id] = (*waiting.get(call.id, ()), ordinal)
    return before + len(calls)


def _answered(waiting: dict[str | None, tuple[int, ...]], answers: str | None) -> int:
    """The ordinal of the call that a result answers, which then waits no more; 0: none."""
    ordinals = waiting.pop(answers, ())
    if not ordinals:
        return 0
    if len(ordinals) > 1:
        waiting[answers] = ordinals[1:]
    return ordinals[0]


def _read_bytes(role: str, raw: bytes, calls: tuple[Call, ...] = (), answers: str | None = None) -> Reading:
    exact = sha256(raw).digest()
    canon = _canon([_field(b"b", raw)])
    loose = canon if role == "assistant" else b""
    text = raw.decode("utf-8", "replace")
    return Reading(role, exact, canon, loose, len(raw), (text,) if text else (), calls, answers)


def _read_object(message: dict[str, Any], raw: bytes, role: str) -> Reading:
    content = _read_content(message.get("content"))
    loose = b""
    calls: tuple[Call, ...] = ()
    if role == "assistant":
        read_calls, fields = _assistant_fields(message, content)
        calls = tuple(read.call for read in read_calls)
        loose = _loose(message, content, read_calls)
        texts = (
            *content.texts,
            *_string(message.get("refusal")),
            *(text for read in read_calls for text in read.texts),
        )
    else:
        name = _string(message.get("name")) if role == "user" else ()
        texts = (*name, *content.texts)
        fields = [_field(b"n", _utf8(text)) for text in name] + content.fields
    if role not in _KNOWN_ROLES:
        fields = [_field(b"w", canonical_json(message))]
    return Reading(
        role=role,
        sha256=sha256(raw).digest(),
        canon=_canon([_field(b"r", _utf8(role)), *fields]),
        loose=loose,
        size=len(raw),
        texts=texts,
        calls=calls,
        answers=_answers(message, role),
        cache_mark=last_cache_mark(message) if b"cache_control" in raw else None,
        media=tuple(content.media),
    )


def _answers(message: dict[str, Any], role: str) -> str | None:
    if role != "tool":
        return None
    linked = message.get("name" if message["role"] == "function" else "tool_call_id")
    return linked if isinstance(linked, str) else None


# Content


def _read_content(content: object) -> _Content:
    read = _Content([], [], [], [], [])
    if isinstance(content, str):
        read.fields.append(_field(b"t", _text(content)))
        read.loose_text.append(content)
        if content:
            read.texts.append(content)
    elif isinstance(content, list):
        _read_parts(content, read)
    elif content is None:
        read.fields.append(_ABSENT)
    else:
        _read_part(content, read)
    return read


def _read_parts(parts: list[Any], read: _Content) -> None:
    run: list[str] = []
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            run.append(part["text"])
            continue
        _end_of_text(run, read)
        _read_part(part, read)
    _end_of_text(run, read)
    if not read.fields:  # no parts, or only empty texts, say what "" says
        read.fields.append(_EMPTY)


def _end_of_text(run: list[str], read: _Content) -> None:
    text = "".join(run)
    run.clear()
    if text:
        read.fields.append(_field(b"t", _text(text)))
        read.texts.append(text)
        read.loose_text.append(text)


def _read_part(part: object, read: _Content) -> None:
    """A part that is not text: hashed whole, and never counted as text where it is media (R3.2, R5.3)."""
    kind = part.get("type") if isinstance(part, dict) else None
    kind = kind if isinstance(kind, str) else ""
    body = _field(b"p", canonical_json(_without_ignored(part, kind) if isinstance(part, dict) else part))
    read.fields.append(body)
    if kind in _MEDIA:
        read.media.append((_MEDIA[kind], sum(map(len, strings(part))) * 3 // 4))
        read.loose_parts.append(body)
        return
    for text in strings(part):
        if _is_data(text):
            read.media.append(("file", len(text) * 3 // 4))
        else:
            read.texts.append(text)
    if isinstance(part, dict) and kind == "refusal":
        read.loose_text.extend(_string(part.get("refusal")))
    elif kind not in _THOUGHT_PARTS:
        read.loose_parts.append(body)


def _without_ignored(part: dict[str, Any], kind: str) -> dict[str, Any]:
    ignored = _IGNORED_IN_PART.get(kind)
    inner = part.get(kind)
    if ignored is None or not isinstance(inner, dict) or ignored not in inner:
        return part
    return {**part, kind: {key: value for key, value in inner.items() if key != ignored}}


def _is_data(text: str) -> bool:
    return (text.startswith("data:") and ";base64," in text[:256]) or bool(_is_base64(text))


# Assistant messages


def _assistant_fields(message: dict[str, Any], content: _Content) -> tuple[list[_ReadCall], list[bytes]]:
    read_calls: list[_ReadCall] = []
    extra: list[bytes] = []
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        read_calls += map(_read_call, calls)
    elif calls:
        extra.append(_field(b"?", canonical_json(calls)))
    legacy = message.get("function_call")
    if legacy and isinstance(legacy, dict):
        read_calls.append(_read_function(_string_or_empty(legacy.get("name")), legacy))
    elif legacy:
        extra.append(_field(b"?", canonical_json(legacy)))
    if refusal := message.get("refusal"):
        extra.append(_field(b"f", _text(refusal) if isinstance(refusal, str) else canonical_json(refusal)))
    extra += [
        _field(tag, canonical_json(value))
        for tag, key in ((b"a", "annotations"), (b"u", "audio"))
        if (value := message.get(key))
    ]
    said = [] if read_calls and content.fields[0] in _BLANKS else content.fields
    return read_calls, [*said, *extra, *(read.fields for read in read_calls)]


def _read_call(call: object) -> _ReadCall:
    if isinstance(call, dict):
        call_id = _string_or_empty(call.get("id"))
        if isinstance(function := call.get("function"), dict):
            return _read_function(call_id, function)
        if isinstance(custom := call.get("custom"), dict) and isinstance(text := custom.get("input"), str):
            name = _string_or_empty(custom.get("name"))
            return _ReadCall(Call(call_id, name), _field(b"x", _utf8(name)) + _field(b"=", _text(text)), (name, text))
        body = canonical_json({key: value for key, value in call.items() if key not in ("id", "index")})
    else:
        call_id, body = "", canonical_json(call)
    return _ReadCall(Call(call_id, ""), _field(b"y", body), (body.decode(),))


def _read_function(call_id: str, function: dict[str, Any]) -> _ReadCall:
    name, arguments = _string_or_empty(function.get("name")), function.get("arguments")
    canonical = canonical_arguments(arguments)
    text = arguments if isinstance(arguments, str) else canonical.decode()
    return _ReadCall(Call(call_id, name), _field(b"c", _utf8(name)) + _field(b"=", canonical), (name, text))


def _linked_calls(message: dict[str, Any]) -> tuple[Call, ...]:
    """Ids and names alone, of a message that is otherwise beyond reading."""
    calls = message.get("tool_calls")
    found = [call if isinstance(call, dict) else {} for call in calls] if isinstance(calls, list) else []
    named = [(call.get("id"), call.get("function")) for call in found]
    if isinstance(legacy := message.get("function_call"), dict) and legacy:
        named.append((legacy.get("name"), legacy))
    return tuple(
        Call(_string_or_empty(call_id), _string_or_empty(function.get("name")) if isinstance(function, dict) else "")
        for call_id, function in named
    )


def _loose(message: dict[str, Any], content: _Content, calls: Iterable[_ReadCall]) -> bytes:
    if fields := [read.fields for read in calls]:  # clients blank or rewrite the text beside calls
        return _canon(fields)
    text = loose_text("".join(content.loose_text)) or loose_text(_string_or_empty(message.get("refusal")))
    fields = [_field(b"t", _utf8(text)), *content.loose_parts]
    if audio := message.get("audio"):  # of an audio answer, clients send back the id alone
        named = audio.get("id") if isinstance(audio, dict) else None
        fields.append(_field(b"u", canonical_json(named or audio)))
    return _canon(fields)


# Bytes and strings


def _string(value: object) -> tuple[str, ...]:
    """The value if it is a string with something in it, else nothing."""
    return (value,) if isinstance(value, str) and value else ()


def _string_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def _canon(fields: list[bytes]) -> bytes:
    return sha256(b"palimpsest/canon/1" + b"".join(fields)).digest()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(text: str) -> bytes:
    return _utf8(text.replace("\r\n", "\n") if "\r" in text else text)
