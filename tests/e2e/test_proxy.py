"""Which requests are managed, and what the provider receives of them, byte for byte (R2.1-R2.3, R2.8)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator

import brotli
import pytest
import zstandard

from gateway.simulator import SimulatorSettings
from tests.e2e.differential_scenarios import CHATS
from tests.e2e.differential_upstream import (
    DONE,
    REPLY,
    before,
    delta,
    entries,
    plain_stream,
    stopped,
)
from tests.e2e.harness import MODEL, Stack, running
from tests.e2e.raw_http import AUTH, CHAT, HTTP, answered, post


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("proxy"), SimulatorSettings(models=(MODEL,))) as both:
        yield both


def member(extra: str) -> bytes:
    return b'{"model":"sim-small",%s,"messages":[{"role":"user","content":"Hi"}]}' % extra.encode()


# --- R2.1: which requests are managed ---


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/chat/completions?api-version=2024-10-21&x=%2F",
        "/openai/deployments/sim-small/chat/completions?api-version=2024-10-21",
    ],
)
def test_every_chat_completions_path_is_managed(tmp_path, path):
    """R2.1: the request is recorded, and goes to the same path with its query."""
    with before(answered, tmp_path, upstream={}) as (upstream, front):
        response = post(front.url, {"messages": [{"role": "user", "content": "Hi"}]}, path)
        assert response.status_code == 200
        assert "x-palimpsest-session" in response.headers
    [call] = upstream.calls
    plain = path if path.startswith("/v1") else f"/v1{path}"
    assert call.target == plain
    assert json.loads(call.body) == {"messages": [{"role": "user", "content": "Hi"}]}
    [request] = entries(front.settings, "request")
    assert request["route"] == ("raw/sim-small" if "deployments" in path else "raw/")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/palimpsest/", "/palimpsest/api/sessions"])
def test_the_gateways_own_paths_never_reach_the_upstream(tmp_path, path):
    """R2.1"""
    with before(answered, tmp_path) as (upstream, front):
        response = HTTP.get(front.url + path, headers=AUTH)
        # A gateway that has just started may not be ready yet.
        assert response.status_code in ({200, 503} if path == "/readyz" else {200, 401, 403, 404})
    assert upstream.calls == []


# --- R2.2, R2.12: byte for byte ---

BODIES = {
    "odd spacing": b' \r\n{ "model" :\t"sim-small" ,\n "messages":[ {"role" : "user","content":"Hi" } ]\n}\n ',
    "floats": member('"temperature":1.0,"top_p":1.00e-0,"x":0.1000,"y":-0.0,"z":1E400'),
    "64-bit integers": member('"seed":9223372036854775807,"x":18446744073709551616,"y":-9007199254740993'),
    "huge integers": member('"seed":' + "9" * 400),
    "escapes": member(r'"x":"\u00e9\/\u002f\"\ud83d\ude00","\u0079":1'),
    "escaped names": rb'{"mod\u0065l":"sim-small","messages":[{"r\u006fle":"user","content":"\u0048i"}]}',
    "unknown members": member('"vendor":{"b":1,"a":[{}]},"":null,"tools":null'),
    "duplicate members": member('"temperature":0.1,"x":1,"temperature":0.2'),
    "duplicate in a message": b'{"model":"sim-small","messages":[{"role":"user","content":"a","content":"b"}]}',
    "byte order mark": b"\xef\xbb\xbf" + member('"x":1'),
    "lone surrogate": b'{"model":"sim-small","messages":[{"role":"user","content":"\\ud800 and \\udfff"}]}',
    "not a number": member('"x":NaN,"y":-Infinity'),
    "deep nesting": member('"x":' + "[" * 3000 + "]" * 3000),
    "deep message": b'{"model":"sim-small","messages":[{"role":"user","content":"a","x":%s1%s}]}'
    % (b'{"a":' * 3000, b"}" * 3000),
    "non-ASCII": '{"model":"sim-small","messages":[{"role":"user","content":"naïve ☃ 👩\u200d🚒 \u2028"}]}'.encode(),
    "two megabytes": member('"x":"%s"' % ("0123456789" * 210_000)),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_arrives_byte_for_byte(tmp_path, name):
    """R2.2, R2.12: read, recorded, and not touched; without a stream nothing is ever added."""
    with before(answered, tmp_path) as (upstream, front):
        response = post(front.url, BODIES[name])
        assert response.content == REPLY
        assert response.headers["x-palimpsest-context"] == "verbatim"
    [call] = upstream.calls
    assert call.body == BODIES[name]
    assert call.header("content-length") == str(len(BODIES[name]))
    assert len(entries(front.settings, "request")) == 1


def test_a_chunked_body_arrives_whole(stack):
    """R2.8: its framing is the gateway's own affair."""
    parts = [b'{"model":"sim-small","mess', b'ages":[{"role":"user","content":"Hi"', b"}]}"]
    response = HTTP.post(stack.gateway + CHAT, content=iter(parts), headers=AUTH)
    assert response.status_code == 200
    assert stack.seen()[-1]["body"] == b"".join(parts)


