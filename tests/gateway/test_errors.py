"""The gateway's own errors."""

import json

import httpx
import openai
import pytest

from gateway import errors
from gateway.errors import GatewayError

EVERY = [
    (errors.unreadable_body("no JSON"), 400, "unreadable_body"),
    (errors.missing_credential(), 401, "missing_credential"),
    (errors.body_too_large(10), 413, "body_too_large"),
    (errors.unsupported_encoding("lzma"), 415, "unsupported_encoding"),
    (errors.internal_error(), 500, "internal_error"),
    (errors.upgrade_refused(), 501, "upgrade_not_supported"),
    (errors.upstream_unreachable("openai"), 502, "upstream_unreachable"),
    (errors.upstream_broke_off("openai"), 502, "upstream_broke_off"),
    (errors.store_refused(), 503, "store_unavailable"),
    (errors.upstream_timeout("openai"), 504, "upstream_timeout"),
]


@pytest.mark.parametrize(("error", "status", "code"), EVERY)
def test_an_error_has_its_status_and_openais_envelope(error: GatewayError, status: int, code: str):  # R2.7
    assert error.status == status
    envelope = json.loads(error.body())
    assert list(envelope) == ["error"]
    assert list(envelope["error"]) == ["message", "type", "param", "code"]
    assert envelope["error"]["code"] == code
    assert envelope["error"]["message"]
    assert envelope["error"]["type"] == ("invalid_request_error" if status < 500 or status == 501 else "server_error")


@pytest.mark.parametrize("error", [error for error, _, _ in EVERY])
def test_the_openai_sdk_reads_the_error(error: GatewayError):
    """What the SDK makes of it carries message and code."""
    client = openai.OpenAI(api_key="k", base_url="http://h")
    body = json.loads(error.body())
    read = client._make_status_error_from_response(
        httpx.Response(error.status, json=body, request=httpx.Request("POST", "http://h"))
    )
    assert read.code == error.code
    assert error.message in str(read)


def test_in_a_stream_an_error_is_one_event():  # R2.7
    error = errors.upstream_broke_off("openai")
    assert error.event() == b"data: " + error.body() + b"\n\n"
    assert error.event().count(b"\n") == 2


def test_text_of_clients_cannot_break_the_envelope():
    error = errors.unsupported_encoding('x"\n\ud800' + "y" * 500)
    assert json.loads(error.body())["error"]["message"].startswith("The content-encoding 'x\"")
    assert b"\n" not in error.body()
    assert len(error.body()) < 400


def test_headers_are_given_as_asgi_wants_them():
    assert errors.store_refused().raw_headers() == [(b"retry-after", b"1")]
    assert errors.missing_credential().raw_headers() == [(b"www-authenticate", b"Bearer")]
    assert errors.internal_error().raw_headers() == []


def test_an_error_can_be_raised_and_says_what_happened():
    with pytest.raises(GatewayError, match="larger than 10 bytes"):
        raise errors.body_too_large(10)
