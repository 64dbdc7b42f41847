"""`openai` clients that note every answer as it came over the wire: status, headers, undecoded bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

API_KEY = "key-one"
# Set per message by whoever sends it; the gateway's own are additions that every client ignores (R2.11).
_APART = ("date", "x-palimpsest-")


@dataclass
class Exchange:
    """One answer of a server, undecoded. `headers` are sorted, those set apart removed."""

    status: int
    headers: list[tuple[bytes, bytes]]
    own_headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, response: httpx.Response) -> Exchange:
        pairs = [(name.lower(), value) for name, value in response.headers.raw]
        kept = sorted(pair for pair in pairs if not pair[0].decode().startswith(_APART))
        own = {name: value for name, value in response.headers.items() if name.startswith("x-palimpsest-")}
        return cls(response.status_code, kept, own)

    def as_value(self) -> tuple[Any, ...]:
        """What must be the same with and without a gateway between."""
        return self.status, self.headers, bytes(self.body)


class _Tee(httpx.SyncByteStream):
    """Notes what is read. Whoever closes early, as the SDK does behind `[DONE]`, has the rest read for the record."""

    def __init__(self, stream: Any, into: bytearray) -> None:
        self._stream, self._parts, self._into = stream, iter(stream), into

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            self._into += part
            yield part

    def close(self) -> None:
        for part in self._parts:
            self._into += part
        self._stream.close()


class _AsyncTee(httpx.AsyncByteStream):
    def __init__(self, stream: Any, into: bytearray) -> None:
        self._stream, self._parts, self._into = stream, aiter(stream), into

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._parts:
            self._into += part
            yield part

    async def aclose(self) -> None:
        async for part in self._parts:
            self._into += part
        await self._stream.aclose()


class RecordingTransport(httpx.HTTPTransport):
    """httpx's own transport, with a copy of everything that comes back in `exchanges`."""

    def __init__(self) -> None:
        super().__init__(verify=False)  # plain HTTP: certificates need not be read
        self.exchanges: list[Exchange] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        exchange = Exchange.of(response)
        self.exchanges.append(exchange)
        response.stream = _Tee(response.stream, exchange.body)
        return response


class AsyncRecordingTransport(httpx.AsyncHTTPTransport):
    """The same for the asynchronous client."""

    def __init__(self) -> None:
        super().__init__(verify=False)  # plain HTTP: certificates need not be read
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        exchange = Exchange.of(response)
        self.exchanges.append(exchange)
        response.stream = _AsyncTee(response.stream, exchange.body)
        return response


def sync_client(url: str, transport: RecordingTransport, **options: Any) -> openai.OpenAI:
    """An `openai` client of the server at `url`."""
    http = httpx.Client(transport=transport)
    return openai.OpenAI(base_url=f"{url}/v1", http_client=http, **{"api_key": API_KEY, "max_retries": 0, **options})


def async_client(url: str, transport: AsyncRecordingTransport, **options: Any) -> openai.AsyncOpenAI:
    """An asynchronous `openai` client of the server at `url`."""
    http = httpx.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", http_client=http, **{"api_key": API_KEY, "max_retries": 0, **options}
    )
