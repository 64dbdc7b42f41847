"""Answers as they go out: each event its own ASGI message, paced and broken as the faults say."""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.simulator.faults import NEVER_ANSWERS, NO_FAULTS, Faults
from gateway.simulator.jsonio import encode_json

EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"
_JSON_PIECES = 4


def data_event(value: Any, newline: bytes = b"\n") -> bytes:
    """One event that holds a JSON value."""
    return b"data: " + encode_json(value) + newline * 2


def stream_events(
    chunks: Iterable[dict[str, Any]], faults: Faults, comment: bytes | None = None, error: Any = None
) -> list[bytes]:
    """The events of a stream, each whole, with the faults that change its text. `error` is what an error event holds."""
    newline = faults.newline
    events = [data_event(chunk, newline) for chunk in _usage_beside(list(chunks), faults)]
    if faults.malformed:
        middle = len(events) // 2
        events[middle] = events[middle][: len(events[middle]) // 2] + newline * 2
    if faults.error_event is not None:
        events = [*events[: faults.error_event], data_event(error, newline)]
    elif not faults.no_done:
        events.append(b"data: [DONE]" + newline * 2)
    if faults.comments:
        comments = (b": still here " + str(number).encode() + newline * 2 for number in range(len(events)))
        events = list(chain.from_iterable(zip(comments, events, strict=True)))
    return [comment + newline * 2, *events] if comment else events


def _usage_beside(chunks: list[dict[str, Any]], faults: Faults) -> list[dict[str, Any]]:
    if not faults.usage_beside or len(chunks) < 2 or chunks[-1]["choices"]:
        return chunks
    return [*chunks[:-2], chunks[-2] | {"usage": chunks[-1]["usage"]}]


def json_pieces(body: bytes, faults: Faults) -> list[bytes]:
    """A JSON answer in pieces: several only where a fault acts between them."""
    if faults.malformed:
        body = body[: len(body) // 2]
    if faults.cut is None and faults.hang is None and not faults.slow:
        return [body]
    size = max(len(body) // _JSON_PIECES, 1)
    return [body[start : start + size] for start in range(0, len(body), size)]


class PacedResponse(Response):
    """An answer in pieces. `on_end` is told "complete", "cut" or "disconnected" once nothing more is sent."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        status: int = 200,
        media_type: str = JSON,
        headers: Mapping[str, str] | None = None,
        faults: Faults = NO_FAULTS,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self.status_code = status
        self.media_type = media_type
        self.background = None
        self.body = b""
        self._faults = faults
        self._on_end = on_end
        self._pieces = pieces
        own = {"content-type": media_type}
        if faults.gzip:
            self._pieces = _gzipped(pieces)
            own["content-encoding"] = "gzip"
        if media_type == JSON:
            own["content-length"] = str(sum(map(len, self._pieces)))
        else:
            own["cache-control"] = "no-cache"
        merged = own | dict(headers or {})
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in merged.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the ASGI signature
        """Sends the answer. Where it is cut, returns without an end, so that the server closes the connection."""
        outcome = "disconnected"
        try:
            outcome = await self._send_all(receive, send)
        finally:
            if self._on_end:
                self._on_end(outcome)

    async def _send_all(self, receive: Receive, send: Send) -> str:
        faults = self._faults
        if faults.hang == NEVER_ANSWERS:
            await disconnected(receive)
            return "disconnected"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for index, piece in enumerate(self._pieces):
            if index == faults.hang:
                await send({"type": "http.response.body", "body": b"", "more_body": True})
                await disconnected(receive)
                return "disconnected"
            if index == faults.cut:
                # An empty message makes the server write what it holds, also when nothing was sent yet.
                await send({"type": "http.response.body", "body": b"", "more_body": True})
                return "cut"
            if faults.slow and await disconnected(receive, faults.slow):
                return "disconnected"
            size = faults.split or len(piece) or 1
            for start in range(0, len(piece), size):
                await send({"type": "http.response.body", "body": piece[start : start + size], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return "complete"


def _gzipped(pieces: Sequence[bytes]) -> list[bytes]:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    packed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*packed, packer.flush()]


async def disconnected(receive: Receive, seconds: float | None = None) -> bool:
    """Whether the client leaves within the time (None: waits until it does). The request body has been read."""
    try:
        async with asyncio.timeout(seconds):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True
