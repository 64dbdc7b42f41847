"""What a turn costs a long session and a short one, side by side.

`tests.bench.growth` compares early and late turns of one session. Here both are measured in one window of time, so
that a machine that is busy with other things is so for both, and a limit on their ratio can be a test.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from gateway.app import create_app
from gateway.simulator import SimulatorSettings, ThreadedServer, create_simulator
from tests.bench.growth import Cost, Growth, Meter
from tests.e2e.conversations import TOOLS
from tests.e2e.harness import MODEL, gateway_settings

WINDOW = 8192
QUESTION = "what the shelf holds, who moved it and when it is needed again, with all that belongs to it. " * 3
RESULT = "\n".join(f"row {number}: counted, checked and put back" for number in range(12))


class LongTalk:
    """A client that keeps its whole history as bytes, and takes turns that are all alike: two requests each."""

    def __init__(self, url: str, name: str) -> None:
        self.turns = 0
        self.projected = 0
        self.messages = [_dump({"role": "system", "content": f"You look after the warehouse {name}."})]
        self._name = name
        self._http = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)

    def turn(self) -> None:
        """A question, a call, its result, an answer."""
        self.turns += 1
        place = f"{self._name} {self.turns}"
        call = self._ask({"role": "user", "content": f'At {place}: {QUESTION} [[call:look_up {{"key": "{place}"}}]]'})
        result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": f"{place}\n{RESULT}"}
        assert self._ask(result)["content"]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.messages.append(_dump(message))
        frame = _dump({"model": MODEL, "tools": TOOLS})[:-1]
        body = frame + b',"messages":[' + b",".join(self.messages) + b"]}"
        headers = {"content-type": "application/json", "authorization": "Bearer key"}
        self._http.request("POST", "/v1/chat/completions", body, headers | {"x-palimpsest-session": self._name})
        response = self._http.getresponse()
        data = response.read()
        assert response.status == 200, data
        self.projected += "checkpoint=" in response.headers["x-palimpsest-context"]
        said: dict[str, Any] = json.loads(data)["choices"][0]["message"]
        self.messages.append(_dump({key: value for key, value in said.items() if value is not None}))
        return said

    def close(self) -> None:
        """Hang up."""
        self._http.close()


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


@contextmanager
def metered_gateway(folder: Path) -> Iterator[tuple[str, Meter]]:
    """A gateway under a meter, in front of the simulated provider."""
    simulator = SimulatorSettings(window=WINDOW, models=(MODEL,), requests_kept=10)
    with ThreadedServer(create_simulator(simulator)) as provider:
        app = create_app(gateway_settings(provider.url, folder, context_window=WINDOW))
        with ThreadedServer(app) as gateway:
            meter = Meter()
            meter.watch(app.state.services)
            yield gateway.url, meter


def side_by_side(folder: Path, early: int = 90, late: int = 990, turns: int = 20) -> Growth:
    """Drive one session to turn `late` and one to turn `early`; then each takes `turns` turns, in turn."""
    with metered_gateway(folder) as (url, meter):
        old, young = LongTalk(url, "old"), LongTalk(url, "young")
        for talk, until in ((old, late), (young, early)):
            while talk.turns < until:
                talk.turn()
        costs: dict[LongTalk, list[Cost]] = {old: [], young: []}
        meter.take()
        for _ in range(turns):
            for talk, taken in costs.items():
                talk.turn()
                taken.append(meter.take())
        for talk in costs:
            talk.close()
    assert young.projected, "nothing was compacted: this measures something else"
    return Growth(_median(costs[young]), _median(costs[old]), len(old.messages), old.projected)


def _median(costs: list[Cost]) -> Cost:
    def middle(name: str) -> Any:
        return median(getattr(cost, name) for cost in costs)

    return Cost(*(middle(name) for name in ("store", "context", "reading", "rows", "bytes")))
