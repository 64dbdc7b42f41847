"""Law 1: verbatim in, verbatim out. Through the gateway on real sockets, whatever way a client spells its JSON (R2.2)."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from starlette.types import Receive, Scope, Send

from gateway.app import create_app
from gateway.rebuild import client_body
from gateway.simulator import ThreadedServer
from store.open import open_store
from tests.e2e.harness import gateway_settings
from tests.laws.test_law_verbatim_wire import bodies, load, same

ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}'
EXAMPLES = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Recorder:
    """A provider that takes any body, keeps it, and says `ok`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["method"] == "POST":
            self.bodies.append(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})


class Line:
    """A client, the gateway and the recording provider."""

    def __init__(self, http: httpx.Client, recorder: Recorder) -> None:
        self._http = http
        self._recorder = recorder
        self.sent: list[bytes] = []

    def through(self, body: bytes) -> bytes:
        """What the provider received of a body that a client sent."""
        self.sent.append(body)
        answer = self._http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.content) == (200, ANSWER)
        assert answer.headers["x-palimpsest-context"] == "verbatim"
        return self._recorder.bodies.pop()


@contextmanager
def line(folder: Path, *, include_usage: bool) -> Iterator[Line]:
    recorder = Recorder()
    with ThreadedServer(recorder) as provider:
        routes = [{"match": "*", "include_usage": include_usage}]
        with ThreadedServer(create_app(gateway_settings(provider.url, folder, routes=routes))) as gateway:
            headers = {"authorization": "Bearer key"}
            with httpx.Client(base_url=gateway.url, headers=headers, timeout=30) as http:
                yield Line(http, recorder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """A route that adds nothing. When all is done, every request can be rebuilt from the store (law 7)."""
    folder = tmp_path_factory.mktemp("plain")
    with line(folder, include_usage=False) as made:
        yield made
    assert asyncio.run(rebuilt(folder / "palimpsest.db")) == set(made.sent)


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """A route that asks streams for their usage (R2.5)."""
    with line(tmp_path_factory.mktemp("usage"), include_usage=True) as made:
        yield made


async def rebuilt(path: Path) -> set[bytes]:
    """Every request that a store holds, as the client sent it."""
    store = open_store(f"sqlite:///{path}")
    await store.open()
    found = set()
    for session in await store.sessions(None, limit=100_000):
        for entry in await store.log(session.key, limit=100_000):
            if entry.kind == "request":
                found.add(client_body(await store.request(session.key, entry.n)))
    await store.close()
    return found


@EXAMPLES
@given(bodies())
def test_an_uncompacted_request_leaves_byte_for_byte(plain, body):
    assert plain.through(body) == body


@EXAMPLES
@given(bodies())
@example(b'{"messages":[],"stream":true}')
@example(b' {"stream": true , "messages" : [ {"n": 1e999} ] }\n')
def test_a_stream_leaves_with_the_wish_for_usage_and_no_other_change(usage, body):
    received = usage.through(body)
    if load(body).get("stream") is not True:
        assert received == body
        return
    sent, wanted = load(received), load(body)
    assert sent.pop("stream_options") == {"include_usage": True}
    assert same(sent, wanted)
    assert received.replace(b',"stream_options":{"include_usage":true}', b"", 1) == body


def test_the_order_of_members_and_the_spelling_of_numbers_arrive(plain):
    """The plainest example, for a reader."""
    body = b'{"n": 1.0,"messages" : [ {"content":"\\u00e9", "role":"user"}],"seed":90071992547409931,"model":"m" }'
    assert plain.through(body) == body
    assert json.loads(body)
