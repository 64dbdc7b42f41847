"""Covered messages as quoted data for a summariser (R8.2): what is shown of each, and how much."""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from compaction.quoting import citation, escape, word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from compaction.types import Counter, Path

RESULT_TOKENS = 2048
"""Tokens of a tool result that are shown at most, unless the caller says otherwise (R8.2)."""

_REASONING_OPENS = re.compile(r"(?:^|(?<=>))[ \t]*<(?:think|thinking|reasoning)>", re.IGNORECASE | re.MULTILINE)
_REASONING_CLOSES = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_REASONING_CLOSES_LINE = re.compile(r"^[ \t]*</(?:think|thinking|reasoning)>", re.IGNORECASE | re.MULTILINE)
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text", "reasoning_content"})
_MEDIA_NAMES = ("format", "filename", "file_id", "id")
_PIECE = 100  # characters: what a line without an end in sight is cut into
_LONGEST_URL = 2048  # characters: a longer one is left out rather than shown wrong


@dataclass(frozen=True, slots=True)
class Source:
    """One covered message: its seq and its decoded JSON, as the client or the provider sent it."""

    seq: int
    message: Any


class _Call(NamedTuple):
    id: str
    name: str
    arguments: str


class _Limits(NamedTuple):
    counter: Counter
    result: int | None
    text: int | None


def transcript(
    sources: Sequence[Source],
    counter: Counter,
    *,
    result_tokens: int = RESULT_TOKENS,
    text_tokens: int | None = None,
) -> str:
    """The messages as one text (R8.2). `result_tokens` bounds a tool result, `text_tokens` every other text."""
    return "\n\n".join(events(sources, counter, result_tokens=result_tokens, text_tokens=text_tokens))


def events(
    sources: Sequence[Source],
    counter: Counter,
    *,
    result_tokens: int = RESULT_TOKENS,
    text_tokens: int | None = None,
) -> list[str]:
    """What `transcript` shows of each message, in order: count these to learn what a range costs (R8.5)."""
    limits = _Limits(counter, result_tokens, text_tokens)
    pairs = _pair(sources)
    return ["\n".join(_event(source, place, pairs, limits)) for place, source in enumerate(sources)]


def covered_citations(path: Path, first: int, last: int) -> frozenset[tuple[int, str]]:
    """The citations that exist in a range of a path (R8.3): seq and call id of its tool results."""
    return frozenset((seq, path.at(seq).answers or "") for seq in range(first, last + 1) if path.at(seq).role == "tool")


def plain_text(message: Any) -> str:
    """The text of a message, reasoning and media left out, unescaped and whole."""
    content = _members(message).get("content")
    parts = content if isinstance(content, list) else [content]
    return "\n".join(text for part in parts if (text := _part_text(part)) is not None)


def role_of(message: Any) -> str:
    """The role as the core names it: `developer` reads `system`, `function` reads `tool` (R3.2)."""
    role = _members(message).get("role")
    if not isinstance(role, str):
        return "unknown"
    return {"developer": "system", "function": "tool"}.get(role, role)


def without_reasoning(text: str) -> str:
    """The text without think blocks that open a line; a block that opens the text and never ends is all of it."""
    kept, place = [], 0
    stray = _REASONING_CLOSES_LINE.search(text)
    opening = _REASONING_OPENS.search(text)
    if stray and (opening is None or stray.start() < opening.start()):
        place = stray.end()  # the template opened the block, so the reply begins inside it
        opening = _REASONING_OPENS.search(text, place)
    while opening:
        kept.append(text[place : opening.start()])
        closing = _REASONING_CLOSES.search(text, opening.end())
        if closing is None:
            place = opening.start() if "".join(kept).strip() else len(text)
            break
        place = closing.end()
        opening = _REASONING_OPENS.search(text, place)
    return "".join([*kept, text[place:]]).strip() if kept or place else text


# --- pairing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Which call each result answers, by place in the list: ids repeat within a conversation."""

    answered: frozenset[tuple[int, int]]
    """(place of the assistant message, index of the call)."""
    names: Mapping[int, str]
    """Place of a result -> name of the tool that was called."""


