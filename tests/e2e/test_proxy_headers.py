"""Headers, what is sent again, what is told and what cannot be read, of managed requests (R2.8, R2.10-R2.13)."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.differential_upstream import (
    REPLY,
    Call,
    before,
    chat,
    entries,
    fronting,
)
from tests.e2e.harness import MODEL, Stack, running
from tests.e2e.raw_http import AUTH, CHAT, HTTP, answered, post


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("proxy"), SimulatorSettings(models=(MODEL,))) as both:
        yield both


# --- R2.8, R2.13: headers ---


def raw_exchange(address: tuple[str, int], head: list[bytes], body: bytes) -> bytes:
    """Send exactly these header lines; everything that comes back until the server closes."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", b""]) + body)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    return answer


def test_no_header_is_added_and_hop_by_hop_headers_stay(tmp_path):
    """R2.8, R2.13: order and duplicates are kept; without `accept-encoding` or `user-agent` none is sent."""
    head = [
        b"POST /v1/chat/completions HTTP/1.1",
        b"Host: gateway",
        b"X-First: 1",
        b"Authorization: Bearer key-one",
        b"Connection: close, X-Hop",
        b"X-Hop: secret",
        b"Keep-Alive: timeout=5",
        b"Proxy-Authorization: Basic xyz",
        b"Proxy-Connection: keep-alive",
        b"TE: trailers",
        b"Trailer: X-Sum",
        b"X-Palimpsest-Session: mine",
        b"X-Palimpsest-Mode: on",
        b"X-Twice: a",
        b"X-Twice: b",
        b"X-Text: \xc3\xa9",
    ]
    with before(answered, tmp_path) as (upstream, front):
        assert raw_exchange(front.address, head, json.dumps(chat()).encode()).startswith(b"HTTP/1.1 200")
    [call] = upstream.calls
    names = [name.lower() for name, _ in call.headers]
    assert sorted(names) == sorted(
        ["host", "x-first", "authorization", "x-twice", "x-twice", "x-text", "content-length"]
    )
    assert [value for name, value in call.headers if name.lower() == "x-twice"] == ["a", "b"]
    assert call.header("host") == upstream.url.removeprefix("http://")
    assert call.header("x-text").encode("latin-1") == b"\xc3\xa9"


def test_encodings_are_not_asked_for(stack):
    """R2.13: the client offered some, the provider is asked for none."""
    post(stack.gateway, chat(), accept_encoding="gzip, br;q=0.5")
    assert stack.seen()[-1]["headers"]["accept-encoding"] == "identity"


def test_hop_by_hop_headers_of_an_answer_stay(tmp_path):
    """R2.8: all others come as they are, duplicates too."""

    def handler(call: Call) -> None:
        call.answer(
            REPLY,
            b"Connection: X-Hop",
            b"X-Hop: secret",
            b"Keep-Alive: timeout=9",
            b"X-Palimpsest-Session: of another gateway",
            b"Set-Cookie: a=1",
            b"Set-Cookie: b=2",
            b"X-Latin: \xe9",
            b"X-Empty:",
        )

    with before(handler, tmp_path) as (_, front):
        response = post(front.url, chat())
    raw = [(name.lower(), value) for name, value in response.headers.raw]
    assert [pair for pair in raw if not pair[0].startswith(b"x-palimpsest")] == [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(REPLY)).encode()),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"x-latin", b"\xe9"),
        (b"x-empty", b""),
    ]
    assert response.headers.get_list("x-palimpsest-session") != ["of another gateway"]


@pytest.mark.parametrize("header", ["authorization", "api-key", "x-api-key"])
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
def test_the_operators_credential_takes_the_place_of_the_clients(tmp_path, header, path):
    """R2.8: whichever header carried it."""
    given = {"upstream": {"api_key_env": "PROVIDER_KEY"}, "environ": {"PROVIDER_KEY": "operator"}}
    secret = "Bearer clients-secret" if header == "authorization" else "clients-secret"
    with before(answered, tmp_path, **given) as (upstream, front):
        assert HTTP.post(front.url + path, json=chat(), headers={header: secret}).status_code == 200
    [call] = upstream.calls
    assert [value for name, value in call.headers if name.lower() == "authorization"] == ["Bearer operator"]
    assert "clients-secret" not in str(call.headers)


