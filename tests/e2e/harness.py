"""A simulated provider and a gateway, each a real server on a real port, and clients for both."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson

from gateway.app import Gateway, create_app
from gateway.settings import Settings, load_settings
from gateway.simulator import SimulatorSettings, ThreadedServer, create_simulator

MODEL = "sim-small"


@dataclass(frozen=True)
class Stack:
    """Both servers, running."""

    provider: str
    gateway: str
    settings: Settings
    app: Gateway
    opened: ExitStack
    """Closes the clients at the end: a socket that is left to the garbage collector is a warning."""

    def client(self, *, direct: bool = False, **options: Any) -> openai.OpenAI:
        """An `openai` client of the gateway, or of the provider itself."""
        url = self.provider if direct else self.gateway
        client = openai.OpenAI(base_url=f"{url}/v1", **{"api_key": "key-one", "max_retries": 0, **options})
        return self.opened.enter_context(client)

    def seen(self, *, summaries: bool = False) -> list[dict[str, Any]]:
        """What the provider received on chat/completions, decoded; without summary requests unless asked for."""
        entries = httpx.get(f"{self.provider}/sim/requests", params={"limit": 20_000}).json()
        entries = entries["requests"] if isinstance(entries, dict) else entries
        chats = [entry for entry in entries if entry["path"].endswith("/chat/completions")]
        return [
            entry | {"body": base64.b64decode(entry["body_base64"])}
            for entry in chats
            if summaries or not entry["summary"]
        ]

    def break_store(self) -> None:
        """Make every write fail from now on, as a full disk does."""
        path = self.settings.store.path
        with sqlite3.connect(path) as other:
            other.execute("DROP TABLE session_body")
            other.execute("DROP TABLE branch")

    def bodies(self, *, summaries: bool = False) -> list[dict[str, Any]]:
        """The JSON of what the provider received."""
        return [orjson.loads(entry["body"]) for entry in self.seen(summaries=summaries)]


def gateway_settings(provider: str, folder: Path, **overrides: Any) -> Settings:
    """Settings of a gateway in front of the simulated provider, its store in `folder`."""
    upstream = {"name": "simulator", "base_url": f"{provider}/v1", **overrides.pop("upstream", {})}
    tables = {"store": {"url": f"sqlite:///{folder / 'palimpsest.db'}"}, "log": {"level": "error"}} | overrides
    return load_settings({}, upstreams=[upstream], secret="a secret for tests only", **tables)


@contextmanager
def running(folder: Path, simulator: SimulatorSettings | None = None, **overrides: Any) -> Iterator[Stack]:
    """Start both, and stop them."""
    with ThreadedServer(create_simulator(simulator or SimulatorSettings())) as provider:
        settings = gateway_settings(provider.url, folder, **overrides)
        app = create_app(settings)
        with ThreadedServer(app) as gateway, ExitStack() as opened:
            yield Stack(provider.url, gateway.url, settings, app, opened)
