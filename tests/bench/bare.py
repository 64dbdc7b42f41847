"""The bare pass-through to compare with: Starlette and the gateway's own HTTP client, and nothing else.

Run as `python -m tests.bench.bare URL PORT`. It forwards body and headers, answers with what came back, records nothing.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.cli.serve import listening, run
from gateway.settings import Settings
from gateway.upstream import Timeouts, UpstreamClient

_DROPPED = {b"host", b"connection", b"keep-alive", b"transfer-encoding"}


def create_bare(upstream: str) -> Starlette:
    """The pass-through as an ASGI application."""
    client = UpstreamClient()
    url, timeouts = f"{upstream}/v1/chat/completions", Timeouts()

    async def forward(request: Request) -> Response:
        headers = [pair for pair in request.headers.raw if pair[0] not in _DROPPED]
        answer = await client.send("POST", url, headers, await request.body(), timeouts)
        kept = {k.decode(): v.decode() for k, v in answer.headers if k.lower() not in _DROPPED}
        if "event-stream" in answer.header("content-type"):
            return StreamingResponse(answer.chunks(), answer.status, kept, background=BackgroundTask(answer.close))
        body = await answer.read()
        await answer.close()
        return Response(body, answer.status, kept)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.close()

    routes = [Route("/v1/chat/completions", forward, methods=["POST"]), Route("/readyz", healthz)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    """Serve with the gateway's own server and its settings, so that only the app differs."""
    upstream, port = sys.argv[1], int(sys.argv[2])
    with listening("127.0.0.1", port) as listener:
        run(create_bare(upstream), Settings(), listener)


if __name__ == "__main__":
    main()
