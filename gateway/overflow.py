"""What an upstream's answer means, above all: the input does not fit the model's window (SPEC R10.1, R10.6, R2.7).

`classify` is a pure function. It reads the error out of whatever it came in (JSON, JSON in a string, a prefix before
the JSON, an SSE event, an event-stream frame, plain text), asks the table of `overflow_patterns` what the words mean,
takes the numbers out of them, and, where a provider checks input and output together, decides by R10.1's formula.
An answer that is a completion is never searched for words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.overflow_numbers import Numbers, numbers_in
from gateway.overflow_patterns import (
    CODE_RULES,
    COMBINED_MARK,
    DEFAULTED_OUTPUT,
    OUTPUT_NAMED,
    RULES,
    AnswerKind,
    Rule,
)
from gateway.overflow_text import Evidence, count_of, gather, parse, sentences
from gateway.sse import EventDecoder

__all__ = ["AnswerKind", "RequestFacts", "Verdict", "classify"]


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the gateway knows of the request that was refused. None: not known, or not given."""

    window: int | None
    """Of the route, in tokens."""
    output_limit: int | None
    """`max_tokens` or `max_completion_tokens` of the request."""
    estimate: int | None
    """The gateway's own estimate of the input, in tokens."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an answer means. `limit` and `actual` only for `INPUT_OVERFLOW` and `COMBINED`."""

    kind: AnswerKind
    limit: int | None
    """The stated limit of the context (input side), in tokens."""
    actual: int | None
    """The stated count of the input, in tokens."""
    at_least: bool
    """`actual` is only a lower bound."""


_NO_ERROR: Final = Verdict(AnswerKind.NONE, None, None, at_least=False)

_MAX_EVENTS: Final = 16
_MAX_BODY: Final = 262_144  # bytes of a body that is no JSON


def classify(status: int, content_type: str, body: bytes, facts: RequestFacts) -> Verdict:
    """What the upstream's answer means (R10.1).

    `body` is a whole body, or the raw bytes of a stream's first event. A status outside 200-299 is an error; within, an
    error is what says so (an `error` member, an `error` event, a failure code). Never raises; linear in the body.
    """
    failed = not 200 <= status < 300
    if _is_event_stream(content_type, body):
        return _judge_events(status, body, facts, failed=failed)
    value = parse(body)
    if value is None:
        text = _text(body)
        framed = "vnd.amazon.eventstream" in content_type.lower() and "exception" in text[:1000]
        if not (failed or framed):
            return _NO_ERROR
        value = text
        failed = True
    return _judge_value(status, value, facts, failed=failed)


# --- where the error is ----------------------------------------------------------------------------------------------

_EVENT_LINE = re.compile(rb"\s*(?:data|event|id|retry|error) ?:|:", re.IGNORECASE)


def _is_event_stream(content_type: str, body: bytes) -> bool:
    if _EVENT_LINE.match(body.removeprefix(b"\xef\xbb\xbf")) is None:
        return False
    return "event-stream" in content_type.lower() or b"data:" in body[:4096] or body.lstrip().startswith(b"error:")


def _judge_events(status: int, body: bytes, facts: RequestFacts, *, failed: bool) -> Verdict:
    """The first event that is an error, among the first few up to the first content (R2.4)."""
    decoder = EventDecoder()
    events = [*decoder.feed(body.lstrip(b"\r\n")), *decoder.end()]
    for event in [e for e in events if not e.comment_only][:_MAX_EVENTS]:
        data = event.data
        if data is None and event.raw.startswith(b"error:"):  # llama.cpp, old form
            data = event.raw[6:]
        if data is None or data.strip() == b"[DONE]":
            continue
        named = b"error" in (event.event or b"") or event.data is None
        value = parse(data)
        if value is None:
            if not (named or failed):
                return _NO_ERROR
            value = _text(data)
        verdict = _judge_value(status, value, facts, failed=named or failed)
        if verdict.kind is not AnswerKind.NONE or _says_something(value):
            return verdict
    return _judge_value(status, _text(body), facts, failed=True) if failed else _NO_ERROR


def _text(body: bytes) -> str:
    return body[:_MAX_BODY].decode("utf-8", "replace")


def _says_something(value: Any) -> bool:
    choices = value.get("choices") if isinstance(value, dict) else None
    return isinstance(choices, list) and any(_has_content(choice) for choice in choices[:_MAX_EVENTS])


