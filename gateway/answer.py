"""What came back from the provider, read only as far as needed to know what it is (R2.4, R10.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from gateway.encodings import ResponseDecoder
from gateway.overflow import AnswerKind, RequestFacts, Verdict, classify
from gateway.sse import Event, EventDecoder
from gateway.upstream import UpstreamResponse
from gateway.wire import decode_message

NO_ERROR = Verdict(AnswerKind.NONE, None, None, at_least=False)


@dataclass(slots=True)
class Answer:
    """An upstream answer: a whole body, or a stream whose first event is known."""

    response: UpstreamResponse
    verdict: Verdict
    body: bytes = b""
    """The whole body as it came, if this is no stream."""
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


class EventStream:
    """The events of an answer in batches as they arrive; a batch may be looked at before it is taken."""

    def __init__(self, response: UpstreamResponse) -> None:
        self._chunks = response.chunks()
        self._decode = ResponseDecoder(response.header("content-encoding")).feed
        self._decoder = EventDecoder()
        self._pending: list[Event] = []
        self._ended = False

    async def peek(self) -> Event | None:
        """The first event or comment; None if the stream ends without one."""
        while not self._pending and not self._ended:
            await self._read()
        return self._pending[0] if self._pending else None

    async def batches(self) -> AsyncIterator[list[Event]]:
        """All events in order, those that were looked at first."""
        while True:
            if self._pending:
                batch, self._pending = self._pending, []
                yield batch
            if self._ended:
                return
            await self._read()

    async def _read(self) -> None:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            self._ended = True
            self._pending += self._decoder.end()
        else:
            self._pending += self._decoder.feed(self._decode(chunk))


async def read_answer(response: UpstreamResponse, facts: RequestFacts, *, wants_stream: bool) -> Answer:
    """Read a whole JSON answer, or a stream up to its first event. Raises `UpstreamError`."""
    if wants_stream and response.status < 300 and "json" not in response.header("content-type"):
        return await _begin_stream(response, facts)
    body = await response.read()
    plain = ResponseDecoder(response.header("content-encoding")).feed(body)
    value = decode_message(plain)
    if response.status < 300 and isinstance(value, dict) and "choices" in value:
        return Answer(response, NO_ERROR, body, value)
    verdict = classify(response.status, response.header("content-type"), plain, facts)
    return Answer(response, verdict, body, value)


async def _begin_stream(response: UpstreamResponse, facts: RequestFacts) -> Answer:
    events = EventStream(response)
    first = await events.peek()
    verdict = NO_ERROR
    # Only an error is looked at closely; any other `data:` event is content (R2.4).
    if first is not None and first.data is not None and b'"choices"' not in first.data:
        verdict = classify(response.status, response.header("content-type"), first.raw, facts)
    return Answer(response, verdict, events=events)
