"""`palimpsest serve`: the gateway on a port; without an upstream, on a simulated provider."""

import contextlib
import gc
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
from starlette.types import ASGIApp

from gateway.app import create_app
from gateway.settings import UPSTREAM_VARIABLE, Settings, SettingsError, load_settings
from gateway.settings_sources import CONFIG_VARIABLE
from gateway.simulator.app import create_simulator
from gateway.simulator.server import ThreadedServer
from gateway.simulator.settings import SimulatorSettings
from gateway.telemetry import configure_logging

SIMULATED = "simulator"
BACKLOG = 2048


def serve(
    host: Annotated[str | None, typer.Option(help="Where to listen; else PALIMPSEST_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; else PALIMPSEST_PORT or 8080.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; else PALIMPSEST_CONFIG.")] = None,
) -> None:
    """Run the gateway until it is interrupted. All settings: config/gateway.toml."""
    environ = {**os.environ, CONFIG_VARIABLE: str(config)} if config else os.environ
    given = {"host": host, "port": port}
    overrides = {"server": {key: value for key, value in given.items() if value is not None}}
    try:
        _serve(environ, overrides)
    except (SettingsError, ListenError) as error:
        typer.echo(f"palimpsest: {error}", err=True)
        raise typer.Exit(2) from error


class ListenError(Exception):
    """The address cannot be listened on. The message is for people."""


def _serve(environ: Mapping[str, str], overrides: Mapping[str, Any]) -> None:
    settings = load_settings(environ, **overrides)
    configure_logging(settings.log)
    with listening(settings.server.host, settings.server.port) as listener:
        url = _url(listener)
        if settings.default_upstream is not None:
            typer.echo(_started(url, settings.default_upstream.base_url), err=True)
            run(create_app(settings), settings, listener)
            return
        simulator = SimulatorSettings(window=settings.context_window or SimulatorSettings().window)
        with ThreadedServer(create_simulator(simulator)) as provider:
            upstream = {"name": SIMULATED, "base_url": f"{provider.url}/v1", "auth": "none"}
            settings = load_settings(environ, **overrides, upstreams=[upstream])
            typer.echo(_started_simulated(url, simulator), err=True)
            run(create_app(settings), settings, listener)


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound and not yet listening. Raises ListenError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on host {host!r}: {error.strerror}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            # Here and not in the server, so that a taken port is told before anything else starts.
            listener.listen(BACKLOG)
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host} port {port}: {error.strerror}; "
                "choose another with --port or PALIMPSEST_PORT, or end what listens there"
            ) from error
        yield listener


def run(app: ASGIApp, settings: Settings, listener: socket.socket) -> None:
    """Serve an app until SIGINT or SIGTERM, then let open requests end (R15.6). Exits with 1 if it does not start."""
    tune_collector()
    server = uvicorn.Server(server_config(app, settings))
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return
    except SystemExit as error:
        typer.echo("palimpsest: could not start; the log says why", err=True)
        raise typer.Exit(1) from error


def tune_collector() -> None:
    """Look for garbage cycles less often, and never among what was loaded at start: a tenth of the time per request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """The HTTP server. httptools has no limit on headers, so those of 64 kB pass (R15.6)."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=round(settings.server.idle_keepalive),
        timeout_graceful_shutdown=max(round(settings.server.shutdown_grace), 1),
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _started(url: str, upstream: str) -> str:
    return f"Palimpsest listens on {url} and forwards to {upstream}. Base URL for clients: {url}/v1"


def _started_simulated(url: str, simulator: SimulatorSettings) -> str:
    model = simulator.models[0]
    return f"""\
Palimpsest listens on {url}. No upstream is set, so it forwards to a SIMULATED provider
(window {simulator.window} tokens, no key needed, answers are made up). Try it:

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

or with the openai SDK:

  client = openai.OpenAI(base_url="{url}/v1", api_key="any")
  client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}])

For a real provider: {UPSTREAM_VARIABLE}=https://api.openai.com/v1 palimpsest serve"""
