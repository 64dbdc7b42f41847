"""The client's side of one request: plain ASGI, so that a hang-up is noticed at any moment (R2.9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError, body_too_large
from gateway.headers import Headers


class ClientGoneError(Exception):
    """The client has hung up; there is nobody to answer."""


class Client:
    """One request of one client, and the answer as far as it was given."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers: Headers = scope["headers"]
        self.started = False
        self.delivered = 0
        """Bytes of the body handed to the server so far."""
        self.answer_headers: Headers = []
        """Headers of the gateway's own, sent with whatever answer there will be (R2.11)."""
        self.status = 0
        self.finished = False
        self._receive = receive
        self._send = send
        self._gone = False
        self._json = False
        # One reader at a time: what watches for a hang-up must not take the body's parts.
        self._body_read = asyncio.Event()

    async def read_body(self, limit: int) -> bytes:
        """The whole request body. Raises `GatewayError` (413) over `limit` bytes, `ClientGoneError`."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise body_too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                self._body_read.set()
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def body_stream(self) -> AsyncIterator[bytes] | None:
        """The request body as it comes; None where the request announces none (RFC 9112 section 6)."""
        if any(name in {b"content-length", b"transfer-encoding"} for name, _ in self.headers):
            return self._body_parts()
        self._body_read.set()
        return None

    async def _body_parts(self) -> AsyncIterator[bytes]:
        """Raises `ClientGoneError`."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                self._body_read.set()
                raise ClientGoneError
            more = message.get("more_body", False)
            if part := message.get("body", b""):
                yield part
        self._body_read.set()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel what runs inside as soon as the client hangs up; comes out as `ClientGoneError`."""
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(self._watch(task))
        try:
            yield
        except asyncio.CancelledError:
            if self._gone and task.uncancel() == 0:
                raise ClientGoneError from None
            raise
        finally:
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[None]) -> None:
        await self._body_read.wait()
        while not self._gone:
            self._gone = (await self._receive())["type"] == "http.disconnect"
        task.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers, those of the gateway's own included."""
        self.started = True
        self.status = status
        self._json = any(name.lower() == b"content-type" and b"json" in value for name, value in headers)
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.answer_headers]})

    async def write(self, data: bytes) -> None:
        """Send a part of the body; returns when the server has room for more."""
        self.delivered += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self.finished = True
        self.delivered += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        await self.start(status, headers)
        await self.finish(body)

    async def fail(self, error: GatewayError) -> None:
        """Answer with an error of the gateway's own: an envelope, or the last event of a begun stream (R2.7)."""
        body = error.body()
        if self.started:
            # Headers of a client that does not stream can have left early too (R2.6): then JSON it is.
            await self.finish(body if self._json else error.event())
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.respond(error.status, [*headers, *error.raw_headers()], body)
