"""Streams are relayed as they come, event by event over real sockets (R2.4, R2.5)."""

from __future__ import annotations

import queue
import threading
import time

import orjson
import pytest

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
    plain_stream,
    stopped,
)
from tests.e2e.raw_http import post, streamed, streaming

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
