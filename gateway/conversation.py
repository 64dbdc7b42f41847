"""A request read as a conversation: preamble, history, path, and what each part costs in tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from compaction.canonical import Chain, Reading, begin_chain, extend_chain, read_message
from compaction.size import message_tokens
from compaction.types import Message, Path
from gateway.cache import GenerationCache
from gateway.tokens import TokenCounter
from gateway.wire import ChatRequest, decode_message

_Measure = tuple[str, int | None]
"""What token figures depend on: the encoding, and the window that bounds what a file may cost (R5.3)."""
OVERHEAD_MEMBERS = ("tools", "functions", "response_format")
CACHED_MESSAGES = 50_000
CACHED_CHAINS = 256
STEPS_BACK = 8
"""A conversation's next request adds an echo and a few messages; further back nothing is looked for."""


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
        return self.overhead + self.path.tokens(1, len(self.path))


class ConversationReader:
    """Reads requests; only text that was not seen before is parsed, hashed and counted (R5.3, R16.2)."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._messages: dict[_Measure, GenerationCache[bytes, Message]] = {}
        self._chains: GenerationCache[bytes, Chain] = GenerationCache(CACHED_CHAINS)
        self._members: GenerationCache[tuple[str, bytes], int] = GenerationCache(1024)

    async def read(self, tenant: str, request: ChatRequest, model: str | None, window: int | None) -> Conversation:
        """The conversation that a request carries."""
        measure = (self._counter.encoding_for(model), window)
        raws = request.messages
        preamble: list[Message] = []
        for raw in raws:
            [message] = await self._read_messages((raw,), measure)
            if message.role != "system":
                break
            preamble.append(message)
        leading = len(preamble)
        chain = await self._chain(tenant, raws[leading:], measure)
        return Conversation(
            tenant=tenant,
            request=request,
            preamble=raws[:leading],
            history=raws[leading:],
            path=chain.path,
            overhead=sum(message.tokens for message in preamble) + self._member_tokens(request, measure[0]),
            encoding=measure[0],
        )

    async def _chain(self, tenant: str, raws: Sequence[bytes], measure: _Measure) -> Chain:
        """The history's chain, from that of an earlier request of the same conversation if there was one."""
        names = _chain_names(f"{tenant}|{measure}".encode(), raws)
        count = len(raws)
        for back, name in enumerate(reversed(names)):
            found = self._chains.get(name)
            if found is not None:
                chain, known = found, count - back
                break
        else:
            chain, known = begin_chain(tenant), 0
        if known < count:
            chain = extend_chain(chain, await self._read_messages(raws[known:], measure))
            self._chains.put(names[-1], chain)
        return chain

    async def _read_messages(self, raws: Sequence[bytes], measure: _Measure) -> list[Message]:
        """The messages with these exact bytes."""
        known = self._messages.get(measure)
        if known is None:
            known = self._messages[measure] = GenerationCache(CACHED_MESSAGES)
        names = [hashlib.sha256(raw).digest() for raw in raws]
        found = [known.get(name) for name in names]
        missing = [index for index, message in enumerate(found) if message is None]
        if missing:
            readings = [read_message(decode_message(raws[index]), raws[index]) for index in missing]
            for index, message in zip(missing, await self._counted(readings, *measure), strict=True):
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


def _chain_names(key: bytes, raws: Sequence[bytes]) -> list[bytes]:
    """Names for the last few beginnings of a history, the whole one's last: one hash of all bytes.

    An object's text ends where its brace closes, so that texts that follow each other can be read in one way only.
    """
    first = max(len(raws) - STEPS_BACK, 0)
    hashed = hashlib.sha256(b"\0".join((key, *raws[:first])))
    names = []
    for raw in raws[first:]:
        hashed.update(b"\0" + raw)
        names.append(hashed.copy().digest())
    return names
