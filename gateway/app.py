"""Puts the gateway together. The only place that constructs things."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as HttpRoute
from starlette.types import Receive, Scope, Send

from compaction.types import Policy
from gateway.chat import ChatEndpoint
from gateway.compaction_runs import CompactionRuns
from gateway.compactors import TextCompactor
from gateway.context import ContextCompiler
from gateway.conversation import ConversationReader
from gateway.errors import not_found, upgrade_refused
from gateway.identity import Tenants
from gateway.model_lists import ModelLists
from gateway.models import ModelWindows
from gateway.passthrough import PassThrough
from gateway.prompts import load_prompts
from gateway.recoveries import Recoveries
from gateway.routes import RouteBook
from gateway.secret import load_secret
from gateway.services import Services
from gateway.settings import Settings
from gateway.tasks import Supervisor
from gateway.telemetry import METRICS_CONTENT_TYPE, Metrics
from gateway.tokens import DEFAULT_ENCODING, TokenCounter, count_apart
from gateway.upstream import UpstreamClient
from store.open import open_store

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OWN_PREFIX = "/palimpsest/"
MANAGED_SUFFIX = "/chat/completions"


def create_services(settings: Settings) -> Services:
    """All parts, not started yet."""
    tasks, metrics, upstream = Supervisor(), Metrics(), UpstreamClient()
    store = open_store(settings.store.url)
    prompts, counter = load_prompts(), TokenCounter()
    policy = _policy(settings)
    model_lists = ModelLists(upstream, tasks)
    shipped = ModelWindows.shipped()
    routes = RouteBook(
        store,
        tasks,
        model_lists.window,
        lambda model, base_url: shipped.window_of(model, base_url) if shipped.ready else None,
    )
    runs = CompactionRuns(
        store=store,
        routes=routes,
        compactor=TextCompactor(
            prompts, partial(count_apart, encoding=DEFAULT_ENCODING), fold=settings.compaction.fold
        ),
        policy=policy,
        prompt_version=prompts.version,
        tasks=tasks,
        metrics=metrics,
        timeout=settings.compaction.timeout,
    )
    context = ContextCompiler(
        store=store, routes=routes, runs=runs, counter=counter, policy=policy, prompt_version=prompts.version
    )
    return Services(
        settings=settings,
        session_headers=tuple(name.encode() for name in settings.session_headers),
        upstream=upstream,
        store=store,
        tenants=Tenants(load_secret(settings)),
        reader=ConversationReader(counter),
        routes=routes,
        model_lists=model_lists,
        context=context,
        recoveries=Recoveries(),
        tasks=tasks,
        metrics=metrics,
        warm=(counter.warm, shipped.warm),
    )


def _policy(settings: Settings) -> Policy:
    compaction = settings.compaction
    return Policy(
        soft=compaction.soft,
        target=compaction.target,
        min_gain=compaction.min_gain,
        keep_recent_turns=compaction.keep_recent_turns,
        keep_recent_tokens=compaction.keep_recent_tokens,
        min_mid_turn_steps=compaction.min_mid_turn_steps,
        result_tokens=settings.tool_results.max_tokens,
        append_on_anchor_change=compaction.on_anchor_change == "append",
    )


def create_app(settings: Settings) -> Gateway:
    """The gateway as an ASGI application."""
    services = create_services(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await services.store.open()
        await services.routes.load()
        services.tasks.spawn(_become_ready(app, services), "warm")
        try:
            yield
        finally:
            app.state.ready = False
            await services.tasks.drain(settings.server.shutdown_grace)
            await services.store.close()
            await services.upstream.close()

    app = Starlette(
        routes=[
            HttpRoute("/healthz", _healthz),
            HttpRoute("/readyz", _readyz),
            HttpRoute("/metrics", _metrics),
            HttpRoute("/palimpsest/{path:path}", _not_found, methods=METHODS),
            HttpRoute("/palimpsest", _not_found, methods=METHODS),
        ],
        lifespan=lifespan,
    )
    app.state.services = services
    app.state.ready = False
    app.router.default = _Others(PassThrough(services.settings, services.upstream))
    return Gateway(app, ChatEndpoint(services))


class Gateway:
    """The ASGI application. Chat completions go straight to their endpoint, all else by Starlette's router."""

    def __init__(self, app: Starlette, chat: ChatEndpoint) -> None:
        self.state = app.state
        self._app = app
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's event, or the lifespan."""
        chat = scope["type"] == "http" and is_managed(scope)
        await (self._chat if chat else self._app)(scope, receive, send)


def is_managed(scope: Scope) -> bool:
    """Whether a request is a chat completion (R2.1)."""
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(MANAGED_SUFFIX) and not path.startswith(OWN_PREFIX)


async def _become_ready(app: Starlette, services: Services) -> None:
    """Read what the first request would have to wait for; only then be ready."""
    for part in services.warm:
        await asyncio.to_thread(part)
    app.state.ready = True


class _Others:
    """What is neither managed nor a path of the gateway's own (R2.1)."""

    def __init__(self, pass_through: PassThrough) -> None:
        self._pass_through = pass_through

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _refuse_upgrade(scope, receive, send)
        else:
            await self._pass_through(scope, receive, send)


async def _refuse_upgrade(scope: Scope, receive: Receive, send: Send) -> None:
    """A WebSocket handshake is answered like any other request, with 501 (R2.1)."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1011})
        return
    error = upgrade_refused()
    headers = [(b"content-type", b"application/json"), *error.raw_headers()]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": error.body()})


async def _healthz(_: Request) -> Response:
    """The process is alive."""
    return JSONResponse({"status": "ok"})


async def _readyz(request: Request) -> Response:
    """The store is open, requests are welcome."""
    ready = request.app.state.ready
    return JSONResponse({"status": "ready" if ready else "not ready"}, status_code=200 if ready else 503)


async def _not_found(_: Request) -> Response:
    """What lies below the gateway's own prefix never goes to the upstream (R2.1)."""
    error = not_found()
    return Response(error.body(), status_code=error.status, media_type="application/json")


async def _metrics(request: Request) -> Response:
    """Figures for Prometheus (R15.4)."""
    services: Services = request.app.state.services
    return Response(services.metrics.render(), media_type=METRICS_CONTENT_TYPE)
