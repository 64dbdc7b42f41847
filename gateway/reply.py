"""What an answer says: a pure fold over the chunks of a stream, or over one JSON answer.

Providers differ in how they cut an answer into deltas; the fold takes what comes and never raises. What it does not
know it keeps: strings are joined, lists extended, other values replaced, so that reasoning carriers and signatures go
back as the provider gave them (R11.5).
"""

import json
import math
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

# Values that are stated, not streamed: the last one given counts.
_STATED = frozenset({"role", "id", "type", "index", "format", "signature", "status", "model", "name", "mime_type"})
_FUNCTIONS = ("function", "custom")
_IN_PIECES = ("arguments", "input")


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice: its message as an OpenAI assistant message, and why it ended (None: not said)."""

    index: int
    message: Json
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, or what came of it."""

    id: str | None
    model: str | None
    choices: tuple[Choice, ...]
    usage: Json | None
    error: Json | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer. `prompt` includes cached tokens; None is not reported."""

    prompt: int | None
    completion: int | None
    cached: int
    reasoning: int


class ReplyFold:
    """Gathers an answer. Give it decoded chunks, or one decoded JSON answer, in order."""

    __slots__ = ("_choices", "_error", "_id", "_model", "_usage")

    def __init__(self) -> None:
        self._id: str | None = None
        self._model: str | None = None
        self._usage: Json | None = None
        self._error: Json | None = None
        self._choices: dict[int, _ChoiceFold] = {}

    def add_chunk(self, obj: Any) -> None:
        """Fold one chunk of a stream."""
        for choice, fold in self._each(obj):
            delta = choice.get("delta")
            if isinstance(delta, dict):
                fold.add_delta(delta)
            elif isinstance(message := choice.get("message"), dict):
                fold.message = _copied(message)

    def add_json(self, obj: Any) -> None:
        """Fold a whole JSON answer; messages are kept as they are."""
        for choice, fold in self._each(obj):
            message = choice.get("message")
            if isinstance(message, dict):
                fold.message = _copied(message)

    def result(self) -> Reply:
        """What came so far."""
        choices = tuple(fold.result(index) for index, fold in sorted(self._choices.items()))
        return Reply(self._id, self._model, choices, self._usage, self._error)

    def _each(self, obj: Any) -> list[tuple[Json, "_ChoiceFold"]]:
        """Fold what stands beside the choices, and give each choice with its fold."""
        if not isinstance(obj, dict):
            return []
        self._id = self._id or _text(obj.get("id"))
        self._model = self._model or _text(obj.get("model"))
        self._error = self._error or _error(obj)
        self._add_usage(obj.get("usage"))
        self._add_usage(_dict(obj.get("x_groq")).get("usage"))
        found = []
        for place, choice in enumerate(_dicts(obj.get("choices"))):
            self._add_usage(choice.get("usage"))
            index = _index(choice.get("index"))
            fold = self._choices.setdefault(place if index is None else index, _ChoiceFold())
            fold.finish_reason = _text(choice.get("finish_reason")) or fold.finish_reason
            found.append((choice, fold))
        return found

    def _add_usage(self, usage: Any) -> None:
        """Later figures replace earlier ones; what a later report leaves out stays."""
        if isinstance(usage, dict) and usage:
            later = {name: value for name, value in usage.items() if value is not None}
            self._usage = {**self._usage, **later} if self._usage else usage


class _ChoiceFold:
    __slots__ = ("_calls", "_function", "_text", "finish_reason", "message")

    def __init__(self) -> None:
        self.message: Json = {}
        self.finish_reason: str | None = None
        self._calls = _CallsFold()
        self._function: Json = {}
        self._text: dict[str, list[str]] = {}  # the pieces of strings that grow, joined once

    def add_delta(self, delta: Json) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                self._calls.add(value)
            elif name == "function_call":
                _merge_function(self._function, _dict(value))
            elif name == "content" and isinstance(value, list):
                self._add_parts(value)
            elif isinstance(value, str) and name not in _STATED:
                self._add_text(name, value)
            else:
                _merge_member(self.message, name, value)

    def _add_text(self, name: str, piece: str) -> None:
        held = self.message.get(name)
        if isinstance(held, list):
            self._add_parts([{"type": "text", "text": piece}], name)
            return
        if name not in self._text:
            self._text[name] = [held] if isinstance(held, str) else []
            self.message[name] = ""
        self._text[name].append(piece)

    def _add_parts(self, parts: list[Any], name: str = "content") -> None:
        """Content that comes as parts; text that came before as a string becomes the first of them."""
        text = "".join(self._text.pop(name, ()))
        content = self.message.get(name)
        if not isinstance(content, list):
            content = self.message[name] = [{"type": "text", "text": text}] if text else []
        _merge_list(content, parts)

    def result(self, index: int) -> Choice:
        joined = {name: "".join(pieces) for name, pieces in self._text.items()}
        message = {"role": "assistant", "content": None, **self.message, **joined}
        if not isinstance(message["role"], str):
            message["role"] = "assistant"
        calls = self._calls.result()
        if calls:
            message["tool_calls"] = calls
        if self._function:
            message["function_call"] = {"name": "", "arguments": "", **_joined(self._function)}
        return Choice(index, message, self.finish_reason)


class _CallsFold:
    """The tool calls of one choice. A delta belongs to a call by its index, else by its id, else to the last call."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[tuple[int, Json]] = []

    def add(self, deltas: Any) -> None:
        for delta in _dicts(deltas):
            _merge_call(self._call(delta), delta)

    def result(self) -> list[Json]:
        """The calls by index, joined strings, no `index`."""
        return [_whole_call(call) for _, call in sorted(self._calls, key=lambda item: item[0])]

    def _call(self, delta: Json) -> Json:
        index, call_id = _index(delta.get("index")), _text(delta.get("id"))
        named = any(_text(_dict(delta.get(kind)).get("name")) for kind in _FUNCTIONS)
        same = self._candidates(index, call_id)
        # Some send whole parallel calls all as index 0, or without index and id. Some send another id with every
        # delta of a call, but name it only once.
        if same and not (named and _is_another(same[-1], index, call_id)):
            return same[-1]
        if index is None and not named and self._calls:
            return self._calls[-1][1]
        call: Json = {}
        self._calls.append((len(self._calls) if index is None else index, call))
        return call

    def _candidates(self, index: int | None, call_id: str | None) -> list[Json]:
        if index is not None:
            return [call for at, call in self._calls if at == index]
        if call_id is not None:
            return [call for _, call in self._calls if call.get("id") == call_id]
        return [call for _, call in self._calls]