def test_all_parameters_arrive_and_none_is_added(stack):
    """R2.3"""
    members = CHATS["all parameters"].request
    body = {name: value for name, value in members.items() if not name.startswith("extra_")}
    body |= {"n": 1, "logprobs": True, "response_format": {"type": "text"}, "reasoning_effort": "low", "audio": None}
    assert post(stack.gateway, body).status_code == 200
    assert json.loads(stack.seen()[-1]["body"]) == body


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", b',"stream_options":{"include_usage":true}'),
        (b',"stream_options":null', b',"stream_options":{"include_usage":true}'),
        (
            b',"stream_options": { "v":1.0 , "include_usage": false}',
            b',"stream_options": { "v":1.0 , "include_usage": true}',
        ),
        (b',"stream_options": {"include_usage": true }', b',"stream_options": {"include_usage": true }'),
    ],
)
def test_a_stream_changes_one_member_only(tmp_path, sent, expected):
    """R2.2, R2.5: everything but `stream_options` keeps its bytes."""
    body = b'{ "seed":1.0, "stream" : true, "messages":[ {"role":"user","content":"\\u0048i"} ], "model":"m"%s }'
    with before(plain_stream([delta("Hi"), stopped(), DONE]), tmp_path) as (upstream, front):
        assert post(front.url, body % sent).content == delta("Hi") + stopped() + DONE
    [call] = upstream.calls
    assert call.body == body % expected


def test_a_renamed_model_changes_one_member_only(tmp_path):
    """R2.2: a route may give the model another name."""
    body = b'{"n": 1, "model": "fast" ,"messages":[{"role":"user","content":"\\u0048i"}] , "x":1.0}'
    with before(answered, tmp_path, routes=[{"match": "fast", "model": "vendor/slow"}]) as (upstream, front):
        assert post(front.url, body).status_code == 200
    [call] = upstream.calls
    assert call.body == body.replace(b'"fast"', b'"vendor/slow"')


# --- R2.8: encodings of request bodies ---


def _deflated_bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ENCODINGS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate without zlib": _deflated_bare,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip, br": lambda data: brotli.compress(gzip.compress(data)),
    "GZIP": gzip.compress,
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoded_body_is_read_and_forwarded_as_it_is(tmp_path, name):
    """R2.8, R2.2"""
    encoding, packed = name.removesuffix(" without zlib"), ENCODINGS[name](member('"x":1.0'))
    with before(answered, tmp_path) as (upstream, front):
        response = post(front.url, packed, content_encoding=encoding)
        assert response.headers["x-palimpsest-context"] == "verbatim"
    [call] = upstream.calls
    assert call.body == packed
    assert call.header("content-encoding") == encoding
    assert entries(front.settings, "request")[0]["route"] == "raw/sim-small"


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoded_body_that_changes_is_sent_plain(tmp_path, name):
    """R2.8: lengths and encodings are computed anew."""
    encoding, packed = name.removesuffix(" without zlib"), ENCODINGS[name](member('"stream":true'))
    with before(plain_stream([stopped(), DONE]), tmp_path) as (upstream, front):
        assert post(front.url, packed, content_encoding=encoding, content_md5="x").status_code == 200
    [call] = upstream.calls
    assert call.body == member('"stream":true')[:-1] + b',"stream_options":{"include_usage":true}}'
    assert call.header("content-encoding") is None
    assert call.header("content-md5") is None
    assert call.header("content-length") == str(len(call.body))


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("snappy", b"x", 415),
        ("gzip", b"no gzip", 400),
        ("gzip", gzip.compress(member('"x":1'))[:-9], 400),
        ("zstd", zstandard.ZstdCompressor().compress(b" " * 70_000_000), 413),
        ("identity", b" " * 70_000_000, 413),
    ],
)
def test_a_body_that_cannot_be_decoded_is_refused(stack, encoding, body, status):
    """R2.8, R2.7: with an envelope of the gateway's own; nothing is sent."""
    before_ = len(stack.seen())
    response = post(stack.gateway, body, content_encoding=encoding)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert len(stack.seen()) == before_
