"""Signs of life, errors and hang-ups (R2.6, R2.7, R2.9)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.differential_upstream import (
    DONE,
    PATIENCE,
    Call,
    before,
    chat,
    delta,
    entries,
    eventually,
    stopped,
)
from tests.e2e.harness import MODEL, Stack, running
from tests.e2e.raw_http import CHAT, COMMENT, post, streamed, streaming

# --- R2.6: signs of life ---

PATIENT = {"keepalive_after": 0.3, "keepalive_every": 0.1, "idle_comment_after": 0.3}


@contextmanager
def compacting(
    folder: Any, *, seconds: float, server: dict[str, Any], fault: str = ""
) -> Iterator[tuple[Stack, list[Any]]]:
    """A gateway whose next request, with the messages given, waits this long for a compaction that then fails."""
    simulator = SimulatorSettings(models=(MODEL,), window=2000, summariser="hang", faults=(fault,))
    messages = [
        {"role": role, "content": f"Number {number}: " + "some words to be kept " * 22}
        for number in range(7)
        for role in ("user", "assistant")
    ]
    compaction = {"summary_timeout": seconds, "background": False}
    settings = {"context_window": 2000, "server": server, "compaction": compaction}
    with running(folder, simulator, **settings) as stack:
        yield stack, [*messages, {"role": "user", "content": "Now? [[say:done]]"}]


def test_a_stream_that_waits_for_a_compaction_gets_comments(tmp_path):
    """R2.6, R2.11, R13.1: 200 and comment lines, then the stream."""
    with compacting(tmp_path, seconds=1.0, server=PATIENT) as (stack, messages):
        response = post(stack.gateway, {"model": MODEL, "messages": messages, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-palimpsest-context"] == "pending"
    beats = response.content.count(COMMENT)
    assert beats >= 2
    assert response.content.startswith(COMMENT * beats + b'data: {"id"')
    assert response.content.endswith(DONE)
    assert b"done" in response.content


def test_headers_are_held_while_a_compaction_is_short(tmp_path):
    """R2.6: so that the provider's own status can be passed on."""
    with compacting(tmp_path, seconds=0.3, server={**PATIENT, "keepalive_after": 20.0}, fault="429") as (
        stack,
        messages,
    ):
        response = post(stack.gateway, {"model": MODEL, "messages": messages, "stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"


def test_an_error_behind_comments_is_an_error_event(tmp_path):
    """R2.6, R2.7: one event with the provider's error, and nothing behind it."""
    with compacting(tmp_path, seconds=0.8, server=PATIENT, fault="429") as (stack, messages):
        response = post(stack.gateway, {"model": MODEL, "messages": messages, "stream": True})
    assert response.status_code == 200
    rest = response.content.replace(COMMENT, b"")
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"\n\n")
    assert rest.count(b"data:") == 1
    assert orjson.loads(rest[6:])["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("keepalive", [False, True])
def test_a_client_that_does_not_stream_waits(tmp_path, keepalive):
    """R2.6: with `json_keepalive` blank lines go before its JSON."""
    with compacting(tmp_path, seconds=0.8, server={**PATIENT, "json_keepalive": keepalive}) as (stack, messages):
        response = post(stack.gateway, {"model": MODEL, "messages": messages})
    assert response.json()["choices"][0]["message"]["content"] == "done"
    assert response.headers["content-type"] == "application/json"
    assert response.content.startswith(b"\n\n" if keepalive else b"{")
    assert (response.headers["x-palimpsest-context"] == "pending") is keepalive


@pytest.mark.parametrize("fault", ["503", "cut:0"])
def test_an_error_behind_blank_lines_is_json(tmp_path, fault):
    """R2.6, R2.7: the provider's error, or the gateway's own, that a JSON client can read."""
    with compacting(tmp_path, seconds=0.8, server={**PATIENT, "json_keepalive": True}, fault=fault) as (
        stack,
        messages,
    ):
        response = post(stack.gateway, {"model": MODEL, "messages": messages})
    assert response.status_code == 200
    assert response.content.startswith(b"\n\n")
    assert response.json()["error"]["message"]


def test_a_silent_stream_gets_comments_between_whole_events(tmp_path):
    """R2.6: never inside an event; and nothing more once it speaks again."""
    heard, event = threading.Event(), delta("half an event")

    def handler(call: Call) -> None:
        call.begin_stream()
        call.chunk(delta("Hi"))
        call.chunk(event[:20])
        assert heard.wait(PATIENCE)
        call.chunk(event[20:])
        call.chunk(stopped() + DONE)
        call.end()

    received = b""
    with before(handler, tmp_path, server=PATIENT) as (_, front), streamed(front.url) as response:
        for part in response.iter_raw():
            received += part
            if received.count(COMMENT) >= 3:
                heard.set()
    beats = received.count(COMMENT)
    assert received == delta("Hi") + COMMENT * beats + event + stopped() + DONE


def test_a_busy_stream_gets_no_comments(tmp_path):
    """R2.6: only silence is filled."""

    def handler(call: Call) -> None:
        call.begin_stream()
        for _ in range(15):
            call.chunk(delta("Hi"))
            time.sleep(0.1)
        call.chunk(DONE)
        call.end()

    with before(handler, tmp_path, server={**PATIENT, "idle_comment_after": 1.0}) as (_, front):
        assert post(front.url, streaming()).content == delta("Hi") * 15 + DONE


# --- R2.7: errors ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "status",
    [b"400 Bad Request", b"418 I'm a teapot", b"429 Too Many Requests", b"529 Overloaded", b"307 Temporary Redirect"],
)
def test_a_providers_error_is_unchanged(tmp_path, status, stream):
    """R2.7, R2.10: status, headers and body as they came; a redirect is not followed; sent once."""
    body = b'{ "error" : {"message":"na\\u00efve \xe2\x98\x83" , "x":1.0} }\r\n\n'
    lines = [
        b"Retry-After: 7",
        b"Retry-After-Ms: 7000",
        b"X-Ratelimit-Remaining-Tokens: 0",
        b"X-Request-Id: req-1",
        b"X-Should-Retry: false",
        b"OpenAI-Processing-Ms: 12",
        b"Location: /elsewhere",
        b"Content-Language: en",
        b'ETag: "x"',
    ]
    with before(lambda call: call.answer(body, *lines, status=status), tmp_path) as (upstream, front):
        response = post(front.url, chat(stream=stream))
    assert response.status_code == int(status[:3])
    assert response.content == body
    got = [
        (name.lower(), value) for name, value in response.headers.raw if not name.lower().startswith(b"x-palimpsest")
    ]
    sent = [tuple(line.lower().split(b": ", 1)) for line in lines]
    assert [(name, value.lower()) for name, value in got] == [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *sent,
    ]
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("partial", [b"", b'data: {"id":"c","choi'])
def test_a_stream_that_breaks_off_ends_with_one_error_event(tmp_path, partial):
    """R2.7: no `finish_reason`, no `[DONE]`, no half event; the response is recorded as interrupted."""

    def handler(call: Call) -> None:
        call.begin_stream()
        call.chunk(delta("Hello") + partial)
        time.sleep(0.05)
        call.hang_up()

    with before(handler, tmp_path) as (_, front):
        response = post(front.url, streaming())
        [entry] = entries(front.settings, "response")
    assert response.content.startswith(delta("Hello") + b"data: ")
    error = orjson.loads(response.content.removeprefix(delta("Hello"))[6:])
    assert error["error"].keys() == {"message", "type", "param", "code"}
    assert error["error"]["code"] == "upstream_broke_off"
    assert b"finish_reason" not in response.content.removeprefix(delta("Hello"))
    assert entry["interrupted"]
    assert entry["finish_reason"] is None
    assert entry["delivered_bytes"] == len(delta("Hello"))


@pytest.mark.parametrize("begun", [False, True])
def test_silence_beyond_the_limit_is_an_error(tmp_path, begun):
    """R2.7: 504 before the first byte, an error event behind it; the upstream call is given up."""
    left = threading.Event()

    def handler(call: Call) -> None:
        call.begin_stream()
        if begun:
            call.chunk(delta("Hi"))
        if call.left():
            left.set()

    with before(handler, tmp_path, upstream={"read_timeout": 0.4}) as (_, front):
        response = post(front.url, streaming())
        assert left.wait(PATIENCE)
    assert response.status_code == (200 if begun else 504)
    assert b"upstream_timeout" in response.content


@pytest.mark.parametrize(
    "garbage", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"]
)
def test_an_upstream_that_speaks_no_http_is_a_502(tmp_path, garbage):
    """R2.7"""

    def handler(call: Call) -> None:
        call.send(garbage)
        call.hang_up()

    with before(handler, tmp_path) as (_, front):
        response = post(front.url, chat())
    assert response.status_code == 502
    assert response.json()["error"]["type"] == "server_error"


# --- R2.9: hang-ups ---


@pytest.fixture
def stack(tmp_path: Any) -> Iterator[Stack]:
    with running(tmp_path, SimulatorSettings(models=(MODEL,))) as both:
        yield both


def outcome(stack: Stack) -> str:
    return str(stack.seen()[-1]["outcome"])


def hang_up_after(front_url: str, body: dict[str, Any], wanted: bytes, **headers: str) -> float:
    """Send a request, close the socket once these bytes have come; when that was."""
    host, port = front_url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    lines = [f"POST {CHAT} HTTP/1.1", "Host: x", "Authorization: Bearer key-one", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        got = b""
        while wanted not in got:
            got += connection.recv(65_536)
        if not wanted:
            time.sleep(0.3)
    return time.monotonic()


@pytest.mark.parametrize(
    ("fault", "stream", "wanted"),
    [
        ("hang:3", True, b"said"),
        ("hang", True, b""),
        ("hang", False, b""),
        ("hang:1", False, b""),
        ("slow:100", True, b"said"),
    ],
)
def test_a_client_that_hangs_up_ends_the_upstream_call(stack, fault, stream, wanted):
    """R2.9: at once, whatever the request waits for; what was received is recorded as interrupted."""
    body = chat("[[say:said this and that, and more and more and more]]", model=MODEL, stream=stream)
    gone = hang_up_after(stack.gateway, body, wanted, x_sim_fault=fault)
    assert eventually(lambda: outcome(stack), "disconnected".__eq__) == "disconnected"
    assert time.monotonic() - gone < 2.0
    [entry] = eventually(lambda: entries(stack.settings, "response"), bool)
    assert entry["interrupted"]
    assert entry["finish_reason"] is None
    assert bool(entry["choices"]) is bool(wanted)
    assert (entry["delivered_bytes"] > 0) is bool(wanted)


def test_a_hang_up_while_the_answer_is_backed_up_ends_the_call(tmp_path):
    """R2.9, R16.2: a client that does not read holds the provider back, and hanging up ends it."""
    ended = threading.Event()
    sent = 0

    def handler(call: Call) -> None:
        nonlocal sent
        call.begin_stream()
        try:
            while sent < 200_000_000:
                call.chunk(delta("x" * 50_000))
                sent += 50_000
        except OSError:
            ended.set()

    with before(handler, tmp_path) as (_, front):
        host, port = front.address
        content = json.dumps(streaming()).encode()
        with socket.create_connection((host, port)) as connection:
            connection.sendall(
                b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: %d\r\n\r\n"
                % (CHAT.encode(), len(content))
                + content
            )
            connection.recv(1000)
            time.sleep(0.5)
        assert ended.wait(PATIENCE)
    assert sent < 50_000_000


def test_what_is_unmanaged_is_cancelled_too(tmp_path):
    """R2.9, R2.12"""
    left = threading.Event()

    def handler(call: Call) -> None:
        if call.left():
            left.set()

    with before(handler, tmp_path) as (_, front):
        hang_up_after(front.url, {"no": "messages"}, b"")
        assert left.wait(2.0)
