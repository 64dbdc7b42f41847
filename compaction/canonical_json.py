"""JSON values in one spelling, and what is found inside them: the part of the canonical form that is JSON (R3.2)."""

import json
from collections.abc import Iterator

MAX_DEPTH = 100
"""JSON nested deeper is hashed by its bytes. Fixed and far below the interpreter's limit, so that every worker, with
whatever stack it has, reads a message the same way."""

CACHE_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
_NOTHING: frozenset[str] = frozenset()

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder(parse_float=lambda text: _number(float(text))).decode


class TooDeepError(ValueError):
    """JSON is nested deeper than `MAX_DEPTH`."""


def canonical_json(value: object, without: frozenset[str] = CACHE_MARKS) -> bytes:
    """The value, less some keys at any depth, with sorted keys and no spacing; integers exact, the rest as doubles.

    Raises `ValueError` beyond `MAX_DEPTH`, or for an integer of more digits than Python converts.
    """
    return _encode(_cleaned(value, without, 0)).encode()


def canonical_arguments(arguments: object) -> bytes:
    """A call's arguments as a JSON value; as trimmed text if they are none. None and "" say what `{}` says.

    Raises `ValueError` like `canonical_json`, but only for arguments that are not text.
    """
    if not isinstance(arguments, str):
        return b"{}" if arguments is None else canonical_json(arguments, _NOTHING)
    text = arguments.strip()
    if not text:
        return b"{}"
    try:
        value = _decode(text)
        if text.count("{") + text.count("[") > MAX_DEPTH:
            _cleaned(value, _NOTHING, 0)
        return _encode(value).encode()
    except (ValueError, RecursionError):
        return text.replace("\r\n", "\n").encode("utf-8", "surrogatepass")


def strings(value: object) -> list[str]:
    """All strings inside, in order; but for names of types, and cache marks."""
    return [item for key, item in walk(value, CACHE_MARKS) if isinstance(item, str) and key != "type"]


def last_cache_mark(message: object) -> str | None:
    """The last `cache_control` inside, as JSON text (R12.1)."""
    marks = [item for key, item in walk(message) if key == "cache_control" and item]
    return json.dumps(marks[-1], ensure_ascii=False, separators=(",", ":")) if marks else None


def walk(value: object, without: frozenset[str] = _NOTHING) -> Iterator[tuple[str, object]]:
    """Each value inside with the key that it, or the array around it, has; in order, at any depth."""
    stack = [("", value)]
    while stack:
        key, item = stack.pop()
        yield key, item
        if isinstance(item, dict):
            stack.extend(pair for pair in reversed(item.items()) if pair[0] not in without)
        elif isinstance(item, list):
            stack.extend((key, element) for element in reversed(item))


def _cleaned(value: object, without: frozenset[str], depth: int) -> object:
    if depth > MAX_DEPTH:
        raise TooDeepError
    if isinstance(value, dict):
        return {key: _cleaned(item, without, depth + 1) for key, item in value.items() if key not in without}
    if isinstance(value, list):
        return [_cleaned(item, without, depth + 1) for item in value]
    return _number(value) if isinstance(value, float) else value


def _number(number: float) -> float:
    """A whole double below 2**53 reads as the integer: JavaScript clients send 1.0 back as 1."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
