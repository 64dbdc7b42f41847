"""Whether work per request grows with the conversation: 1,000 turns in one session at window 8,192 (R4.2, R16.2).

`python -m tests.bench.growth` drives the real gateway, with its real store, against the simulated provider, and compares
turns 991 to 1,010 with turns 91 to 110: the time of store, context and projection, and the rows and bytes of the
statements that write. Every turn is alike: a question, a tool call, its result, an answer; so two requests.
"""

from __future__ import annotations

import http.client
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from gateway.app import create_app
from gateway.services import Services
from gateway.settings import load_settings
from gateway.simulator import SimulatorSettings, ThreadedServer, create_simulator
from gateway.telemetry import configure_logging
from tests.bench.workload import filler

WINDOW = 8192
MODEL = "sim-small"
EARLY, LATE = range(91, 111), range(991, 1011)
LIMIT = 1.5
"""How much more a late turn may cost."""
WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE")
TOOLS = [{"type": "function", "function": {"name": "read_log", "parameters": {"type": "object", "properties": {}}}}]


@dataclass(slots=True)
class Cost:
    """What one turn took. Times are seconds; bytes are those of the parameters of writing statements."""

    store: float = 0.0
    context: float = 0.0
    reading: float = 0.0
    """Splitting, hashing and counting the request: grows with its bytes, as it may (R16.2)."""
    rows: int = 0
    bytes: int = 0

    @property
    def seconds(self) -> float:
        """Store, context and projection together."""
        return self.store + self.context


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians of the early and the late turns."""

    early: Cost
    late: Cost
    messages: int
    projected: int
    """Requests that were sent shorter than they were received."""

    @property
    def ratios(self) -> dict[str, float]:
        """Late over early."""
        names = ("seconds", "rows", "bytes")
        return {name: getattr(self.late, name) / getattr(self.early, name) for name in names}


class _Counted:
    """A connection whose writing statements are counted."""

    def __init__(self, connection: Any, meter: Meter) -> None:
        self._connection = connection
        self._meter = meter

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        before = self._connection.total_changes
        cursor = self._connection.execute(sql, parameters)
        if sql.lstrip().upper().startswith(WRITES):
            self._meter.wrote(self._connection.total_changes - before, size_of(parameters))
        return cursor

    def executemany(self, sql: str, rows: Any) -> Any:
        rows = list(rows)
        before = self._connection.total_changes
        cursor = self._connection.executemany(sql, rows)
        self._meter.wrote(self._connection.total_changes - before, sum(map(size_of, rows)))
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def size_of(parameters: Any) -> int:
    """Bytes of a statement's parameters: of text and blobs their length, of numbers 8."""
    values = parameters.values() if isinstance(parameters, dict) else parameters
    return sum(_bytes(value) for value in values)


