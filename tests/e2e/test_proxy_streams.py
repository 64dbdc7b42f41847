"""Streams, signs of life, errors and hang-ups, event by event over real sockets (R2.4-R2.7, R2.9)."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson
import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.differential_upstream import (
    DONE,
    PATIENCE,
    REPLY,
    USAGE,
    Call,
    before,
    chat,
    delta,
    entries,
    eventually,
    plain_stream,
    stopped,
)
from tests.e2e.harness import MODEL, Stack, running

CHAT = "/v1/chat/completions"
AUTH = {"authorization": "Bearer key-one"}
COMMENT = b": keep-alive\n\n"
HTTP = httpx.Client(verify=False, timeout=30)


@pytest.fixture(scope="module", autouse=True)
def _one_http_client() -> Iterator[None]:
    yield
    HTTP.close()


def post(url: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HTTP.post(url + CHAT, json=body, headers={**AUTH, **named})


def streaming(**members: Any) -> dict[str, Any]:
    return chat(stream=True, **members)


@contextmanager
def streamed(url: str, body: dict[str, Any] | None = None) -> Iterator[httpx.Response]:
    """A stream that is open."""
    request = HTTP.stream("POST", url + CHAT, json=body or streaming(), headers=AUTH)
    with request as response:
        yield response


# --- R2.4: bytes ---

ROLE = delta("")
TEXT = "naïve ☃ 👩\u200d🚒 \u2028 end"
STREAMS: dict[str, list[bytes]] = {
    "plain": [ROLE, delta("Hi"), stopped(), DONE],
    "comments": [b": OPENROUTER PROCESSING\n\n", ROLE, b":\n", delta("Hi"), b": x\n\n: y\n", stopped(), DONE],
    "CRLF": [event.replace(b"\n", b"\r\n") for event in (ROLE, delta("Hi"), stopped(), DONE)],
    "CR": [event.replace(b"\n", b"\r") for event in (ROLE, delta("Hi"), stopped(), DONE)],
    "byte order mark": [b"\xef\xbb\xbf" + ROLE, delta("Hi"), stopped(), DONE],
    "no [DONE]": [ROLE, delta("Hi"), stopped()],
    "behind [DONE]": [delta("Hi"), stopped(), DONE, b": bye\n\n", b'data: {"choices":[],"x":1}\n\n'],
    "no last blank line": [delta("Hi"), stopped(), b"data: [DONE]"],
    "no content at all": [b": only a comment\n\n"],
    "no blank behind data:": [delta("Hi").replace(b"data: ", b"data:"), stopped(), b"data:[DONE]\n\n"],
    "event, id and retry": [
        b"retry: 10\nid: 7\nevent: chunk\n" + delta("Hi"),
        b"event: ping\ndata: {}\n\n",
        stopped(),
        DONE,
    ],
    "data in lines": [b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"x"}}]}\n\n', stopped(), DONE],
    "several choices": [
        b'data: {"choices":[{"index":1,"delta":{"content":"b"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"c"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"},{"index":1,"delta":{},"finish_reason":"length"}]}\n\n',
        DONE,
    ],
    "usage beside choices": [
        delta("Hi", usage={"prompt_tokens": 1}),
        stopped(),
        delta("", usage={"total_tokens": 9}),
        DONE,
    ],
    "empty choices first": [
        b'data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}\n\n',
        delta("Hi"),
        stopped(),
        DONE,
    ],
    "empty choices, usage null": [delta("Hi"), b'data: {"choices":[],"usage":null}\n\n', stopped(), DONE],
    "odd spacing and vendor fields": [
        b'data:   {"x_vendor" : 1.0, "choices" :[ {"index":0,"delta":{"content":"\\u0048"}}]}  \n\n',
        DONE,
    ],
    "no JSON": [b"data: what?\n\n", delta("Hi"), b"data: {\n\n", stopped(), DONE],
    "text outside of ASCII": [delta(TEXT), stopped(), DONE],
    "an error in the middle": [delta("Hi"), b'data: {"error":{"message":"overloaded","code":529}}\n\n'],
    "an error first": [b'data: {"error":{"message":"overloaded","code":529}}\n\n'],
}


@pytest.mark.parametrize("cut", ["events", "bytes", "one piece"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_relayed_byte_for_byte(tmp_path, name, cut):
    """R2.4: however it is cut, also inside of a character or a line end."""
    events = STREAMS[name]
    whole = b"".join(events)
    parts = {"events": events, "bytes": [bytes([byte]) for byte in whole], "one piece": [whole]}[cut]
    with before(plain_stream(parts), tmp_path) as (_, front), streamed(front.url) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert b"".join(response.iter_raw()) == whole


@pytest.mark.parametrize("size", [100_000, 16])
@pytest.mark.parametrize("settings", [{}, {"routes": [{"match": "*", "include_usage": False}]}])
def test_every_event_is_received_before_the_next_is_sent(tmp_path, settings, size):
    """R2.4: no buffering; whoever holds an event back never gets another, be its bytes slow or not."""
    events = [b": hello\n\n", *(delta(f"part {number}") for number in range(20)), stopped(), DONE]
    received: queue.Queue[bytes] = queue.Queue()

    def handler(call: Call) -> None:
        call.begin_stream()
        for event in events:
            for at in range(0, len(event), size):
                call.chunk(event[at : at + size])
                time.sleep(0.001)
            got = b""
            while len(got) < len(event):
                got += received.get(timeout=PATIENCE)
            assert got == event
        call.end()

    with before(handler, tmp_path, **settings) as (upstream, front), streamed(front.url) as response:
        for part in response.iter_raw():
            received.put(part)
        assert upstream.errors == []


@pytest.mark.parametrize("first", [b": working\n\n", b": working\n", delta("Hi")])
def test_headers_wait_for_the_first_event_or_comment(tmp_path, first):
    """R2.4: so that an error sent as first event can still be repaired."""
    go, headers_there = threading.Event(), threading.Event()

    def handler(call: Call) -> None:
        call.begin_stream()
        assert not headers_there.wait(0.3)
        call.chunk(first)
        assert headers_there.wait(PATIENCE)
        call.chunk(DONE)
        call.end()
        go.set()

    with before(handler, tmp_path) as (_, front), streamed(front.url) as response:
        headers_there.set()
        assert response.read() == first + DONE
        assert go.wait(PATIENCE)


def test_json_is_read_whole_before_it_is_relayed(tmp_path):
    """R2.4, R2.7: a JSON answer that breaks off is a 502, not half an answer."""

    def handler(call: Call) -> None:
        call.head(b"Content-Type: application/json", b"Content-Length: %d" % len(REPLY))
        call.send(REPLY[:40])
        time.sleep(0.05)
        if len(upstream.calls) == 1:
            call.send(REPLY[40:])
        else:
            call.hang_up()

    with before(handler, tmp_path) as (upstream, front):
        assert post(front.url, chat()).content == REPLY
        broken = post(front.url, chat())
    assert broken.status_code == 502
    assert broken.json()["error"]["code"] == "upstream_broke_off"


# --- R2.5: usage ---


def test_the_usage_chunk_is_asked_for_and_withheld(tmp_path):
    """R2.5, R4.1: the gateway learns the figures, the client sees what it asked for."""
    with before(plain_stream([delta("Hi"), stopped(), USAGE, DONE]), tmp_path) as (upstream, front):
        assert post(front.url, streaming()).content == delta("Hi") + stopped() + DONE
        [entry] = entries(front.settings, "response")
    assert orjson.loads(upstream.calls[0].body)["stream_options"] == {"include_usage": True}
    assert entry["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert entry["finish_reason"] == "stop"
    assert entry["delivered_bytes"] == len(delta("Hi") + stopped())


def test_the_usage_chunk_that_the_client_asked_for_is_relayed(tmp_path):
    """R2.5, R2.2"""
    body = streaming(stream_options={"include_usage": True})
    with before(plain_stream([delta("Hi"), stopped(), USAGE, DONE]), tmp_path) as (upstream, front):
        assert post(front.url, body).content == delta("Hi") + stopped() + USAGE + DONE
    assert orjson.loads(upstream.calls[0].body) == body


def test_usage_can_be_left_alone_per_route(tmp_path):
    """R2.5: then even a usage chunk that nobody asked for is relayed."""
    routes = [{"match": "quiet*", "include_usage": False}]
    with before(plain_stream([stopped(), USAGE, DONE]), tmp_path, routes=routes) as (upstream, front):
        quiet = streaming() | {"model": "quiet-1"}
        assert post(front.url, quiet).content == stopped() + USAGE + DONE
        assert post(front.url, streaming()).content == stopped() + DONE
    assert [b"stream_options" in call.body for call in upstream.calls] == [False, True]


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
