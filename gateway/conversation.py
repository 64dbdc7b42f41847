"""A request read as a conversation: preamble, history, path, and what each part costs in tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from compaction.canonical import Reading, build_path, read_message
from compaction.size import message_tokens
from compaction.types import Message, Path
from gateway.cache import GenerationCache
from gateway.tokens import TokenCounter
from gateway.wire import ChatRequest, decode_message

OVERHEAD_MEMBERS = ("tools", "functions", "response_format")
CACHED_MESSAGES = 50_000


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request of one tenant, with the identity of its history (SPEC 1)."""

    tenant: str
    request: ChatRequest
    preamble: tuple[bytes, ...]
    """Exact bytes of the leading system and developer messages."""
    history: tuple[bytes, ...]
    """Exact bytes of the messages after the preamble: `history[seq - 1]`."""
    path: Path
    overhead: int
    """Estimated tokens of preamble, tools and response format (R5.3)."""
    encoding: str

    @property
    def tokens(self) -> int:
        """Estimated tokens of the whole request, uncalibrated."""
        return self.overhead + sum(message.tokens for message in self.path.messages)


class ConversationReader:
    """Reads requests; only text that was not seen before is parsed, hashed and counted (R5.3, R16.2)."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._messages: dict[tuple[str, int | None], GenerationCache[bytes, Message]] = {}
        self._members: GenerationCache[tuple[str, bytes], int] = GenerationCache(1024)

    async def read(self, tenant: str, request: ChatRequest, model: str | None, window: int | None) -> Conversation:
        """The conversation that a request carries."""
        encoding = self._counter.encoding_for(model)
        messages = await self._read_messages(request.messages, encoding, window)
        leading = sum(1 for _ in takewhile(lambda message: message.role == "system", messages))
        overhead = sum(message.tokens for message in messages[:leading])
        return Conversation(
            tenant=tenant,
            request=request,
            preamble=request.messages[:leading],
            history=request.messages[leading:],
            path=build_path(tenant, messages[leading:]),
            overhead=overhead + self._member_tokens(request, encoding),
            encoding=encoding,
        )

    async def _read_messages(self, raws: Sequence[bytes], encoding: str, window: int | None) -> list[Message]:
        known = self._messages.setdefault((encoding, window), GenerationCache(CACHED_MESSAGES))
        names = [hashlib.sha256(raw).digest() for raw in raws]
        found = [known.get(name) for name in names]
        missing = [index for index, message in enumerate(found) if message is None]
        if missing:
            readings = [read_message(decode_message(raws[index]), raws[index]) for index in missing]
            for index, message in zip(missing, await self._counted(readings, encoding, window), strict=True):
                known.put(names[index], message)
                found[index] = message
        return [message for message in found if message is not None]

    async def _counted(self, readings: Sequence[Reading], encoding: str, window: int | None) -> list[Message]:
        texts = ["\n".join(reading.texts) for reading in readings]
        counts = await self._counter.count_async(texts, encoding)
        return [
            reading.message(message_tokens(reading, count, window))
            for reading, count in zip(readings, counts, strict=True)
        ]

    def _member_tokens(self, request: ChatRequest, encoding: str) -> int:
        total = 0
        for name in OVERHEAD_MEMBERS:
            if (raw := request.raw(name)) is None:
                continue
            key = (encoding, hashlib.sha256(raw).digest())
            tokens = self._members.get(key)
            if tokens is None:
                tokens = self._counter.count([raw.decode("utf-8", "replace")], encoding)[0]
                self._members.put(key, tokens)
            total += tokens
        return total
