"""The HTTP client: send a request, stream the answer. Exceptions are mapped once, here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from yarl import URL

from gateway.cache import GenerationCache
from gateway.headers import Headers

LARGE_BODY = 1 << 20
_PIECE = 1 << 18


class Failure(StrEnum):
    """How an upstream call failed below HTTP."""

    CONNECT = "connect"
    TIMEOUT = "timeout"
    BROKEN = "broken"


class UpstreamError(Exception):
    """The upstream could not be reached, fell silent, or broke off.

    `sent` is False only where connecting failed, so that nothing can have reached the provider (R2.10 b).
    """

    def __init__(self, failure: Failure, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.failure = failure
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `read` is the longest silence between two reads; there is no total limit (R2.6)."""

    connect: float = 10.0
    read: float = 600.0


class UpstreamResponse:
    """An answer whose body has not been read yet. Close it on every way out."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Headers = response.headers.raw

    def header(self, name: str) -> str:
        """The value of a header, or an empty string."""
        value: str = self._response.headers.get(name, "")
        return value

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, not decoded (R2.4). Raises `UpstreamError`."""
        with mapped_errors():
            async for chunk in self._response.stream:  # type: ignore[union-attr]
                yield chunk

    async def read(self) -> bytes:
        """The whole body, not decoded. Raises `UpstreamError`."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def close(self) -> None:
        """Give the connection back, or drop it when the body was not read to its end (R2.9)."""
        with mapped_errors():
            await self._response.stream.aclose()  # type: ignore[union-attr]


class UpstreamClient:
    """One connection pool for all upstreams, without cookies, redirects or limits of its own."""

    def __init__(self) -> None:
        self._transport = _ExactTransport()
        self._urls: GenerationCache[str, httpx.URL] = GenerationCache(1024)

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
    ) -> UpstreamResponse:
        """Send one request and return once the answer's headers are there. Raises `UpstreamError`.

        Where connecting failed nothing was sent, and it is tried once more (R2.10 b); nothing else is ever repeated.
        """
        try:
            return await self._send(method, url, headers, body, timeouts)
        except UpstreamError as error:
            if error.sent:
                raise
        return await self._send(method, url, headers, body, timeouts)

    async def _send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
    ) -> UpstreamResponse:
        target = self._urls.get(url)
        if target is None:
            target = httpx.URL(url)
            self._urls.put(url, target)
        if isinstance(body, bytes) and len(body) > LARGE_BODY:
            # In one piece it would hold up all others while it is copied.
            headers, body = _with_length(headers, len(body)), _pieces(body)
        request = httpx.Request(
            method,
            target,
            headers=headers,
            content=body,
            extensions={
                "timeout": {"connect": timeouts.connect, "read": timeouts.read, "pool": timeouts.connect},
            },
        )
        with mapped_errors():
            return UpstreamResponse(await self._transport.handle_async_request(request))

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


class _ExactTransport(AiohttpTransport):
    """The transport, with targets and headers that leave as they are written (R2.1)."""

    def __init__(self) -> None:
        super().__init__()
        self._exact: _ExactSession | None = None

    def get_client(self) -> aiohttp.ClientSession:
        """The session, made in the running event loop. The transport asks for it with each request."""
        if self._exact is None:
            self._exact = _ExactSession(_session())
        return cast(aiohttp.ClientSession, self._exact)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._exact is not None:
            await self._exact.close()


class _ExactSession:
    """The part of a session that the transport uses.

    A session itself would decode `%2F` in a query, and the transport hands it headers that came twice as one.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.close = session.close

    def request(self, *, url: str, headers: httpx.Headers, **options: Any) -> Any:
        """As `aiohttp.ClientSession.request`, for a URL that is already encoded and headers that may come twice."""
        pairs = [(name.decode("latin-1"), _text(value)) for name, value in headers.raw]
        return self._session.request(url=URL(url, encoded=True), headers=pairs, **options)


def _text(value: bytes) -> str:
    """What aiohttp, which writes headers as UTF-8, makes the same bytes of; of a value in Latin-1 the same text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _with_length(headers: Headers, length: int) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), _PIECE):
        yield body[at : at + _PIECE]


def _session() -> aiohttp.ClientSession:
    """The session under the transport; see docs/design.md, "Edges of the HTTP client"."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0, ttl_dns_cache=60),
        # The default jar would carry one tenant's cookie to the next (R2.13).
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=aiohttp.ClientTimeout(total=None),
        max_line_size=65_536,
        max_field_size=65_536,
        auto_decompress=False,
        trust_env=False,
    )
    # It would send a GET or DELETE again when a kept connection drops after sending (R2.10); there is no public switch.
    session._retry_connection = False  # noqa: SLF001
    return session


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn what the transport raises into `UpstreamError`, by its cause: its own mapping mixes them up."""
    try:
        yield
    except (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _mapped(error) from error


def _mapped(error: BaseException) -> UpstreamError:
    cause = error if isinstance(error, aiohttp.ClientError) else error.__cause__ or error
    text = str(cause) or type(cause).__name__
    if isinstance(cause, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return UpstreamError(Failure.CONNECT, text, sent=False)
    if isinstance(cause, (aiohttp.ServerTimeoutError, TimeoutError)):
        return UpstreamError(Failure.TIMEOUT, text, sent=True)
    return UpstreamError(Failure.BROKEN, text, sent=True)