def _bytes(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else 8


@dataclass(slots=True)
class Meter:
    """Measures a running gateway from outside: its parts stay what they are, their calls are timed on the way."""

    cost: Cost = field(default_factory=Cost)

    def watch(self, services: Services) -> None:
        """Begin. The store must be open."""
        store: Any = services.store
        for name in ("record_request", "record_reply"):
            setattr(store, name, self._timed(getattr(store, name), "store"))
        context: Any = services.context
        context.look = self._timed(context.look, "context")
        context.compile = self._timed_plain(context.compile, "context")
        reader: Any = services.reader
        reader.read = self._timed(reader.read, "reading")
        lane: Any = store._lanes.write
        lane.do = self._counted(lane.do)

    def wrote(self, rows: int, size: int) -> None:
        """A writing statement has run."""
        self.cost.rows += rows
        self.cost.bytes += size

    def take(self) -> Cost:
        """What was measured since the last time."""
        taken, self.cost = self.cost, Cost()
        return taken

    def _timed(self, call: Callable[..., Awaitable[Any]], part: str) -> Callable[..., Awaitable[Any]]:
        async def timed(*args: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return await call(*args, **named)
            finally:
                setattr(self.cost, part, getattr(self.cost, part) + time.perf_counter() - begun)

        return timed

    def _timed_plain(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                setattr(self.cost, part, getattr(self.cost, part) + time.perf_counter() - begun)

        return timed

    def _counted(self, do: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(work: Callable[[Any], Any]) -> Any:
            return await do(lambda connection: work(_Counted(connection, self)))

        return counted


class Talk:
    """A client that keeps its whole history and sends it with each request, as bytes made once."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        self._messages = [orjson.dumps({"role": "system", "content": "You look after a warehouse at night."})]
        self._tools = orjson.dumps(TOOLS)
        self.projected = 0
        self.turns = 0

    def __len__(self) -> int:
        return len(self._messages)

    def turn(self) -> None:
        """One question, one tool call, one answer. Raises RuntimeError for any answer that is none."""
        self.turns += 1
        number = self.turns
        self._add({"role": "user", "content": f'Turn {number}: {filler(240)} [[call:read_log {{"n": {number}}}]]'})
        message = self._ask()
        (call,) = message["tool_calls"]
        self._add(message)
        self._add({"role": "tool", "tool_call_id": call["id"], "content": f"Result {number}: {filler(480)}"})
        answer = self._ask()
        if answer.get("tool_calls") or not answer["content"]:
            raise RuntimeError(f"turn {number} ended without an answer")
        self._add(answer)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _add(self, message: dict[str, Any]) -> None:
        self._messages.append(orjson.dumps(message))

    def _ask(self) -> dict[str, Any]:
        body = b"".join(
            (
                b'{"model":"%s","tools":' % MODEL.encode(),
                self._tools,
                b',"messages":[',
                b",".join(self._messages),
                b"]}",
            )
        )
        headers = {"content-type": "application/json", "authorization": "Bearer key", "x-palimpsest-session": "growth"}
        self._connection.request("POST", "/v1/chat/completions", body, headers)
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"turn {self.turns}: {response.status} {data[:300]!r}")
        self.projected += "checkpoint=" in response.headers["x-palimpsest-context"]
        message = orjson.loads(data)["choices"][0]["message"]
        kept = {"role": "assistant", "content": message["content"]}
        return kept | ({"tool_calls": message["tool_calls"]} if message.get("tool_calls") else {})


def grow(folder: Path, turns: int = LATE.stop - 1, early: range = EARLY, late: range = LATE) -> Growth:
    """Drive the conversation with the store in `folder`, and compare late turns with early ones."""
    costs: list[Cost] = []
    with _gateway(folder) as (url, services):
        meter = Meter()
        meter.watch(services)
        talk = Talk(url)
        try:
            for _ in range(turns):
                talk.turn()
                costs.append(meter.take())
        finally:
            talk.close()
    if not talk.projected:
        raise RuntimeError("nothing was compacted: this measures something else")
    return Growth(_median(costs, early), _median(costs, late), len(talk), talk.projected)


def _median(costs: list[Cost], turns: range) -> Cost:
    """Medians over turns, which are counted from 1."""
    chosen = [costs[number - 1] for number in turns]

    def middle(name: str) -> Any:
        return median(getattr(cost, name) for cost in chosen)

    return Cost(*(middle(name) for name in ("store", "context", "reading", "rows", "bytes")))


@contextmanager
def _gateway(folder: Path) -> Iterator[tuple[str, Services]]:
    simulator = SimulatorSettings(window=WINDOW, models=(MODEL,), requests_kept=10)
    with ThreadedServer(create_simulator(simulator)) as provider:
        settings = load_settings(
            {},
            upstreams=[{"name": "simulator", "base_url": f"{provider.url}/v1"}],
            store={"url": f"sqlite:///{folder / 'palimpsest.db'}"},
            log={"level": "error"},
            context_window=WINDOW,
            secret="a secret for the bench only",
        )
        configure_logging(settings.log)
        app = create_app(settings)
        with ThreadedServer(app) as gateway:
            yield gateway.url, app.state.services


def main() -> int:
    """Print both and their ratios. 1 if a late turn costs more than it may."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="palimpsest-growth-") as name:
        growth = grow(Path(name))
    table = Table(title=f"medians per turn; {growth.messages:,} messages at the end, window {WINDOW:,}")
    for heading in ("", "turns 91-110", "turns 991-1,010", "ratio"):
        table.add_column(heading, justify="right")
    for title, attribute, scale, digits in (
        ("store + context + projection, ms", "seconds", 1000, 2),
        ("store, ms", "store", 1000, 2),
        ("context + projection, ms", "context", 1000, 2),
        ("(reading the request, ms)", "reading", 1000, 2),
        ("rows written", "rows", 1, 0),
        ("bytes written", "bytes", 1, 0),
    ):
        early, late = getattr(growth.early, attribute), getattr(growth.late, attribute)
        table.add_row(title, f"{early * scale:,.{digits}f}", f"{late * scale:,.{digits}f}", f"{late / early:.2f}")
    console.print(table)
    missed = {name: ratio for name, ratio in growth.ratios.items() if ratio > LIMIT}
    console.print(f"Above the limit of {LIMIT}: {missed}" if missed else f"All within the limit of {LIMIT}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
