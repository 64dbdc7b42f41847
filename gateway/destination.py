"""Where a request goes at an upstream, with which headers and whose credential (R2.8, R2.13, R9.8)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from starlette.types import Scope

from gateway.errors import missing_credential
from gateway.headers import CREDENTIAL_HEADERS, Headers, credentials, request_headers
from gateway.settings import Upstream
from gateway.targets import target
from gateway.upstream import Timeouts

IDEMPOTENCY_KEY = b"idempotency-key"
_CALLERS_OWN = frozenset(
    {
        *CREDENTIAL_HEADERS,
        b"user-agent",
        b"openai-organization",
        b"openai-project",
        b"openai-beta",
        b"anthropic-version",
        b"http-referer",
        b"x-title",
    }
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes, and with which headers of the client's."""

    url: str
    headers: Headers
    forwards_credential: bool
    """Whether the client's own credential may go there (R9.8)."""
    credential: Headers
    """The route's credential, in place of the client's own; empty if it has none."""
    timeouts: Timeouts

    def headers_for(self, *, changed: bool, again: bool, identity: bool = True) -> Headers:
        """The headers of one upstream request; a second one is not the first, so its idempotency key is fresh.

        `identity`: the answer will be read, so it is asked for without encodings (R2.13).
        """
        fresh = [(IDEMPOTENCY_KEY, uuid.uuid4().hex.encode())] if again else []
        drop = () if self.forwards_credential else CREDENTIAL_HEADERS
        return request_headers(
            self.headers, drop=drop, add=self.credential + fresh, body_changed=changed, identity=identity
        )


def bearer(api_key: str | None) -> Headers:
    """The header that carries an operator's credential; none without one."""
    return [] if api_key is None else [(b"authorization", b"Bearer " + api_key.encode())]


def summary_headers(headers: Headers) -> Headers:
    """What a summary request takes over from the caller's: who is asking, not what for (R8.2)."""
    kept = [(name, value) for name, value in headers if name.lower() in _CALLERS_OWN]
    return [*kept, (b"content-type", b"application/json"), (b"accept", b"application/json")]


def destination_for(upstream: Upstream, scope: Scope, *, api_key: str | None, forwards_credential: bool) -> Destination:
    """Where a request of this scope goes at an upstream, and with which credential (R2.13, R9.8)."""
    return Destination(
        url=target(upstream.base_url, scope["raw_path"], scope["query_string"]),
        headers=scope["headers"],
        forwards_credential=forwards_credential and api_key is None,
        credential=bearer(api_key),
        timeouts=Timeouts(upstream.connect_timeout, upstream.read_timeout),
    )


def check_credential(headers: Headers, upstream: Upstream) -> bytes | None:
    """The client's credential, or None where none is needed. Raises `GatewayError` (401, R14.1)."""
    found = credentials(headers)
    if not found and upstream.auth != "none" and upstream.api_key_env is None:
        raise missing_credential()
    return found[0][1] if found else None
