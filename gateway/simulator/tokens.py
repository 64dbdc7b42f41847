"""What a request costs: tokens of its messages and tools, and how many of them an earlier request had already sent."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import toktok  # type: ignore[import-untyped]  # has no stubs

from gateway.simulator.jsonio import encode_json

ENCODING = "o200k_base"
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 765
BYTES_PER_MEDIA_TOKEN = 16
CACHE_STEP = 128


def clean(text: str) -> str:
    """The text with lone surrogates replaced, as a tokenizer needs it."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def truncate(text: str, limit: int) -> tuple[str, int]:
    """The start of a text that has at most `limit` tokens, and the tokens of that start."""
    kept, total = toktok.truncate(clean(text), max(limit, 0), ENCODING)
    return (text, total) if total <= limit else (kept, max(limit, 0))


class TokenCounter:
    """Counts texts and remembers the counts of the last `entries` of them by hash."""

    def __init__(self, entries: int = 1 << 17) -> None:
        self._entries = entries
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        keys = [hashlib.blake2b(data, digest_size=16).digest() for data in encoded]
        missing = [index for index, key in enumerate(keys) if key not in self._counts]
        if missing:
            fresh = [encoded[index].decode("utf-8", "replace") for index in missing]
            for index, count in zip(missing, toktok.batch_count(fresh, ENCODING, threads=1), strict=True):
                self._counts[keys[index]] = count
        counts = [self._counts[key] for key in keys]
        for key in keys:
            self._counts.move_to_end(key)
        while len(self._counts) > self._entries:
            self._counts.popitem(last=False)
        return counts


@dataclass(frozen=True, slots=True)
class InputTokens:
    """Tokens of each message in order, and of tools and response format; already times the dialect's factor."""

    messages: tuple[int, ...]
    tools: int

    @property
    def total(self) -> int:
        """The whole input."""
        return sum(self.messages) + self.tools


def text_parts(content: Any) -> list[str]:
    """The texts of a message's content, a string or a list of parts."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _media_tokens(content: Any) -> int:
    if not isinstance(content, list):
        return 0
    total = 0
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url":
            total += IMAGE_TOKENS
        elif kind in {"input_audio", "file", "video_url"}:
            total += len(encode_json(part)) * 3 // 4 // BYTES_PER_MEDIA_TOKEN
    return total


def message_text(message: dict[str, Any]) -> str:
    """All text that counts in a message: content, refusal, names, and the calls' names and arguments."""
    texts = text_parts(message.get("content"))
    texts += [value for key in ("refusal", "name") if isinstance(value := message.get(key), str)]
    functions = [call.get("function") for call in message.get("tool_calls") or () if isinstance(call, dict)]
    for function in [*functions, message.get("function_call")]:
        if isinstance(function, dict):
            texts += [value for key in ("name", "arguments") if isinstance(value := function.get(key), str)]
    return "\n".join(texts)


def input_tokens(body: dict[str, Any], counter: TokenCounter, factor: float) -> InputTokens:
    """What the request's input costs by this provider's count."""
    messages: list[dict[str, Any]] = body["messages"]
    extras = [encode_json(body[key]).decode() for key in ("tools", "functions", "response_format") if body.get(key)]
    counts = counter.count([*map(message_text, messages), *extras])
    per_message = (
        math.ceil((count + MESSAGE_TOKENS + _media_tokens(message.get("content"))) * factor)
        for count, message in zip(counts, messages, strict=False)
    )
    return InputTokens(tuple(per_message), math.ceil(sum(counts[len(messages) :]) * factor))


class PrefixCache:
    """Knows the prefixes of earlier requests, the last `entries` of them, as a chain of hashes."""

    def __init__(self, entries: int = 1 << 18) -> None:
        self._entries = entries
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def cached_tokens(self, scope: str, items: Iterable[tuple[bytes, int]]) -> int:
        """Tokens of the longest known prefix of `items` (JSON, tokens), in whole steps of 128. All become known.

        The last message's tokens are never all cached: a provider has to read at least one to answer.
        """
        chain, total, shared, known = hashlib.sha256(scope.encode("utf-8", "replace")).digest(), 0, 0, True
        for data, tokens in items:
            chain = hashlib.sha256(chain + data).digest()
            total += tokens
            known = known and chain in self._seen
            shared = total if known else shared
            self._seen[chain] = None
            self._seen.move_to_end(chain)
        while len(self._seen) > self._entries:
            self._seen.popitem(last=False)
        return min(shared, max(total - 1, 0)) // CACHE_STEP * CACHE_STEP


def prefix_items(body: dict[str, Any], tokens: InputTokens) -> list[tuple[bytes, int]]:
    """A request as what a provider's cache is keyed by: its tools first, then each message."""
    tools = encode_json([body.get("tools"), body.get("functions")])
    pairs = zip(body["messages"], tokens.messages, strict=True)
    return [(tools, tokens.tools), *((encode_json(message), count) for message, count in pairs)]
