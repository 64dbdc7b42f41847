"""The provider's answer to the client, bytes as they come, each committed before it is whole (R2.4, R4.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.answer import Answer, EventStream
from gateway.client import Client
from gateway.errors import GatewayError, upstream_broke_off
from gateway.exchange import failed
from gateway.headers import response_headers
from gateway.heartbeat import Heartbeat
from gateway.recording import Outcome, Recording
from gateway.reply import Reply, ReplyFold
from gateway.sse import Event
from gateway.upstream import UpstreamError
from gateway.wire import decode_message

DONE = b"[DONE]"
ERROR_TEXT_LIMIT = 2000
Settle = Callable[[Answer, Reply | None, Outcome], Outcome]
"""Adds what was learned from a whole answer (boundary, usage) to its outcome."""


@dataclass(frozen=True, slots=True)
class Relay:
    """One answer on its way to one client."""

    client: Client
    recording: Recording
    heartbeat: Heartbeat
    settle: Settle
    streams: bool
    """The client asked for a stream."""
    withholds_usage: bool
    """The client did not ask for the usage chunk (R2.5)."""
    upstream: str

    async def run(self, answer: Answer) -> None:
        """Relay the answer. Whatever happens, the response is recorded exactly once."""
        if answer.events is None:
            await self._whole(answer)
        else:
            await self._stream(answer, answer.events)

    async def _whole(self, answer: Answer) -> None:
        status = answer.response.status
        reply = _reply_of(answer)
        error = None if answer.ok else answer.plain[:ERROR_TEXT_LIMIT].decode("utf-8", "replace")
        outcome = Outcome(status, reply, len(answer.body), interrupted=not answer.ok, error=error)
        await self.recording.close(self.settle(answer, reply, outcome))
        if self.client.started:
            # Headers had to leave early: the status can no longer be passed on (R2.6).
            await self.client.finish(_as_event(answer.plain) if self.streams else answer.plain)
        else:
            await self.client.respond(status, response_headers(answer.response.headers), answer.body)

    async def _stream(self, answer: Answer, events: EventStream) -> None:
        fold = ReplyFold()
        done = False
        await self.recording.recorded()
        encoded = await self._begin(answer, events)
        try:
            async for batch in events.batches():
                self.heartbeat.touch()
                at = _end_of_content(batch) if not done else len(batch)
                await self._write(batch[:at], fold)
                if at < len(batch):
                    done = True
                    await self._close(answer, fold)
                    await self._write(batch[at:], fold)
        except UpstreamError as error:
            await self._broke_off(answer, fold, failed(error, self.upstream))
            return
        except asyncio.CancelledError:
            # The client hung up: what was received so far is kept (R2.9).
            self.recording.abandon(self._interrupted(answer, fold, "client disconnected"))
            raise
        if events.unreadable and not encoded:
            await self._broke_off(answer, fold, upstream_broke_off(self.upstream))
            return
        if not done:
            await self._close(answer, fold)
        await self.client.finish()

    async def _begin(self, answer: Answer, events: EventStream) -> bool:
        """Send the headers, if they have not left early; whether the bytes keep the provider's encoding (R2.4)."""
        if self.client.started:
            return False
        encoded = events.encoded and (events.unreadable or not self.withholds_usage)
        if encoded:
            events.keep_encoding()
            # A plain comment line between encoded bytes would break them.
            self.heartbeat.stop()
        headers = response_headers(answer.response.headers, body_changed=events.encoded and not encoded)
        # A stream may get one event more or less than the provider announced (R2.5, R2.7).
        headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
        await self.client.start(answer.response.status, headers)
        return encoded

    async def _write(self, batch: list[Event], fold: ReplyFold) -> None:
        data = b"".join([event.raw for event in batch if not self._is_withheld(event, fold)])
        if data:
            await self.client.write(data)

    def _is_withheld(self, event: Event, fold: ReplyFold) -> bool:
        """Fold the event; True for the one chunk that the client did not ask for (R2.5)."""
        if event.data is None or event.data == DONE:
            return False
        chunk = decode_message(event.data)
        if not isinstance(chunk, dict):
            return False
        fold.add_chunk(chunk)
        return self.withholds_usage and chunk.get("choices") == [] and chunk.get("usage") is not None

    async def _close(self, answer: Answer, fold: ReplyFold) -> None:
        reply = fold.result()
        whole = reply.error is None and all(choice.finish_reason for choice in reply.choices)
        error = None if reply.error is None else str(reply.error)[:ERROR_TEXT_LIMIT]
        outcome = Outcome(answer.response.status, reply, self.client.delivered, interrupted=not whole, error=error)
        await self.recording.close(self.settle(answer, reply, outcome))

    async def _broke_off(self, answer: Answer, fold: ReplyFold, error: GatewayError) -> None:
        await self.recording.close(self._interrupted(answer, fold, str(error)))
        await self.client.fail(error)

    def _interrupted(self, answer: Answer, fold: ReplyFold, error: str) -> Outcome:
        return Outcome(answer.response.status, fold.result(), self.client.delivered, interrupted=True, error=error)


def _reply_of(answer: Answer) -> Reply | None:
    if not answer.ok or not isinstance(answer.value, dict):
        return None
    fold = ReplyFold()
    fold.add_json(answer.value)
    return fold.result()


def _end_of_content(batch: list[Event]) -> int:
    """Where `[DONE]` stands in a batch; its length if it does not."""
    return next((at for at, event in enumerate(batch) if event.data == DONE), len(batch))


def _as_event(body: bytes) -> bytes:
    """A provider's error as the last event of a stream that had to begin before it (R2.7)."""
    return b"data: " + b" ".join(body.splitlines()) + b"\n\n"