def _is_another(call: Json, index: int | None, call_id: str | None) -> bool:
    """Whether a delta that names a function begins another call: another id, or this one is complete already."""
    if call_id is not None:
        return bool(call.get("id")) and call["id"] != call_id
    pieces = _dict(call.get("function")).get("arguments", [""])
    return index is None and pieces[-1].endswith("}") and _is_json("".join(pieces))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _merge_call(call: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name in _FUNCTIONS:
            if isinstance(value, dict):
                _merge_function(call.setdefault(name, {}), value)
        elif name == "id":
            call["id"] = call.get("id") or value
        elif value not in (None, "") and name != "index":
            call[name] = value


def _merge_function(function: Json, delta: Json) -> None:
    """A name, and `arguments` or `input` as a list of pieces. All else is stated."""
    for name, value in delta.items():
        if value is None:
            continue
        if name in _IN_PIECES:
            function.setdefault(name, []).append(value if isinstance(value, str) else _dump(value))
        elif name != "name":
            function[name] = value
        elif isinstance(value, str):
            function[name] = merged_name(function.get(name, ""), value)


def merged_name(known: str, piece: str) -> str:
    """A call's name after one more delta: `piece` may repeat it, hold more of it from the start, or continue it."""
    return piece if piece.startswith(known) else known + piece


def _whole_call(call: Json) -> Json:
    whole: Json = {
        "id": _text(call.get("id")) or "",
        "type": "function",
        **{k: v for k, v in call.items() if k != "id"},
    }
    for kind in _FUNCTIONS:
        if kind in call:
            whole[kind] = _joined(call[kind])
    if "custom" not in call:
        whole["function"] = {"name": "", "arguments": "", **whole.get("function", {})}
    return whole


def _joined(function: Json) -> Json:
    return {name: "".join(value) if name in _IN_PIECES else value for name, value in function.items()}


def _copied(message: Json) -> Json:
    """As deep as later deltas may change it; what was given stays as it was."""
    copy: Json = {}
    for name, value in message.items():
        if isinstance(value, list):
            copy[name] = [dict(item) if isinstance(item, dict) else item for item in value]
        else:
            copy[name] = dict(value) if isinstance(value, dict) else value
    return copy


def _merge_member(target: Json, name: str, value: Any) -> None:
    """One member of a message or part that is not known: see the module."""
    held = target.get(name)
    if value is None and held is not None:
        return
    if isinstance(held, str) and isinstance(value, str) and name not in _STATED:
        target[name] = held + value
    elif isinstance(held, list) and isinstance(value, list):
        _merge_list(held, value)
    elif isinstance(held, dict) and isinstance(value, dict):
        _merge_dict(held, value)
    elif isinstance(value, list):
        target[name] = []
        _merge_list(target[name], value)
    else:
        target[name] = dict(value) if isinstance(value, dict) else value


def _merge_dict(held: Json, later: Json) -> None:
    """One level of strings joined (`audio.data`, `reasoning_details[].text`); what lies deeper is replaced."""
    for name, value in later.items():
        before = held.get(name)
        if isinstance(before, str) and isinstance(value, str) and name not in _STATED:
            held[name] = before + value
        elif value is not None or name not in held:
            held[name] = value


def _merge_list(held: list[Any], later: list[Any]) -> None:
    """Items follow each other, but a further piece of an item is joined with it."""
    for item in later:
        if not isinstance(item, dict):
            held.append(item)
            continue
        near = held[-8:] if _index(item.get("index")) is not None else held[-1:]
        same = next((before for before in reversed(near) if _continues(before, item)), None)
        if same is None:
            held.append(dict(item))
        else:
            _merge_dict(same, item)


def _continues(before: Any, item: Json) -> bool:
    """Pieces of one item have the same type and index; without an index only texts and unsigned thoughts go on."""
    if not isinstance(before, dict) or before.get("type") != item.get("type"):
        return False
    if _index(item.get("index")) is not None:
        return bool(before.get("index") == item["index"])
    kind = item.get("type")
    if kind == "text":
        return set(before) | set(item) == {"type", "text"} and isinstance(before.get("text"), str)
    return kind == "thinking" and not before.get("signature") and isinstance(before.get("thinking"), str)


def usage_numbers(usage: Any) -> Usage:
    """Token counts from any provider's `usage`.

    OpenAI's prompt count includes cached tokens. Anthropic's `input_tokens` does not: what was read from and written
    to the cache is reported beside it and added (R5.6), unless details say that it is included. DeepSeek reports
    cache hits and misses.
    """
    report = _dict(usage)
    prompt_details = _dict(report.get("prompt_tokens_details")) or _dict(report.get("input_tokens_details"))
    output_details = _dict(report.get("completion_tokens_details")) or _dict(report.get("output_tokens_details"))
    read, written = _count(report.get("cache_read_input_tokens")), _count(report.get("cache_creation_input_tokens"))
    hit, miss = _count(report.get("prompt_cache_hit_tokens")), _count(report.get("prompt_cache_miss_tokens"))
    prompt, own = _count(report.get("prompt_tokens")), _count(report.get("input_tokens"))
    beside = (read or 0) + (written or 0)
    if prompt is None and own is not None:
        prompt = own if prompt_details else own + beside
    elif prompt is None and (hit is not None or miss is not None):
        prompt = (hit or 0) + (miss or 0)
    elif prompt is not None and beside > prompt:
        prompt += beside
    completion = _first(report.get("completion_tokens"), report.get("output_tokens"))
    total = _count(report.get("total_tokens"))
    if completion is None and prompt is not None and total is not None and total >= prompt:
        completion = total - prompt
    return Usage(
        prompt=prompt,
        completion=completion,
        cached=_first(prompt_details.get("cached_tokens"), read, hit, report.get("cached_tokens")) or 0,
        reasoning=_first(output_details.get("reasoning_tokens"), report.get("reasoning_tokens")) or 0,
    )


def _first(*values: Any) -> int | None:
    return next((count for value in values if (count := _count(value)) is not None), None)


def _count(value: Any) -> int | None:
    """A number of tokens: a number not below 0, or its text; None for all else."""
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() and len(value) < 20 else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value >= 0 else None


def _error(obj: Json) -> Json | None:
    """The error that a chunk or an answer is; some back ends send it without an envelope."""
    error = obj.get("error")
    if isinstance(error, dict):
        return error or None
    if isinstance(error, str) and error:
        return {"message": error}
    return obj if obj.get("object") == "error" else None


def _index(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _dump(value: Any) -> str:
    """A value where text belongs (arguments sent as an object)."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return ""
