"""Everything that is not managed: bodies streamed both ways, nothing read, nothing recorded (R2.1, R2.12)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from gateway.client import Client, ClientGoneError
from gateway.destination import check_credential, destination_for
from gateway.errors import GatewayError, upgrade_refused
from gateway.exchange import failed
from gateway.headers import header, response_headers
from gateway.settings import Settings
from gateway.upstream import UpstreamClient, UpstreamError, UpstreamResponse


class PassThrough:
    """Forwards any request to the default upstream and streams the answer back."""

    def __init__(self, settings: Settings, upstream: UpstreamClient) -> None:
        self._settings = settings
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: one request."""
        client = Client(scope, receive, send)
        try:
            if header(client.headers, b"upgrade") is not None:
                raise upgrade_refused()
            await self.forward(client, client.body_parts())
        except ClientGoneError:
            return
        except GatewayError as error:
            await client.fail(error)

    async def forward(self, client: Client, body: bytes | AsyncIterator[bytes]) -> None:
        """Send `body` on and relay the answer as it comes. Raises `GatewayError`, `ClientGoneError`."""
        upstream = self._settings.default_upstream
        assert upstream is not None
        check_credential(client.headers, upstream)
        destination = destination_for(
            upstream, client.scope, api_key=self._settings.api_key_of(upstream), forwards_credential=True
        )
        headers = destination.headers_for(changed=False, again=False)
        method = client.scope["method"]
        content = body if client.has_body else b""
        try:
            response = await self._upstream.send(method, destination.url, headers, content, destination.timeouts)
        except UpstreamError as error:
            raise failed(error, upstream.name) from error
        try:
            await relay_raw(client, response)
        except UpstreamError as error:
            raise failed(error, upstream.name) from error
        finally:
            await response.close()


async def relay_raw(client: Client, response: UpstreamResponse) -> None:
    """The answer, unread."""
    async with client.watched():
        await client.start(response.status, response_headers(response.headers))
        async for chunk in response.chunks():
            await client.write(chunk)
        await client.finish()
