"""A reply in the provider's forms: one JSON object, or the chunks of a stream."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from gateway.simulator.replies import Choice, Reply, ToolCall, pieces

FINGERPRINT = "fp_simulated"
_PIECES_PER_CHUNK = 3
_ARGUMENT_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of the form: log probabilities with `top` alternatives (None = none), and usage at the end."""

    top_logprobs: int | None = None
    usage: bool = False

    @classmethod
    def of(cls, body: dict[str, Any]) -> "Wanted":
        """What this request asks."""
        top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
        return cls(top, bool((body.get("stream_options") or {}).get("include_usage")))


def usage_of(reply: Reply, input_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage member."""
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": reply.tokens,
        "total_tokens": input_tokens + reply.tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def completion(reply: Reply, usage: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The whole answer as one object."""
    choices = [
        {
            "index": index,
            "message": _message(choice),
            "logprobs": _logprobs(pieces(choice.text or ""), wanted),
            "finish_reason": choice.finish,
        }
        for index, choice in enumerate(reply.choices)
    ]
    return _frame(reply, "chat.completion") | {"choices": choices, "usage": usage}


def _frame(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": FINGERPRINT,
    }


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": choice.refusal}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [_call(call, call.arguments) for call in choice.calls]
    return message


def _call(call: ToolCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _logprobs(texts: list[str], wanted: Wanted) -> dict[str, Any] | None:
    if wanted.top_logprobs is None or not texts:
        return None
    return {"content": [_token(text, wanted.top_logprobs) for text in texts], "refusal": None}


def _token(text: str, top: int) -> dict[str, Any]:
    # Any figure below zero is plausible; it depends on the text alone, so that a stream and JSON agree.
    base = -math.log1p(sum(map(ord, text)) % 97) / 10
    alternatives = [_entry(text if rank == 0 else f"{text}~{rank}", base - rank) for rank in range(top)]
    return _entry(text, base) | {"top_logprobs": alternatives}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": round(logprob, 6), "bytes": list(text.encode("utf-8", "replace"))}


def chunks(reply: Reply, usage: dict[str, Any], wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The answer as stream chunks: roles, then content and calls, then finish reasons, then usage if it was asked for."""
    frame = _frame(reply, "chat.completion.chunk")
    tail = {"usage": None} if wanted.usage else {}

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return frame | {"choices": [choice]} | tail

    for index, choice in enumerate(reply.choices):
        content = "" if choice.text is not None else None
        yield chunk(index, {"role": "assistant", "content": content, "refusal": None})
    # Alternatives grow side by side.
    for step in zip_longest(*(_deltas(choice, wanted) for choice in reply.choices)):
        for index, pair in enumerate(step):
            if pair:
                yield chunk(index, *pair)
    for index, choice in enumerate(reply.choices):
        yield chunk(index, {}, finish=choice.finish)
    if wanted.usage:
        yield frame | {"choices": [], "usage": usage}


def _deltas(choice: Choice, wanted: Wanted) -> Iterator[tuple[dict[str, Any], Any]]:
    for key, text in (("reasoning_content", choice.reasoning), ("content", choice.text), ("refusal", choice.refusal)):
        texts = pieces(text or "")
        for start in range(0, len(texts), _PIECES_PER_CHUNK):
            some = texts[start : start + _PIECES_PER_CHUNK]
            yield {key: "".join(some)}, _logprobs(some, wanted) if key == "content" else None
    for position, call in enumerate(choice.calls):
        yield {"tool_calls": [{"index": position} | _call(call, "")]}, None
        for start in range(0, len(call.arguments), _ARGUMENT_CHARACTERS):
            part = call.arguments[start : start + _ARGUMENT_CHARACTERS]
            yield {"tool_calls": [{"index": position, "function": {"arguments": part}}]}, None