def test_cookies_are_never_kept(tmp_path):
    """R2.13: a cookie goes to the client that it is for, and to nobody's next request."""
    with running(tmp_path, SimulatorSettings(models=(MODEL,))) as stack:
        first = post(stack.gateway, chat(), x_sim_fault="cookie")
        assert first.headers["set-cookie"].startswith("sim=")
        post(stack.gateway, chat("Again"), authorization="Bearer another-tenant")
        HTTP.get(stack.gateway + "/v1/echo", headers=AUTH)
        received = httpx.get(f"{stack.provider}/sim/requests").json()
    assert len(received) >= 3
    assert not any("cookie" in entry["headers"] for entry in received)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("include_usage", [False, True])
def test_an_answer_that_is_compressed_all_the_same_is_read(tmp_path, stream, include_usage):
    """R2.13, R4.1: the client can decode it, and the text is in the history."""
    settings = SimulatorSettings(models=(MODEL,))
    routes = [{"match": "*", "include_usage": include_usage}]
    with running(tmp_path, settings, routes=routes) as stack:
        body = chat("[[say:compressed text]]", model=MODEL, stream=stream)
        response = post(stack.gateway, body, x_sim_fault="gzip")
        assert "compressed" in response.text
        assert ("[DONE]" in response.text) is stream
        assert '"choices":[],' not in response.text
        [entry] = entries(stack.settings, "response")
    assert entry["finish_reason"] == "stop"
    assert not entry["interrupted"]
    assert len(entry["choices"]) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("encoding", [b"aws-thing", b"gzip"])