def _pair(sources: Sequence[Source]) -> _Pairs:
    answered: set[tuple[int, int]] = set()
    names: dict[int, str] = {}
    waiting: dict[str, deque[tuple[int, int, str]]] = {}
    for place, source in enumerate(sources):
        role = role_of(source.message)
        if role in {"user", "assistant"}:
            waiting = _waiting(place, source.message)  # what was open before is abandoned (R6.3)
        elif role == "tool" and (queue := waiting.get(_answers(source.message))):
            caller, index, name = queue.popleft()
            answered.add((caller, index))
            names[place] = name
    return _Pairs(frozenset(answered), names)


def _waiting(place: int, message: Any) -> dict[str, deque[tuple[int, int, str]]]:
    waiting: dict[str, deque[tuple[int, int, str]]] = defaultdict(deque)
    for index, call in enumerate(_calls(message)):
        waiting[call.id].append((place, index, call.name))
    return dict(waiting)


def _answers(message: Any) -> str:
    members = _members(message)
    linked = members.get("name") if members.get("role") == "function" else members.get("tool_call_id")
    return linked if isinstance(linked, str) else ""


def _calls(message: Any) -> list[_Call]:
    members = _members(message)
    listed = members.get("tool_calls")
    calls = [_call(entry) for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    legacy = members.get("function_call")
    if isinstance(legacy, dict):
        calls.append(_Call(_string(legacy.get("name")), _string(legacy.get("name")), _arguments(legacy, "arguments")))
    return calls


def _call(entry: Mapping[str, Any]) -> _Call:
    function, custom = entry.get("function"), entry.get("custom")
    if isinstance(function, dict):
        return _Call(_string(entry.get("id")), _string(function.get("name")), _arguments(function, "arguments"))
    body = custom if isinstance(custom, dict) else {}
    return _Call(_string(entry.get("id")), _string(body.get("name")), _arguments(body, "input"))


def _arguments(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""


# --- one event -----------------------------------------------------------------------------------------------------


def _event(source: Source, place: int, pairs: _Pairs, limits: _Limits) -> Iterator[str]:
    role = role_of(source.message)
    yield _header(source, role, pairs.names.get(place))
    if not isinstance(source.message, dict):
        yield "[note unreadable]"
    elif role == "tool":
        yield from _result(source, place, pairs, limits)
    else:
        shown = [*_content(source.message, role, limits), *_call_lines(source.message, place, pairs, limits)]
        yield from shown or ["[note empty]"]


def _header(source: Source, role: str, tool: str | None) -> str:
    name = tool if role == "tool" else _members(source.message).get("name")
    named = f" name={word(name)}" if isinstance(name, str) and name else ""
    return f"[event seq={source.seq} role={word(role)}{named}]"


def _result(source: Source, place: int, pairs: _Pairs, limits: _Limits) -> Iterator[str]:
    yield citation(source.seq, _answers(source.message))
    if place not in pairs.names:
        yield "[note unknown-call]"
    yield from list(_content(source.message, "tool", limits)) or ["[note empty]"]


def _call_lines(message: Any, place: int, pairs: _Pairs, limits: _Limits) -> Iterator[str]:
    for index, call in enumerate(_calls(message)):
        yield f"[call id={word(call.id)} name={word(call.name)}]"
        if call.arguments:
            yield _shown(call.arguments, limits.counter, limits.text)
        if (place, index) not in pairs.answered:
            yield "[note no-result]"


def _content(message: Mapping[str, Any], role: str, limits: _Limits) -> Iterator[str]:
    content = message.get("content")
    limit = limits.result if role == "tool" else limits.text
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = _part_text(part)
        if text is not None:
            texts.append(text)
        elif part is not None and not _is_reasoning(part):
            yield from _flush(texts, role, limits.counter, limit)
            yield _media(part)
    texts += [text for text in (message.get("refusal"), _spoken(message)) if isinstance(text, str)]
    yield from _flush(texts, role, limits.counter, limit)


def _flush(texts: list[str], role: str, counter: Counter, limit: int | None) -> Iterator[str]:
    """The texts gathered so far as one block, so that many small parts of a result are cut as one."""
    text = "\n".join(texts)
    texts.clear()
    if role == "assistant":
        text = without_reasoning(text)
    if text.strip():
        yield _shown(text, counter, limit)


def _part_text(part: Any) -> str | None:
    """The text of a content part, or None if it holds none to show."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or _is_reasoning(part):
        return None
    text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
    return text if isinstance(text, str) else None


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in _REASONING_PARTS


def _spoken(message: Mapping[str, Any]) -> Any:
    """What an assistant's audio says, where the client kept it."""
    return _members(message.get("audio")).get("transcript")


def _media(part: Any) -> str:
    """A placeholder for a part that is no text: what it is, and how it can be found again, never its bytes."""
    if not isinstance(part, dict):
        return "[note unreadable]"
    kind = _string(part.get("type")) or "unknown"
    inner = part.get(kind)
    found: dict[str, str] = {}
    for body in (part, inner if isinstance(inner, dict) else {"url": inner}):
        found |= {key: text for key in _MEDIA_NAMES if (text := _string(body.get(key)))}
        found |= _location(body)
    words = [f"media type={word(kind)}", *(f"{key}={word(text, '%')}" for key, text in found.items())]
    return f"[{' '.join(words)}]"


def _location(body: Mapping[str, Any]) -> dict[str, str]:
    """Where the bytes are, or what they are and how many."""
    url = _string(body.get("url"))
    if url and not url.startswith("data:"):
        return {"url": url} if len(url) <= _LONGEST_URL else {}
    data = url or _string(body.get("data")) or _string(body.get("file_data"))
    head, comma, base64 = data.partition(",")
    mime = {"mime": head[5:].partition(";")[0]} if comma else {}
    return {**mime, "bytes": str(len(base64 or head) * 3 // 4)} if data else {}


# --- words and cuts ------------------------------------------------------------------------------------------------


def _shown(text: str, counter: Counter, limit: int | None) -> str:
    parts = None if limit is None else cut(text, counter, limit)
    if parts is None:
        return escape(text)
    notice = f"[cut characters={parts.characters} lines={parts.lines}]"
    return "\n".join(block for block in (escape(parts.head), notice, escape(parts.tail)) if block)


class Cut(NamedTuple):
    """The two ends of a long text, and how much is missing between them."""

    head: str
    tail: str
    characters: int
    lines: int


def cut(text: str, counter: Counter, limit: int) -> Cut | None:
    """The first 60 % and last 40 % of `limit` tokens, at line ends where one is near; None if all of it fits (R8.2)."""
    if len(text) * 4 <= limit or counter([text])[0] <= limit:  # no character has more than four bytes, so tokens
        return None
    pieces = _pieces(text)
    first = _ends(pieces[: limit + 1], counter, limit * 6 // 10, forward=True)
    last = _ends(pieces[: -limit - 2 : -1], counter, limit * 4 // 10, forward=False)
    if first + last >= len(pieces):
        return None
    head, tail = "".join(pieces[:first]), "".join(pieces[len(pieces) - last :])
    missing = text[len(head) : len(text) - len(tail)]
    lines = missing.count("\n") + (not missing.endswith("\n"))
    return Cut(head.removesuffix("\n"), tail.removesuffix("\n"), len(missing), lines)


def _pieces(text: str) -> list[str]:
    """Lines with their ends, long ones in parts."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    return [line[at : at + _PIECE] for line in lines for at in range(0, len(line), _PIECE)]


def _ends(pieces: Sequence[str], counter: Counter, budget: int, *, forward: bool) -> int:
    """How many pieces from this end fit. A line end is preferred if it costs no more than half of what fits."""
    fitting = 0
    for tokens in counter(pieces):
        budget -= tokens
        if budget < 0:
            break
        fitting += 1
    whole = fitting
    while whole and not _line_ends_at(pieces, whole if not forward else whole - 1):
        whole -= 1
    return whole if whole * 2 >= fitting else fitting


def _line_ends_at(pieces: Sequence[str], place: int) -> bool:
    return place == len(pieces) or pieces[place].endswith("\n")


def _members(message: Any) -> Mapping[str, Any]:
    return message if isinstance(message, dict) else {}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