def _has_content(choice: Any) -> bool:
    """Whether a choice carries anything of an answer."""
    if not isinstance(choice, dict):
        return False
    message = choice.get("message") or choice.get("delta")
    if not isinstance(message, dict):
        return bool(choice.get("text"))
    return any(message[key] for key in message if key != "role")


_GOOD_CODES: Final = (None, 0, 200, "0", "200", "", "ok", "OK", "success", "Success", "SUCCESS")
_FAILURES: Final = ("error", "failed", "failure", "fail", "exception", "response.failed")
_STATES: Final = ("type", "object", "status", "event")
_SAYINGS: Final = ("message", "msg", "detail", "error_message", "error_msg", "errmsg", "err_msg")
_CODES: Final = ("code", "status_code", "error_code", "error_type", "errcode", "err_code")
_CONTENTS: Final = ("output_text", "candidates", "data", "content", "result", "completion")


def _is_error(value: Any) -> bool:
    """Whether a 200 answer says itself that it is an error."""
    if isinstance(value, list):
        return any(_is_error(item) for item in value[:3] if isinstance(item, dict))
    if not isinstance(value, dict):
        return False
    if value.get("error"):
        return True
    if value.get("choices"):
        return bool(_error_in_choices(value))
    return bool(value.get("errors")) or _reports_failure(value) or _is_bare_message(value)


def _reports_failure(value: dict[str, Any]) -> bool:
    headers = value.get("headers")
    heads = [
        head for head in (value.get("base_resp"), value.get("header"), value.get("Response")) if isinstance(head, dict)
    ]
    return (
        value.get("success") is False
        or any(str(value.get(key)).lower() in _FAILURES for key in _STATES)
        or any(head.get("Error") for head in [value, *heads])  # Tencent
        or any(head.get(key) not in _GOOD_CODES for head in heads for key in ("status_code", "code"))  # MiniMax, Spark
        or (isinstance(headers, dict) and any("exception" in key for key in headers))  # an AWS frame, decoded
    )


def _is_bare_message(value: dict[str, Any]) -> bool:
    """A message and a code beside it, and nothing that could be an answer."""
    return (
        any(isinstance(value.get(key), str) for key in _SAYINGS)
        and any(value.get(key) not in _GOOD_CODES for key in _CODES)
        and not any(value.get(key) for key in _CONTENTS)
    )


def _error_in_choices(value: Any) -> list[Any]:
    choices = value.get("choices") if isinstance(value, dict) and not value.get("error") else None
    return [c["error"] for c in choices if isinstance(c, dict) and c.get("error")] if isinstance(choices, list) else []


_WINDOW_FILLED: Final = 0.99


def _silent_overflow(value: Any, facts: RequestFacts) -> Verdict | None:
    """An empty completion that ended because the input filled the window: an overflow without an error."""
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or any(_has_content(choice) for choice in choices):
        return None
    ends = [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]
    if ends and all(end == "model_context_window_exceeded" for end in ends):
        return Verdict(AnswerKind.INPUT_OVERFLOW, None, None, at_least=False)
    usage = value.get("usage")
    if not ends or any(end != "length" for end in ends) or not isinstance(usage, dict) or not facts.window:
        return None
    read = count_of(usage.get("prompt_tokens"))
    if read is None or usage.get("completion_tokens") != 0 or read < facts.window * _WINDOW_FILLED:
        return None
    return Verdict(AnswerKind.INPUT_OVERFLOW, None, read, at_least=False)


# --- what it means ---------------------------------------------------------------------------------------------------


def _first_rule(rules: Iterable[Rule], text: str, status: int) -> Rule | None:
    split = list(sentences(text))
    return next((rule for rule in rules if _applies(rule, text, split, status)), None)


def _applies(rule: Rule, text: str, split: list[str], status: int) -> bool:
    return (
        (not rule.server_fault or status >= 500)
        and any(all(pattern.search(sentence) for pattern in rule.holds) for sentence in split)
        and all(pattern.search(text) for pattern in rule.also)
        and not any(pattern.search(text) for pattern in rule.unless)
    )


