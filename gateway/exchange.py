"""The calls to the provider that one request leads to, with the few repeats that are allowed (R2.10)."""

from __future__ import annotations

from dataclasses import replace

from gateway.answer import Answer, read_answer
from gateway.compiled import Compiled, without_members
from gateway.destination import Destination, bearer, summary_headers
from gateway.errors import GatewayError, upstream_broke_off, upstream_timeout, upstream_unreachable
from gateway.overflow import AnswerKind, RequestFacts
from gateway.routes import RouteBook
from gateway.settings import Route, Settings
from gateway.summariser import OnSend, OnUsage, Summariser
from gateway.targets import target
from gateway.upstream import Failure, UpstreamClient, UpstreamError, UpstreamResponse
from gateway.wire import ChatRequest


class Exchange:
    """Sends the bodies of one request to its route."""

    def __init__(
        self,
        upstream: UpstreamClient,
        routes: RouteBook,
        route: Route,
        destination: Destination,
        request: ChatRequest,
        received: bytes,
    ) -> None:
        self._upstream = upstream
        self._routes = routes
        self._route = route
        self._destination = destination
        self._request = request
        self._received = received
        self._sent = 0
        self._response: UpstreamResponse | None = None

    async def ask(self, compiled: Compiled) -> tuple[Answer, Compiled]:
        """The provider's answer, and what it answered. Raises `GatewayError` (502, 504) and nothing else."""
        try:
            answer = await self._send(compiled)
            refused = self._refused_member(answer, compiled)
            if refused is None:
                return answer, compiled
            # R2.10 c: once more without what only the gateway had asked for, and never again on this route.
            self._routes.refuse_member(self._route.name, refused)
            await self.close()
            plain = without_members(compiled, {refused})
            return await self._send(plain), plain
        except UpstreamError as error:
            raise failed(error, self._route.upstream.name) from error

    async def _send(self, compiled: Compiled) -> Answer:
        request = self._request
        window = self._routes.window(self._route)
        facts = RequestFacts(window=window, output_limit=request.output_limit, estimate=compiled.after)
        self._response = await self._connect(compiled.body)
        return await read_answer(self._response, facts, wants_stream=request.stream)

    async def _connect(self, body: bytes) -> UpstreamResponse:
        changed = body is not self._request.body
        headers = self._destination.headers_for(changed=changed, again=self._sent > 0)
        if not changed:
            # The client's own bytes, still in its own encoding.
            body = self._received
        self._sent += 1
        url, timeouts = self._destination.url, self._destination.timeouts
        return await self._upstream.send("POST", url, headers, body, timeouts)

    def _refused_member(self, answer: Answer, compiled: Compiled) -> str | None:
        """The member of the gateway's own that a 4xx names, if any."""
        if not 400 <= answer.response.status < 500 or answer.verdict.kind is not AnswerKind.OTHER:
            return None
        text = answer.plain[:65_536]
        return next((name for name in compiled.added if name.encode() in text), None)

    async def close(self) -> None:
        """Give up the open answer; an unread rest is cancelled at the provider (R2.9)."""
        if self._response is not None:
            response, self._response = self._response, None
            await response.close()

    def summariser(self, settings: Settings, on_send: OnSend, on_usage: OnUsage) -> Summariser:
        """The caller's way to the model that summarises: its own route, unless `compaction.model` is set (R8.2)."""
        request, model = self._request, settings.compaction.model
        route, destination = self._route, self._destination
        if model is not None:
            route = settings.route_for(model)
            destination = self._to(route)
        return Summariser(
            upstream=self._upstream,
            routes=self._routes,
            route=route,
            destination=replace(destination, headers=summary_headers(destination.headers)),
            limit_name=request.output_limit_name,
            reasoning="reasoning_effort" in request.members,
            timeout=settings.compaction.summary_timeout,
            on_send=on_send,
            on_usage=on_usage,
        )

    def _to(self, route: Route) -> Destination:
        """The same caller's way to another route: its credential goes only where it may (R9.8)."""
        url = self._destination.url
        if route.upstream.name != self._route.upstream.name:
            url = target(route.upstream.base_url, b"/v1/chat/completions", b"")
        return replace(
            self._destination,
            url=url,
            forwards_credential=route.forwards_credential and route.api_key is None,
            credential=bearer(route.api_key),
        )


def failed(error: UpstreamError, upstream: str) -> GatewayError:
    """The answer to a client whose upstream failed below HTTP."""
    match error.failure:
        case Failure.CONNECT:
            return upstream_unreachable(upstream)
        case Failure.TIMEOUT:
            return upstream_timeout(upstream)
        case Failure.BROKEN:
            return upstream_broke_off(upstream)
