"""Everything that is not managed goes through unchanged, in constant memory (R2.1)."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.simulator import SimulatorSettings, ThreadedServer
from tests.e2e.differential_process import most_memory, serving
from tests.e2e.differential_upstream import PATIENCE, Call, before, entries, fronting
from tests.e2e.differential_wire import API_KEY, Exchange, RecordingTransport, sync_client
from tests.e2e.harness import MODEL, Stack, running

AUTH = {"authorization": f"Bearer {API_KEY}"}
MEGABYTE = 1 << 20
HTTP = httpx.Client(verify=False, timeout=30)


@pytest.fixture(scope="module", autouse=True)
def _one_http_client() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("passthrough"), SimulatorSettings(models=(MODEL, "a/b"))) as both:
        yield both


def received(stack: Stack) -> list[dict[str, Any]]:
    return list(HTTP.get(f"{stack.provider}/sim/requests").json())


def _without(headers: dict[str, str]) -> dict[str, str]:
    """The headers less those that name the server or belong to one hop (R2.8), and a length of nothing (R2.13)."""
    apart = {"host", "connection"}
    return {
        name: value for name, value in headers.items() if name not in apart and (name, value) != ("content-length", "0")
    }


def both_ways(stack: Stack, call: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a call to the provider gives, and one through the gateway: result, wire, and what arrived."""
    seen = []
    for url in (stack.provider, stack.gateway):
        HTTP.delete(f"{stack.provider}/sim/requests")
        transport = RecordingTransport()
        result = call(url, transport)
        arrived = [
            (one["method"], one["path"], one["body_base64"], _without(one["headers"])) for one in received(stack)
        ]
        seen.append((result, [exchange.as_value() for exchange in transport.exchanges], arrived))
    return seen[0], seen[1]


SDK_CALLS = {
    "models": lambda client: client.models.list().model_dump(),
    "a model": lambda client: client.models.retrieve("a/b").model_dump(),
    "embeddings": lambda client: client.embeddings.create(model=MODEL, input=["one", "zwei ☃"]).model_dump(),
    "embeddings as floats": lambda client: client.embeddings.create(
        model=MODEL, input="one", encoding_format="float"
    ).model_dump(),
    "upload": lambda client: client.files.create(file=("a ☃.jsonl", b"\x00\xff" * 5000), purpose="batch"),
    "transcription": lambda client: client.audio.transcriptions.create(model="w", file=("a.wav", b"RIFF" * 1000)),
    "completions": lambda client: client.completions.create(model="c", prompt="x"),
    "responses": lambda client: client.responses.create(model="c", input="x"),
    "deletion": lambda client: client.files.delete("file-1"),
    "something of a vendor": lambda client: client.post("/vendor/x?a=1", body={"x": 1.0}, cast_to=httpx.Response),
}


@pytest.mark.parametrize("name", SDK_CALLS)
def test_other_calls_of_the_sdk_are_the_same(stack, name, monkeypatch):
    """R2.1, R2.7: results or errors, raw bytes, and what the provider received, every header included."""
    # Multipart boundaries are random.
    monkeypatch.setattr(os, "urandom", lambda size: b"\x07" * size)

    def call(url: str, transport: RecordingTransport) -> Any:
        with sync_client(url, transport) as client:
            try:
                return SDK_CALLS[name](client)
            except openai.APIStatusError as error:
                return type(error).__name__, str(error), error.body
            except openai.APIResponseValidationError as error:
                return type(error).__name__

    direct, through = both_ways(stack, call)
    assert through == direct
    assert len(through[2]) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("body", [b"", b'{"a": 1.0 }', "chunked"])
def test_every_method_passes(stack, method, body):
    """R2.1: with a body, without one, and with one of unknown length."""
    if method == "HEAD" and body != b"":
        pytest.skip("a HEAD request has no body")

    def call(url: str, transport: RecordingTransport) -> Any:
        content = iter([b"one ", b"two"]) if body == "chunked" else body
        headers = {**AUTH, "content-type": "x/y", "x-own": "1"}
        with httpx.Client(transport=transport) as client:
            return client.request(method, f"{url}/v1/vendor/thing", content=content, headers=headers).status_code

    direct, through = both_ways(stack, call)
    assert through == direct
    assert through[0] == 404
    [(arrived, _, content, _)] = through[2]
    assert arrived == method
    assert base64.b64decode(content) == (b"one two" if body == "chunked" else body)


@pytest.mark.parametrize("path", ["/v1/echo", "/echo", "/v1/chat/completions"])
def test_what_is_not_post_is_not_managed(stack, path):
    """R2.1: nor recorded."""
    response = HTTP.request("GET", stack.gateway + path, headers=AUTH)
    assert response.status_code == HTTP.request("GET", stack.provider + path, headers=AUTH).status_code
    assert not any(name.startswith("x-palimpsest") for name in response.headers)
    assert entries(stack.settings, "request") == []