def _judge_value(status: int, value: Any, facts: RequestFacts, *, failed: bool) -> Verdict:
    if not failed:
        silent = _silent_overflow(value, facts)
        if silent is not None or not _is_error(value):
            return silent or _NO_ERROR
        value = _error_in_choices(value) or value
    evidence = Evidence()
    gather(value, evidence)
    hits = [(_first_rule(RULES, text, status), text) for text in evidence.texts]
    rule, text = next(((rule, text) for rule, text in hits if rule is not None), (None, ""))
    code = next((rule for rule in (_first_rule(CODE_RULES, code, status) for code in evidence.codes) if rule), None)
    kind = _kind(status, rule, code)
    if kind is not AnswerKind.INPUT_OVERFLOW:
        return Verdict(kind, None, None, at_least=False)
    if rule is DEFAULTED_OUTPUT and facts.output_limit is not None and facts.output_limit <= 0:
        return Verdict(AnswerKind.OTHER, None, None, at_least=False)
    # A title says what is wrong, a detail beside it how much.
    others = [t for r, t in hits if t is not text and (r is None or r.kind is AnswerKind.INPUT_OVERFLOW)]
    return _weigh(text, others, evidence, facts)


_STATUS_KINDS: Final = {402: AnswerKind.QUOTA, 429: AnswerKind.RATE_LIMIT, 413: AnswerKind.BODY_TOO_LARGE}


def _kind(status: int, text: Rule | None, code: Rule | None) -> AnswerKind:
    """What text, code and status say together: a clear text before a code, a code before the status."""
    by_status = _STATUS_KINDS.get(status, AnswerKind.OTHER)
    if status == 402:
        return by_status
    vague = status in {401, 404, 429} or status >= 500
    if code is not None and code.kind is AnswerKind.INPUT_OVERFLOW and vague and not code.strong:
        code = None
    if text is None:
        return code.kind if code is not None else by_status
    if text.kind is not AnswerKind.INPUT_OVERFLOW:
        return text.kind
    if code is not None and (
        code.kind is AnswerKind.OTHER or (not text.strong and code.kind is not AnswerKind.BODY_TOO_LARGE)
    ):
        return code.kind
    return text.kind if text.strong or not vague else by_status


# --- how much --------------------------------------------------------------------------------------------------------


def _speaks_of_output(text: str) -> bool:
    return COMBINED_MARK.search(text) is not None or OUTPUT_NAMED.search(text) is not None


def _weigh(text: str, others: list[str], evidence: Evidence, facts: RequestFacts) -> Verdict:
    """The verdict on what the words call an overflow: its numbers, and for a sum of input and output the formula."""
    combined = _speaks_of_output(text)
    numbers = numbers_in(text, combined=combined)
    if numbers.limit is None and numbers.input is None and numbers.total is None:
        for other in others:
            combined = combined or _speaks_of_output(other)
            numbers = numbers_in(other, combined=combined)
            if numbers.limit is not None:
                break
    numbers = replace(
        numbers,
        limit=numbers.limit if numbers.limit is not None else evidence.limit,
        input=numbers.input if numbers.input is not None or numbers.total is not None else evidence.actual,
    )
    remainder = facts.window - facts.output_limit if facts.window and facts.output_limit else None
    if combined or numbers.output is not None or (numbers.limit is not None and numbers.limit == remainder):
        return _weigh_sum(numbers, facts, remainder)
    return Verdict(AnswerKind.INPUT_OVERFLOW, numbers.limit, numbers.input, at_least=numbers.at_least)


def _weigh_sum(numbers: Numbers, facts: RequestFacts, remainder: int | None) -> Verdict:
    """R10.1: with input I, output O and limit L an input overflow if and only if I > L - min(O, L/2)."""
    limit, output = numbers.limit, numbers.output if numbers.output is not None else facts.output_limit or 0
    if numbers.output is None and limit is not None and limit == remainder:
        limit = facts.window  # what the server calls its limit is what the output asked for left of it
    elif limit is None:
        limit = facts.window
    actual, at_least = numbers.input, numbers.at_least
    if actual is None and numbers.total is not None and numbers.total > output:
        actual = numbers.total - output
    # vLLM reads no further than one token past the room: then the count is where it stopped.
    at_least = at_least or (limit is not None and numbers.output is not None and actual == limit - numbers.output + 1)
    size = actual
    if at_least or size is None:
        size = max((n for n in (actual, facts.estimate) if n is not None), default=None)
    over = limit is None or size is None or size > limit - min(output, limit / 2)
    if over:
        return Verdict(AnswerKind.INPUT_OVERFLOW, numbers.limit, actual, at_least=at_least)
    return Verdict(AnswerKind.COMBINED, limit, actual, at_least=at_least)
