"""Everything that is not managed: bodies streamed both ways, nothing read, nothing recorded (R2.1, R2.12)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog
from starlette.types import Receive, Scope, Send

from gateway.client import Client, ClientGoneError
from gateway.destination import check_credential, destination_for
from gateway.errors import GatewayError, upgrade_refused
from gateway.exchange import failed
from gateway.headers import Headers, header, response_headers
from gateway.settings import Settings
from gateway.upstream import UpstreamClient, UpstreamError, UpstreamResponse

log = structlog.get_logger("palimpsest.passthrough")


class PassThrough:
    """Forwards any request to the default upstream and streams the answer back."""

    def __init__(self, settings: Settings, upstream: UpstreamClient) -> None:
        self._settings = settings
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: one request."""
        client = Client(scope, receive, send)
        try:
            if asks_for_upgrade(client.headers):
                raise upgrade_refused()
            await self.forward(client, client.body_stream() or b"")
        except ClientGoneError:
            return
        except GatewayError as error:
            await client.fail(error)

    async def forward(self, client: Client, body: bytes | AsyncIterator[bytes]) -> None:
        """Send `body` on and relay the answer as it comes. Raises `GatewayError`, `ClientGoneError`.

        An answer that breaks off is broken off here too: the client sees what it would see without a gateway.
        """
        upstream = self._settings.default_upstream
        assert upstream is not None
        check_credential(client.headers, upstream)
        destination = destination_for(
            upstream, client.scope, api_key=self._settings.api_key_of(upstream), forwards_credential=True
        )
        headers = destination.headers_for(changed=False, again=False, identity=False)
        method = client.scope["method"]
        async with client.watched():
            try:
                response = await self._upstream.send(method, destination.url, headers, body, destination.timeouts)
                await _relay(client, response)
            except UpstreamError as error:
                if client.started:
                    log.warning("upstream_broke_off", upstream=upstream.name, error=str(error))
                    return
                raise failed(error, upstream.name) from error


async def _relay(client: Client, response: UpstreamResponse) -> None:
    """The answer, unread."""
    try:
        await client.start(response.status, response_headers(response.headers))
        async for chunk in response.chunks():
            await client.write(chunk)
        await client.finish()
    finally:
        await response.close()


def asks_for_upgrade(headers: Headers) -> bool:
    """Whether the client cannot do without another protocol. An offer of HTTP/2 (`h2c`) may be left unanswered."""
    offered = header(headers, b"upgrade")
    return offered is not None and offered.lower() != b"h2c"
