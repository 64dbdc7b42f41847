"""What an error says, wherever it says it (SPEC R10.1): its texts in normal form, its codes, its numeric members.

Relays put an error into strings, lists, prefixes and each other; requests are echoed inside of errors. This is the
reading, without any judgement.
"""

# ruff: noqa: RUF001 - typographic quotes and full-width marks are what is looked for

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from gateway.overflow_numbers import ACTUAL_KEYS, LIMIT_KEYS

MAX_TEXT: Final = 16_384
"""Characters of message text that are looked at, in all."""
_MAX_STRINGS: Final = 200
_MAX_DEPTH: Final = 32


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def parse(data: bytes | str) -> Any:
    """The JSON value, or None if it is no JSON object, list or string."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict | list | str) else None


# --- gathering ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Evidence:
    """What an error says, gathered from wherever its members hold it."""

    texts: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    limit: int | None = None
    actual: int | None = None
    room: int = MAX_TEXT

    def add(self, text: str) -> None:
        """Take a string, as long as there is room: of a long one the beginning and the end."""
        text = text.strip()
        if not text or self.room <= 0:
            return
        if _CODE.fullmatch(text):
            self.codes.append(normalise(text))
        else:
            half = self.room // 2 - 3
            self.texts.append(normalise(text if len(text) <= self.room else f"{text[:half]} ... {text[-half:]}"))
        self.room -= len(text)


# Members that repeat the request or the answer, or say nothing. Errors quote prompts (R10.1).
_ECHOES: Final = frozenset(
    [
        "input",
        "inputs",
        "prompt",
        "messages",
        "content",
        "contents",
        "request",
        "request_body",
        "requestbody",
        "loc",
        "choices",
        "usage",
        "tools",
        "functions",
        "arguments",
        "failed_generation",
        "completion",
        "output",
        "generated_text",
        "user",
        "user_id",
        "id",
        "request_id",
        "requestid",
        "model",
        "model_name",
        "url",
        "doc_url",
        "documentation_url",
        "more_info",
        "trace",
        "trace_id",
        "provider_name",
        "system",
        "query",
        "schema",
        "delta",
        "value",
        "example",
        "instance",
        "received",
        "tool_calls",
    ],
)
_CODE = re.compile(r"[A-Za-z0-9_.:/\-]{2,80}")


def gather(value: Any, evidence: Evidence, key: str = "", depth: int = 0) -> None:
    """Collect texts, codes and counts from `value`, depth first; echoes of the request are passed over."""
    if depth > _MAX_DEPTH or len(evidence.texts) + len(evidence.codes) > _MAX_STRINGS:
        return
    if isinstance(value, str):
        _gather_text(value, evidence, key, depth)
    elif isinstance(value, list):
        for item in value[:_MAX_STRINGS]:
            gather(item, evidence, key, depth + 1)
    elif isinstance(value, dict):
        for name, member in list(value.items())[:_MAX_STRINGS]:
            low = str(name).lower()
            _gathercount_of(low, member, evidence)
            if key == "errors" and low in _ECHOES:  # {"errors": {"prompt": ["is too long ..."]}}
                evidence.add(
                    f"{low} {' '.join(m for m in member if isinstance(m, str)) if isinstance(member, list) else member}"
                )
            elif low not in _ECHOES or (low == "value" and isinstance(member, dict)):
                gather(member, evidence, low, depth + 1)


def _gathercount_of(key: str, member: Any, evidence: Evidence) -> None:
    count = count_of(member)
    if count is None:
        return
    if key in LIMIT_KEYS and evidence.limit is None:
        evidence.limit = count
    elif key in ACTUAL_KEYS and evidence.actual is None:
        evidence.actual = count


def count_of(value: Any) -> int | None:
    """A positive count of tokens, also as a numeric string; else None."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 12:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


_DECODER: Final = json.JSONDecoder()
_JSON_START = re.compile(r"[{\[\"]")

# What follows these is the request's, not the provider's.
_ECHO_LEAD = _re(r"(?i)(?:arguments?|prompt|input|content|schema|request body|function call|tool call)s?\W{0,4}$")


def _gather_text(text: str, evidence: Evidence, key: str, depth: int) -> None:
    """A string, or what is written in it as JSON; words around the JSON count after it."""
    starts = (m.start() for m in _JSON_START.finditer(text, 0, MAX_TEXT) if m[0] != '"' or m.start() == 0)
    for start in islice(starts, 3):
        try:
            inner, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if not inner or (isinstance(inner, list) and not any(isinstance(i, dict | str) for i in inner)):
            continue
        if not _ECHO_LEAD.search(text[max(0, start - 40) : start]):
            gather(inner, evidence, key, depth + 1)
        evidence.add(text[:start])
        evidence.add(text[end:])
        return
    evidence.add(text)


# --- normal form -----------------------------------------------------------------------------------------------------

