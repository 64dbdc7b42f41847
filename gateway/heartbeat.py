"""Signs of life for a client that waits: SSE comments or blank lines, never content (R2.6)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from gateway.client import Client, ClientGoneError
from gateway.headers import Headers
from gateway.tasks import Supervisor

COMMENT = b": keep-alive\n\n"
BLANK = b"\n"
EVENT_STREAM: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
JSON: Headers = [(b"content-type", b"application/json")]


class Heartbeat:
    """Writes `beat` once the answer has been silent for `after` seconds (None: never), then every `every` seconds.

    The first beat of an answer that has not begun sends status 200 and `headers` first: from then on the provider's
    own status can no longer be passed on. Writing is safe beside the relay, which only ever writes whole events.
    """

    def __init__(
        self, client: Client, tasks: Supervisor, beat: bytes, headers: Headers, *, after: float | None, every: float
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._beat = beat
        self._headers = headers
        self._beats = after is not None
        self._after = after if after is not None else every
        self._every = every
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._writing: asyncio.Task[None] | None = None
        self._over = False
        self._handle: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """Note that something has been sent."""
        self._last = self._loop.time()

    def __enter__(self) -> Self:
        """Begin to watch for silence."""
        self.touch()
        if self._beats:
            self._handle = self._loop.call_later(self._after, self._check)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def stop(self) -> None:
        """No further sign of life, not even one that is due."""
        self._over = True
        if self._handle is not None:
            self._handle.cancel()

    def _check(self) -> None:
        silent = self._loop.time() - self._last
        if silent < self._after - 0.001:
            self._handle = self._loop.call_later(self._after - silent, self._check)
            return
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.spawn(self._write(), "heartbeat")
        self._handle = self._loop.call_later(self._every, self._check_again)

    def _check_again(self) -> None:
        silent = self._loop.time() - self._last
        if silent < self._every - 0.001:
            # Something was sent meanwhile: silence counts anew.
            self._handle = self._loop.call_later(max(self._after - silent, 0.001), self._check)
            return
        self._check()

    async def _write(self) -> None:
        if self._over or self._client.finished:
            return
        try:
            if not self._client.started:
                await self._client.start(200, self._headers)
            await self._client.write(self._beat)
        except (ClientGoneError, OSError):
            return
