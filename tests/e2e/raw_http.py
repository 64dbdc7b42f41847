"""Plain HTTP for tests that look at bytes: no SDK, and a client that keeps no cookies itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from tests.e2e.differential_upstream import Call, chat

CHAT = "/v1/chat/completions"
AUTH = {"authorization": "Bearer key-one"}
COMMENT = b": keep-alive\n\n"
HTTP = httpx.Client(verify=False, timeout=30, cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])))
"""One for all modules; closed at the end by conftest.py."""


def post(url: str, body: bytes | dict, path: str = CHAT, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HTTP.post(url + path, content=content, headers={"content-type": "application/json", **AUTH, **named})


def answered(call: Call) -> None:
    call.answer()


def streaming(**members: Any) -> dict[str, Any]:
    return chat(stream=True, **members)


@contextmanager
def streamed(url: str, body: dict[str, Any] | None = None) -> Iterator[httpx.Response]:
    """A stream that is open."""
    request = HTTP.stream("POST", url + CHAT, json=body or streaming(), headers=AUTH)
    with request as response:
        yield response