def raw(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes; everything that comes back until the server closes."""
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    return answer


TARGETS = [
    b"/v1/files/a%2Fb%3Fc%23d",
    b"/v1/a%20b+c",
    b"/v1/%e4%f6",
    b"/v1/%00%25%2525",
    b"/v1/a;b=c,d@e:f!$&'()*",
    b"/v1/a%3Ab%40c%21%3B%3D",
    b"/v1/a//b/",
    b"/v1/x?a=b&a=c&&d&=e",
    b"/v1/x?a=%20+%2B&b=%2F%3F%3A%40%26%3D%23",
    b"/v1/x?url=http://h/p?q=r&x=%2fy",
    b"/v1/x?%00=%e4&a[]=1",
    b"/v1/files?limit=10&after=x%3D%3D",
]


@pytest.mark.parametrize("target", TARGETS)
def test_percent_encodings_and_queries_are_kept(tmp_path, target):
    """R2.1: a target that is RFC 3986-equivalent; here it is even the same bytes."""
    with before(lambda call: call.answer(), tmp_path) as (upstream, front):
        head = b"GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nConnection: close\r\n\r\n"
        assert raw(front.address, head % target).startswith(b"HTTP/1.1 200")
    [call] = upstream.calls
    assert call.target.encode() == target


def test_headers_pass_as_they_are(tmp_path):
    """R2.1, R2.8, R2.13: an answer that is not read may be compressed, so what the client accepts is passed on."""
    packed = gzip.compress(b"some text")

    def handler(call: Call) -> None:
        lines = [b"Content-Type: text/plain", b"Content-Encoding: gzip", b'ETag: "1"', b"Vary: accept-encoding"]
        call.answer(packed, *lines, b"Set-Cookie: a=1", b"Set-Cookie: b=2", b"Connection: X-Hop", b"X-Hop: 1")

    with (
        before(handler, tmp_path) as (upstream, front),
        HTTP.stream(
            "GET",
            front.url + "/v1/files/1/content",
            headers=[
                *AUTH.items(),
                ("accept-encoding", "gzip;q=0.5, zstd"),
                ("range", "bytes=0-9"),
                ("cookie", "own=1"),
                ("x-palimpsest-mode", "off"),
                ("x-twice", "a"),
                ("x-twice", "b"),
            ],
        ) as response,
    ):
        assert b"".join(response.iter_raw()) == packed
        exchange = Exchange.of(response)
    [call] = upstream.calls
    assert call.header("accept-encoding") == "gzip;q=0.5, zstd"
    assert call.header("range") == "bytes=0-9"
    assert call.header("cookie") == "own=1"
    assert call.header("x-palimpsest-mode") is None
    assert [value for name, value in call.headers if name.lower() == "x-twice"] == ["a", "b"]
    assert exchange.headers == sorted(
        [
            (b"content-type", b"text/plain"),
            (b"content-encoding", b"gzip"),
            (b"content-length", str(len(packed)).encode()),
            (b"etag", b'"1"'),
            (b"vary", b"accept-encoding"),
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
        ]
    )


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answers_without_a_body_pass(tmp_path, status):
    """R2.1"""
    with before(lambda call: call.head(b"ETag: x", status=status), tmp_path) as (_, front):
        response = HTTP.get(front.url + "/v1/files/1", headers=AUTH)
    assert (response.status_code, response.content) == (int(status[:3]), b"")


async def echo_parts(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that answers each part of the body when it comes."""
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"got " + message.get("body", b""), "more_body": more})


def test_an_upload_and_its_answer_flow_at_the_same_time(tmp_path):
    """R2.1: neither is held until the other is whole, and what watches for a hang-up takes no part of the body."""
    with ThreadedServer(echo_parts) as upstream, fronting(upstream.url, tmp_path) as front:
        head = b"POST /v1/audio/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nConnection: close\r\n"
        with socket.create_connection(front.address, timeout=PATIENCE) as connection:
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            answer = b""
            for number in range(20):
                connection.sendall(b"2\r\n%02d\r\n" % number)
                while b"got %02d" % number not in answer:
                    answer += connection.recv(65_536)
            connection.sendall(b"0\r\n\r\n")
            while part := connection.recv(65_536):
                answer += part
    assert answer.endswith(b"0\r\n\r\n")


# --- large bodies ---


SIZE = 96 * MEGABYTE


async def take(request: Request) -> Response:
    digest, size = hashlib.sha256(), 0
    async for part in request.stream():
        digest.update(part)
        size += len(part)
    return JSONResponse({"size": size, "sha256": digest.hexdigest(), "length": request.headers.get("content-length")})


