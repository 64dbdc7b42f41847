"""`kill -9` at random moments of traffic: what was promised to a client or sent to a provider is in the store (R4.2)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from gateway.simulator import SimulatorSettings, ThreadedServer, create_simulator
from gateway.simulator.received import Received
from tests.e2e.crash_audit import Audit
from tests.e2e.crash_gateway import KillableGateway, killable_gateway
from tests.e2e.crash_traffic import Gate, Manner, TrafficClient
from tests.e2e.harness import MODEL

KILLS = int(os.environ.get("PALIMPSEST_TEST_KILLS", "20"))
SEED = 20_261
WINDOW = 3072
MANNERS = (
    Manner("key-one", named=True, tools=True),
    Manner("key-one", streams=1.0, separators=(", ", ": ")),
    Manner("key-two", streams=0.0, tools=True),
    Manner("key-two", named=True, streams=1.0, resumes=True),
)
FINAL_TURNS = 3
"""What each client does after the last kill: the conversation goes on."""
LONGEST_LIFE = 30.0
"""Seconds, after which a gateway is killed however little it has done."""


class Provider:
    """The simulated provider, which lives on when the gateway is killed."""

    def __init__(self, server: ThreadedServer, app) -> None:
        self.url = server.url
        self._received = app.state.provider.received

    def received(self, after: int = 0) -> list[Received]:
        return [entry for entry in self._received.after(after) if entry.path.endswith("/chat/completions")]

    @property
    def count(self) -> int:
        return self._received.count


def live(provider: Provider, gate: Gate, moment: random.Random, gateway: KillableGateway) -> None:
    """Let traffic flow, and kill the gateway at a moment that no part of it can foresee.

    That is any moment; or the very one when a client has got the first of an answer, or the whole; or, so that whatever
    is said too early is said, one at which another process holds up all commits.
    """
    event = moment.choice(("any", "begun", "whole", "stalled"))
    gate.arm(event, moment.randint(1, 45), gateway.strike)
    until = provider.count + moment.randint(1, 45)
    waits = moment.uniform(0.05, 0.4) if event == "stalled" else moment.uniform(0, 0.03)
    deadline = time.monotonic() + LONGEST_LIFE
    while gate.is_open and time.monotonic() < deadline:
        if event in {"any", "stalled"} and provider.count >= until:
            if event == "stalled":
                gateway.stall()
            time.sleep(waits)
            break
        time.sleep(0.001)
    gate.strike(gateway.strike)


def look(audit: Audit, path: Path, clients: list[TrafficClient], received: list[Received], *, final: bool) -> None:
    errors = [client.error for client in clients if client.error]
    assert not errors, errors
    attempts = [attempt for client in clients for attempt in list(client.attempts)]
    audit.look(path, attempts, received, final=final)
    assert not audit.failures, "\n".join(audit.failures[:20])


def check_what_is_left(
    gateway: KillableGateway, gate: Gate, clients: list[TrafficClient], provider: Provider, audit: Audit
) -> int:
    """Look at what a killed gateway has left; returns how much the provider had received."""
    gateway.bury()
    gate.await_all()
    look(audit, gateway.snapshot(gateway.folder / "left"), clients, provider.received(), final=False)
    return provider.count


@pytest.mark.crash
@pytest.mark.timeout(120 + 15 * KILLS)
def test_nothing_is_lost_when_the_gateway_is_killed_at_any_moment(tmp_path):
    """R4.2, R4.5, R9.3, R12.3, law 7: answers held are stored, bodies sent can be rebuilt, conversations go on."""
    moment = random.Random(SEED)
    app = create_simulator(SimulatorSettings(window=WINDOW, models=(MODEL,), requests_kept=10**6, latency=0.003))
    with ThreadedServer(app) as server:
        provider = Provider(server, app)
        variables = {
            "PALIMPSEST_UPSTREAM": f"{provider.url}/v1",
            "PALIMPSEST_CONTEXT_WINDOW": str(WINDOW),
            "PALIMPSEST_LOG_LEVEL": "error",
        }
        with killable_gateway(tmp_path, **variables) as gateway:
            gate, audit = Gate(len(MANNERS)), Audit()
            clients = [TrafficClient(gateway.url, gate, manner, seed) for seed, manner in enumerate(MANNERS)]
            for client in clients:
                client.start()
            kills = []
            for _ in range(KILLS):
                gateway.start()
                gate.open()
                live(provider, gate, moment, gateway)
                kills.append(check_what_is_left(gateway, gate, clients, provider, audit))
            gateway.start()
            gate.open()
            for client in clients:
                client.stop(after=FINAL_TURNS)
            for client in clients:
                client.join()
            gateway.stop()
            look(audit, gateway.store, clients, provider.received(), final=True)
            audit.prefixes(provider.received(), kills)
            talks = [talk for client in clients for talk in client.conversations]
            asyncio.run(audit.conversations(gateway.store, talks))
            print(dict(audit.counts), len(talks), "conversations")
            assert not audit.failures, "\n".join(audit.failures[:20])
            complaints = [line for line in gateway.log().splitlines() if not line.startswith("Palimpsest listens on")]
            assert not complaints, complaints[:20]
            assert audit.counts["same checkpoint across a kill"] > KILLS // 2, "too little was compacted to prove it"
