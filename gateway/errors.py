"""The gateway's own errors: OpenAI's envelope and a matching status, or one event of a begun stream (R2.7)."""

from collections.abc import Mapping
from types import MappingProxyType

import orjson

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class GatewayError(Exception):
    """An error that carries the answer the client gets.

    `message` is shown to the client, so it holds no credential, no prompt text and nothing about the machine.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str,  # noqa: A002 - the member's name in OpenAI's envelope
        code: str | None,
        param: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """The envelope as JSON, `{"error": {"message", "type", "param", "code"}}`."""
        # Messages may quote a client's text, and lone surrogates are no UTF-8.
        message = self.message.encode("utf-8", "replace").decode()
        return orjson.dumps({"error": {"message": message, "type": self.type, "param": self.param, "code": self.code}})

    def event(self) -> bytes:
        """The envelope as the last event of a stream."""
        return b"data: " + self.body() + b"\n\n"

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that belong to this error, as ASGI wants them (names in lower case)."""
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]


def missing_credential() -> GatewayError:
    """401: neither a provider credential nor a gateway key came with the request (R14.1)."""
    return GatewayError(
        401,
        "No API key was sent. Send your provider's key as 'Authorization: Bearer <key>'; "
        "the gateway forwards it and does not store it.",
        type=INVALID_REQUEST,
        code="missing_credential",
        headers={"www-authenticate": "Bearer"},
    )


def unreadable_body(why: str) -> GatewayError:
    """400: the request body cannot be read, and the provider cannot be asked instead (R2.12)."""
    return GatewayError(400, f"The request body cannot be read: {why}", type=INVALID_REQUEST, code="unreadable_body")


def body_too_large(limit: int) -> GatewayError:
    """413: the body, as sent or decoded, is over `limit` bytes (`server.max_body_bytes`)."""
    return GatewayError(
        413, f"The request body is larger than {limit} bytes.", type=INVALID_REQUEST, code="body_too_large"
    )


def unsupported_encoding(encoding: str) -> GatewayError:
    """415: the body's `content-encoding` is none that the gateway knows (R2.8)."""
    return GatewayError(
        415,
        f"The content-encoding {encoding[:80]!r} is not supported. Use gzip, deflate, br, zstd or none.",
        type=INVALID_REQUEST,
        code="unsupported_encoding",
        headers={"accept-encoding": "gzip, deflate, br, zstd"},
    )


def upgrade_refused() -> GatewayError:
    """501: a request to switch protocols, such as a WebSocket for `/realtime` (R2.1)."""
    return GatewayError(
        501,
        "The gateway does not forward protocol upgrades such as WebSockets. Ask the provider directly.",
        type=INVALID_REQUEST,
        code="upgrade_not_supported",
        headers={"x-should-retry": "false"},
    )


def not_found() -> GatewayError:
    """404: a path below the gateway's own prefix that it does not have."""
    return GatewayError(404, "There is no such page of the gateway.", type=INVALID_REQUEST, code="not_found")


def upstream_unreachable(upstream: str) -> GatewayError:
    """502: connecting to the upstream named `upstream` failed; nothing was sent."""
    return GatewayError(
        502, f"The upstream {upstream!r} cannot be reached.", type=SERVER_ERROR, code="upstream_unreachable"
    )


def upstream_broke_off(upstream: str) -> GatewayError:
    """502, or the last event of a stream: the upstream ended its answer before it was whole."""
    return GatewayError(
        502, f"The upstream {upstream!r} broke off its answer.", type=SERVER_ERROR, code="upstream_broke_off"
    )


def upstream_timeout(upstream: str) -> GatewayError:
    """504: the upstream was silent for longer than its `read_timeout`."""
    return GatewayError(
        504, f"The upstream {upstream!r} did not answer in time.", type=SERVER_ERROR, code="upstream_timeout"
    )


def store_refused() -> GatewayError:
    """503: the history cannot be written and `store.on_failure` is `refuse` (R4.4)."""
    return GatewayError(
        503,
        "The conversation cannot be recorded at the moment, so the request was not sent.",
        type=SERVER_ERROR,
        code="store_unavailable",
        headers={"retry-after": "1"},
    )


def internal_error() -> GatewayError:
    """500: a fault of the gateway. The client learns nothing but that; the log has the rest."""
    return GatewayError(500, "The gateway failed on this request.", type=SERVER_ERROR, code="internal_error")