async def give(_: Request) -> Response:
    async def parts() -> Any:
        for number in range(SIZE // MEGABYTE):
            yield bytes([number]) * MEGABYTE

    return StreamingResponse(parts(), media_type="application/octet-stream", headers={"content-length": str(SIZE)})


def large_parts() -> Iterator[bytes]:
    for number in range(SIZE // MEGABYTE):
        yield bytes([number]) * MEGABYTE


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_large_bodies_stream_both_ways_in_constant_memory(tmp_path):
    """R2.1: 96 MB up, with and without a stated length, and 96 MB down to a slow reader."""
    routes = [Route("/v1/files", take, methods=["POST"]), Route("/v1/files/1/content", give)]
    expected = hashlib.sha256(b"".join(large_parts())).hexdigest()
    with ThreadedServer(Starlette(routes=routes)) as upstream, serving(tmp_path, upstream.url) as (url, pid):
        HTTP.get(f"{url}/v1/files/1/content", headers=AUTH)
        HTTP.post(f"{url}/v1/files", content=b"x", headers=AUTH)
        time.sleep(1.5)  # tables of tokens are read in the background
        floor = most_memory(pid)
        for length in ({}, {"content-length": str(SIZE)}):
            answer = HTTP.post(f"{url}/v1/files", content=large_parts(), headers={**AUTH, **length}).json()
            assert answer == {"size": SIZE, "sha256": expected, "length": length.get("content-length")}
        digest = hashlib.sha256()
        with HTTP.stream("GET", f"{url}/v1/files/1/content", headers=AUTH) as response:
            time.sleep(0.5)
            for part in response.iter_raw():
                digest.update(part)
        grown = most_memory(pid) - floor
    assert digest.hexdigest() == expected
    assert grown < 16 * MEGABYTE


# --- what does not pass ---


def ask(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """One request with exactly these headers, hop-by-hop ones included."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, {**AUTH, **named})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def process(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway as `palimpsest serve` runs it, which has another server configuration than the harness."""
    with serving(tmp_path_factory.mktemp("process"), stack.provider) as (url, _):
        yield url


@pytest.mark.parametrize("path", ["/v1/realtime?model=m", "/v1/responses", "/anything"])
@pytest.mark.parametrize("server", ["harness", "process"])
def test_an_upgrade_is_refused(stack, process, path, server):
    """R2.1, R2.7: 501 in OpenAI's envelope."""
    url = process if server == "process" else stack.gateway
    socket_headers = {"sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==", "sec_websocket_version": "13"}
    status, body = ask(url, "GET", path, connection="Upgrade", upgrade="websocket", **socket_headers)
    assert status == 501
    assert json.loads(body)["error"]["code"] == "upgrade_not_supported"


@pytest.mark.parametrize("server", ["harness", "process"])
def test_an_offer_of_another_http_version_is_left_unanswered(stack, process, server):
    """R2.1, R2.8, RFC 9110 section 7.8: Java's client makes one with its first request."""
    url = process if server == "process" else stack.gateway
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAEAAEAA"}
    status, _ = ask(url, "GET", "/v1/echo", **offer)
    assert status == 200
    [last] = [one for one in received(stack) if one["path"] == "/v1/echo"][-1:]
    assert not {"upgrade", "http2-settings"} & last["headers"].keys()


def test_a_call_without_credential_is_refused(stack):
    """R2.7, R14.1"""
    assert HTTP.get(f"{stack.gateway}/v1/models").status_code == 401


def test_an_answer_that_breaks_off_is_broken_off(tmp_path):
    """R2.1: the client sees that it is not whole, as it would without a gateway."""

    def handler(call: Call) -> None:
        call.head(b"Content-Length: 1000", b"Content-Type: audio/mpeg")
        call.send(b"half")
        time.sleep(0.1)
        call.hang_up()

    with before(handler, tmp_path) as (_, front):
        got = b""
        with (
            HTTP.stream("GET", front.url + "/v1/files/1/content", headers=AUTH) as response,
            pytest.raises(httpx.RemoteProtocolError),
        ):
            for part in response.iter_raw():
                got += part
    assert got == b"half"


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_hangs_up_ends_the_upstream_call(tmp_path, begun):
    """R2.9: also before there is an answer."""
    left = threading.Event()

    def handler(call: Call) -> None:
        if begun:
            call.begin_stream()
            call.chunk(b"data: x\n\n")
        if call.left():
            left.set()

    with before(handler, tmp_path) as (_, front):
        body = b'{"prompt":"x"}'
        with socket.create_connection(front.address, timeout=PATIENCE) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            if begun:
                connection.recv(1000)
            else:
                time.sleep(0.3)
        assert left.wait(2.0)


def test_a_client_that_hangs_up_amid_its_upload_ends_the_upstream_call(tmp_path):
    """R2.9"""
    broken = threading.Event()

    async def sink(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "http":
            if (await receive())["type"] == "http.disconnect":
                broken.set()
                return

    with ThreadedServer(sink) as upstream, fronting(upstream.url, tmp_path) as front:
        with socket.create_connection(front.address, timeout=PATIENCE) as connection:
            connection.sendall(
                b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 1000\r\n\r\nhalf"
            )
            time.sleep(0.3)
        assert broken.wait(2.0)