def test_an_answer_that_cannot_be_decoded_is_relayed_all_the_same(tmp_path, stream, encoding):
    """R2.4, R2.13: what only the gateway's copy needs is no reason to fail."""
    kind = b"text/event-stream" if stream else b"application/json"

    def handler(call: Call) -> None:
        call.answer(b"\x00\x01 opaque", b"Content-Type: " + kind, b"Content-Encoding: " + encoding)

    routes = [{"match": "*", "include_usage": False}]
    with (
        before(handler, tmp_path, routes=routes) as (_, front),
        HTTP.stream("POST", front.url + CHAT, json=chat(stream=stream), headers=AUTH) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-encoding"] == encoding.decode()
        assert b"".join(response.iter_raw()) == b"\x00\x01 opaque"


# --- R2.10: what is sent again ---


def test_a_failed_connection_is_tried_once_more(tmp_path):
    """R2.10 b: connecting failed, so nothing was sent; the second attempt gets through."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        # One connection fills the queue; the kernel then drops every attempt until it is taken.
        fillers = [socket.create_connection(address) for _ in range(1)]
        served: list[bytes] = []

        def serve() -> None:
            time.sleep(0.4)
            listener.accept()[0].close()
            connection, _ = listener.accept()
            served.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(REPLY) + REPLY)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        upstream = {"connect_timeout": 0.7}
        with fronting(f"http://127.0.0.1:{address[1]}", tmp_path, upstream=upstream) as front:
            thread.start()
            began = time.monotonic()
            response = post(front.url, chat())
            seconds = time.monotonic() - began
        thread.join(10)
        for filler in fillers:
            filler.close()
    assert response.content == REPLY
    assert len(served) == 1
    assert seconds > 0.6, "the first attempt must have failed"


def test_a_refused_connection_is_a_502(tmp_path):
    """R2.7, R2.10 b"""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with fronting(f"http://127.0.0.1:{unused.getsockname()[1]}", tmp_path) as front:
            response = post(front.url, chat())
            other = HTTP.get(front.url + "/v1/files", headers=AUTH)
    assert response.status_code == other.status_code == 502
    assert response.json()["error"]["code"] == "upstream_unreachable"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", CHAT), ("POST", "/v1/embeddings"), ("GET", "/v1/files"), ("DELETE", "/v1/files/1")]
)
def test_nothing_that_was_sent_is_sent_again(tmp_path, method, path):
    """R2.10: also not where a kept connection drops behind the request."""

    def handler(call: Call) -> None:
        if len(upstream.calls) > 1:
            call.hang_up()
        else:
            call.answer()

    with before(handler, tmp_path) as (upstream, front):
        body = json.dumps(chat()) if method == "POST" else None
        statuses = [HTTP.request(method, front.url + path, content=body, headers=AUTH).status_code for _ in range(2)]
    assert statuses == [200, 502]
    assert [call.connection_number for call in upstream.calls][:2] == [1, 1] or path == CHAT
    assert len(upstream.calls) == 2


def test_a_refused_stream_option_is_left_out_and_remembered(tmp_path):
    """R2.10 c: once without it, with a fresh idempotency key, and never again on that route, also after a restart."""
    simulator = SimulatorSettings(models=(MODEL, "other"), refuse_members=("stream_options",))
    body = chat(model=MODEL, stream=True)
    with running(tmp_path, simulator) as stack:
        first = post(stack.gateway, body, idempotency_key="the-clients-own")
        assert first.status_code == 200
        assert first.text.endswith("data: [DONE]\n\n")
        refused, repeated = stack.seen()
        assert b"stream_options" in refused["body"]
        assert json.loads(repeated["body"]) == body
        assert refused["headers"]["idempotency-key"] == "the-clients-own"
        assert repeated["headers"]["idempotency-key"] not in {"the-clients-own", ""}
        assert post(stack.gateway, body).status_code == 200
        assert len(stack.seen()) == 3
        assert post(stack.gateway, {**body, "model": "other"}).status_code == 200
        assert len(stack.seen()) == 5, "it is remembered for the route that refused it, not for others"
    with running(tmp_path, simulator) as stack:
        assert post(stack.gateway, body).status_code == 200
        assert len(stack.seen()) == 1


def test_a_refusal_of_what_the_client_asked_is_the_answer(tmp_path):
    """R2.10 c: only a member that the gateway added is left out."""
    simulator = SimulatorSettings(models=(MODEL,), refuse_members=("stream_options", "seed"))
    with running(tmp_path, simulator) as stack:
        own = post(stack.gateway, chat(model=MODEL, stream=True, stream_options={"include_usage": True}))
        assert own.status_code == 400
        seed = post(stack.gateway, chat(model=MODEL, seed=1))
        assert seed.json()["error"]["param"] == "seed"
        assert len(stack.seen()) == 2


# --- R2.11 ---


def test_answers_say_what_was_done(stack):
    """R2.11"""
    response = post(stack.gateway, chat(), x_palimpsest_session="my-session")
    assert response.headers["x-palimpsest-session"] == "my-session"
    assert response.headers["x-palimpsest-context"] == "verbatim"
    assert re.fullmatch(r"req_[0-9a-f]{32}", response.headers["x-palimpsest-request"])
    refused = post(stack.gateway, chat("[[status:422]]"), x_palimpsest_session="my-session")
    assert refused.status_code == 422
    assert refused.headers["x-palimpsest-session"] == "my-session"
    assert refused.headers["x-palimpsest-request"] != response.headers["x-palimpsest-request"]


# --- R2.12 ---

UNMANAGED = {
    "no JSON": b"hello",
    "nothing": b"",
    "a list": b'[{"role":"user"}]',
    "cut off": b'{"model":"m","messages":[{"role":"user"',
    "no messages": b'{"model":"m","input":"Hi"}',
    "messages no list": b'{"model":"m","messages":"Hi"}',
    "messages no objects": b'{"model":"m","messages":["Hi"]}',
    "no UTF-8": b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
    "UTF-16": '{"model":"m","messages":[]}'.encode("utf-16"),
}


@pytest.mark.parametrize("name", UNMANAGED)
def test_what_cannot_be_read_is_forwarded_unchanged_and_unrecorded(tmp_path, name):
    """R2.12: the provider's error is the answer."""

    def handler(call: Call) -> None:
        call.answer(b'{"error": "what is that?"} ', b"X-Request-Id: 7", status=b"400 Bad Request")

    with before(handler, tmp_path) as (upstream, front):
        response = post(front.url, UNMANAGED[name])
        assert (response.status_code, response.content) == (400, b'{"error": "what is that?"} ')
        assert response.headers["x-request-id"] == "7"
        assert response.headers["x-palimpsest-context"] == "verbatim; degraded=unmanaged"
        assert entries(front.settings, "request") == []
    [call] = upstream.calls
    assert call.body == UNMANAGED[name]


def test_an_encoded_body_that_cannot_be_read_is_forwarded_encoded(tmp_path):
    """R2.12, R2.8"""
    packed = gzip.compress(b"no JSON")
    with before(answered, tmp_path) as (upstream, front):
        assert post(front.url, packed, content_encoding="gzip").content == REPLY
    [call] = upstream.calls
    assert (call.body, call.header("content-encoding")) == (packed, "gzip")


def test_a_request_without_credential_is_refused(stack):
    """R2.7: 401 in OpenAI's envelope."""
    response = HTTP.post(stack.gateway + CHAT, json=chat())
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "missing_credential"