_URL = _re(r"\b[a-z][a-z+]{1,9}://[^\s\"'<>)]*")
_CAMEL = _re(r"(?<=[a-z])(?=[A-Z][a-z])")
# gpt-4.1, meta-llama/llama-2-70b-chat: digits that are no counts.
_MODEL_NAME = _re(r"(?<![\w.])[a-z][a-z0-9_.]{0,40}[-/][\w./-]{0,60}?\d[\w./:-]{0,60}(?<![.:])")
_GROUPED = _re(r"(?<=\d)[,_'’\u00a0\u2009\u202f](?=\d{3}(?!\d))")  # 131,072  131_072
_DOTTED = _re(r"(?<![\w.])\d{1,3}(?:\.\d{3}){2,3}(?![\w.]?\d)|(?<![\w.])\d{1,3}\.\d{3}(?=[ -]?(?:input |prompt )?tok)")
_SPACED = _re(r"(?<![\w.])\d{1,3}(?: \d{3}){1,3}(?= (?:input |prompt |output )?tok)")  # 131 072 tokens
_FRACTION = _re(r"(?<=\d)\.0+(?!\w)")  # 72417.0
_SCALED = _re(
    r"(?<![a-z0-9_.-])(\d{1,5}(?:\.\d{1,3})?) ?((?:k|m|million|thousand)(?![a-z0-9/])|[万萬만])"
)  # 128k, 1.5M, 20万
_SCALE: Final = {"k": 10**3, "thousand": 10**3, "m": 10**6, "million": 10**6, "万": 10**4, "萬": 10**4, "만": 10**4}
_WORD_JOINT = _re(r"(?<=[a-z])[_-]+(?=[a-z0-9])|(?<=[0-9])[_-](?=[a-z])")
_INNER_DOT = _re(r"\.(?=[\w-])")
_QUOTE_MARK = _re(r"[\"`*“”«»„「」『』]|(?<![a-z])['‘’]|['‘’](?![a-z])")
_SPACE = _re(r"\s+")

_ANY_QUOTE = _re(r"[\"'`“”‘’«»„「」『』]")
_CLOSER: Final = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "‘": "’", "«": "»", "「": "」", "『": "』"}
# Before these a quotation is what the provider says, not what it quotes of the request.
_SPEAKER = _re(
    r"(?:error|message|msg|detail|details|reason|raw|exception|description|body|response|returned|said|says|replied|"
    r"responded|failed|title|cause|upstream|provider|api)s?[\"'`\\)\]]{0,3} ?(?:[:=,-]|was|with|is)? ?[({\[]?$",
)
_SCALAR_WORDS: Final = 3


def _unquoted(text: str) -> str:
    """`text` without longer quotations of somebody else's words; those that a speaker introduces stay."""
    out: list[str] = []
    kept_to = 0
    opened: re.Match[str] | None = None
    for mark in _ANY_QUOTE.finditer(text):
        at = mark.start()
        if opened is None:
            if mark[0] in _CLOSER and not text[at - 1 : at].isalnum() and not text[at + 1 : at + 2].isspace():
                opened = mark
        elif mark[0] == _CLOSER[opened[0]] and not text[at + 1 : at + 2].isalnum():
            if _is_quotation(text, opened.start(), at):
                out.append(text[kept_to : opened.end()])
                kept_to = at
            opened = None
    if opened is not None and opened[0] in '"“' and _is_quotation(text, opened.start(), len(text)):
        out.append(text[kept_to : opened.end()])  # the quotation was cut off
        kept_to = len(text)
    out.append(text[kept_to:])
    return "".join(out)


def _is_quotation(text: str, start: int, end: int) -> bool:
    lead = text[max(0, start - 40) : start].rstrip().lower()
    return bool(lead) and text[start:end].count(" ") >= _SCALAR_WORDS - 1 and not _SPEAKER.search(lead)


def normalise(text: str) -> str:
    """The form that all patterns are written for.

    Lower case, one space between words, `max_tokens` and `maxTokens` as `max tokens`, numbers as plain digits
    (`131,072`, `128k`, `20万`), no addresses, no model names, no quotations of the request.
    """
    text = (
        unicodedata.normalize("NFKC", text[:MAX_TEXT])[:MAX_TEXT]
        .replace('\\"', '"')
        .replace("\\'", "'")
        .replace("\\n", "\n")
    )
    text = _CAMEL.sub(" ", _unquoted(_URL.sub(" ", text))).lower()
    text = _MODEL_NAME.sub("mdl", text)
    text = _GROUPED.sub("", text)
    text = _DOTTED.sub(lambda m: m[0].replace(".", ""), text)
    text = _SPACED.sub(lambda m: m[0].replace(" ", ""), text)
    text = _FRACTION.sub("", text)
    text = _SCALED.sub(lambda m: str(round(float(m[1]) * _SCALE[m[2]])), text)
    text = _INNER_DOT.sub("_", _WORD_JOINT.sub(" ", text))
    return _SPACE.sub(" ", _QUOTE_MARK.sub("", text)).strip()


_SENTENCE = _re(r"(?<=[.!?;])\s|[。！？；\n]")
_LONGEST_SENTENCE: Final = 600


def sentences(text: str) -> Iterator[str]:
    """Sentences; an endless one in overlapping windows, so that words far apart do not meet."""
    for sentence in _SENTENCE.split(text):
        for start in range(0, max(1, len(sentence) - _LONGEST_SENTENCE // 2), _LONGEST_SENTENCE // 2):
            yield sentence[start : start + _LONGEST_SENTENCE]
