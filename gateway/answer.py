"""What came back from the provider, read only as far as needed to know what it is (R2.4, R10.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from gateway.encodings import EncodingError, ResponseDecoder
from gateway.overflow import AnswerKind, RequestFacts, Verdict, classify
from gateway.sse import Event, EventDecoder
from gateway.upstream import UpstreamResponse
from gateway.wire import decode_message

MOST_HELD = 1 << 20
"""Bytes of an error stream that are kept while another attempt is made."""
NO_ERROR = Verdict(AnswerKind.NONE, None, None, at_least=False)


@dataclass(slots=True)
class Answer:
    """An upstream answer: a whole body, or a stream whose first event is known."""

    response: UpstreamResponse
    verdict: Verdict
    body: bytes = b""
    """The whole body as it came, if this is no stream."""
    plain: bytes = b""
    """The same without content encodings."""
    value: Any = None
    """The decoded body, if it is JSON."""
    events: EventStream | None = None

    @property
    def refused(self) -> bool:
        """The provider says that the input is too long (R10.1)."""
        return self.verdict.kind is AnswerKind.INPUT_OVERFLOW

    @property
    def ok(self) -> bool:
        """The provider did what it was asked."""
        return self.response.status < 300 and self.verdict.kind is AnswerKind.NONE

    async def hold(self) -> None:
        """Read what is left of a refusal, so that it can be given when its connection is no more."""
        if self.events is not None:
            await self.events.hold()


class ReadableCopy:
    """The decoded copy of a body (R2.13). What cannot be decoded is not read, and relayed all the same."""

    def __init__(self, content_encoding: str) -> None:
        self.encoded = True
        self.unreadable = False
        self._decoder: ResponseDecoder | None = None
        try:
            self._decoder = ResponseDecoder(content_encoding)
            self.encoded = not self._decoder.is_identity
        except EncodingError:
            self.unreadable = True

    def feed(self, data: bytes) -> bytes:
        """What can be decoded so far."""
        if self._decoder is None or self.unreadable:
            return b""
        try:
            return self._decoder.feed(data)
        except EncodingError:
            self.unreadable = True
            return b""


class EventStream:
    """The events of an answer in batches as they arrive; a batch may be looked at before it is taken."""

    def __init__(self, response: UpstreamResponse) -> None:
        self._chunks = response.chunks()
        self._copy = ReadableCopy(response.header("content-encoding"))
        self._decoder = EventDecoder()
        self._pending: list[Event] = []
        self._wire = bytearray()
        self._keeps_encoding = False
        self._ended = False

    @property
    def encoded(self) -> bool:
        """The provider compresses, though it was asked not to."""
        return self._copy.encoded

    @property
    def unreadable(self) -> bool:
        """The encoding is unknown, or the bytes are not what it says: from there on no events are seen."""
        return self._copy.unreadable

    def keep_encoding(self) -> None:
        """Give the bytes of an encoded stream as they came: an event's are empty, and one without data carries all."""
        self._keeps_encoding = True

    async def peek(self) -> Event | None:
        """The first event or comment; None if the stream ends without one."""
        while not self._pending and not self._ended:
            await self._read()
        return self._pending[0] if self._pending else None

    async def hold(self) -> None:
        """Read on to the end, or to the most that is kept of an error."""
        while not self._ended and sum(len(event.raw) for event in self._pending) < MOST_HELD:
            await self._read()
        self._ended = True

    async def batches(self) -> AsyncIterator[list[Event]]:
        """All events in order, those that were looked at first."""
        while True:
            if batch := self._taken():
                yield batch
            if self._ended:
                return
            await self._read()

    def _taken(self) -> list[Event]:
        batch, self._pending = self._pending, []
        if self._keeps_encoding and self._wire:
            carrier = Event(bytes(self._wire), None, None, True)
            batch = [*(event._replace(raw=b"") for event in batch), carrier]
        self._wire.clear()
        return batch

    async def _read(self) -> None:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            self._ended = True
            self._pending += self._decoder.end()
        else:
            if self.encoded:
                self._wire += chunk
            self._pending += self._decoder.feed(self._copy.feed(chunk))


async def read_answer(response: UpstreamResponse, facts: RequestFacts, *, wants_stream: bool) -> Answer:
    """Read a whole JSON answer, or a stream up to its first event. Raises `UpstreamError`."""
    if wants_stream and response.status < 300 and "json" not in response.header("content-type"):
        return await _begin_stream(response, facts)
    body = await response.read()
    plain = ReadableCopy(response.header("content-encoding")).feed(body)
    value = decode_message(plain)
    if response.status < 300 and _says_something(value):
        return Answer(response, NO_ERROR, body, plain, value)
    verdict = classify(response.status, response.header("content-type"), plain, facts)
    return Answer(response, verdict, body, plain, value)


async def _begin_stream(response: UpstreamResponse, facts: RequestFacts) -> Answer:
    events = EventStream(response)
    first = await events.peek()
    verdict = NO_ERROR
    if first is not None and first.data is not None and not _is_plain_chunk(first.data):
        verdict = classify(response.status, response.header("content-type"), first.raw, facts)
    return Answer(response, verdict, events=events)


def _says_something(value: Any) -> bool:
    """A completion with content: no error, whatever its words. All other answers are looked at closely (R10.1)."""
    if not isinstance(value, dict) or value.get("error") is not None:
        return False
    choices = value.get("choices")
    return isinstance(choices, list) and bool(choices) and all(map(_has_content, choices))


def _has_content(choice: Any) -> bool:
    message = choice.get("message") if isinstance(choice, dict) and choice.get("error") is None else None
    return isinstance(message, dict) and bool(message.get("content") or message.get("tool_calls"))


def _is_plain_chunk(data: bytes) -> bool:
    """A first event that cannot be an error: the quick way for almost all streams."""
    return b'"choices"' in data and b"error" not in data and b"exceeded" not in data
