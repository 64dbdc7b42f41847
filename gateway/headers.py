"""Which headers cross the gateway, as lists of raw pairs: order and duplicates are kept (R2.8, R2.13).

Names are compared in lower case and forwarded as they came.
"""

from collections.abc import Collection

Headers = list[tuple[bytes, bytes]]

CREDENTIAL_HEADERS = (b"authorization", b"api-key", b"x-api-key")
INTERNAL_PREFIX = b"x-palimpsest-"

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# `host` names the upstream instead; `expect` was answered by the gateway's own server.
_NOT_UPSTREAM = frozenset({b"host", b"expect"})
# True of one sequence of bytes only.
_ABOUT_THE_BYTES = frozenset(
    {b"content-length", b"content-encoding", b"content-md5", b"digest", b"content-digest", b"repr-digest"}
)
_ABOUT_THE_RESPONSE_BYTES = _ABOUT_THE_BYTES | {b"etag", b"accept-ranges", b"content-range"}


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first value of `name` (lower case), outer white space removed; None if it was not sent."""
    return next((value.strip() for key, value in headers if key.lower() == name), None)


def header_list(headers: Headers, name: bytes) -> bytes | None:
    """All values of `name` (lower case) as one comma-separated list; None if it was not sent."""
    values = [value.strip() for key, value in headers if key.lower() == name]
    return b", ".join(values) if values else None


def end_to_end(headers: Headers) -> Headers:
    """The headers without hop-by-hop ones, those that `Connection` lists included (R2.8, RFC 9110 section 7.6.1)."""
    return _without(headers, _hops(headers))


def request_headers(
    headers: Headers,
    *,
    drop: Collection[bytes] = (),
    add: Headers | None = None,
    body_changed: bool = False,
    identity: bool = False,
) -> Headers:
    """The headers of the upstream request.

    Hop-by-hop and internal headers and `host` never pass. `drop` names more (lower case): the credential headers that
    carried a gateway key. `add` is what the gateway sets (the route's credential, a fresh `idempotency-key`), each
    in place of the client's own. `body_changed` leaves lengths, encodings and digests to be made anew; `identity` asks
    for an uncompressed answer where the client offered encodings (R2.13: nothing is added that the client did not
    send).
    """
    added = add or []
    names = _hops(headers) | _NOT_UPSTREAM | set(drop) | {name.lower() for name, _ in added}
    if body_changed:
        names |= _ABOUT_THE_BYTES
    kept = _without(headers, names)
    return (_identity_only(kept) if identity else kept) + added


def response_headers(headers: Headers, *, add: Headers | None = None, body_changed: bool = False) -> Headers:
    """The headers of the answer to the client; `add` is what the gateway sets, `x-palimpsest-*` (R2.11).

    `x-palimpsest-*` of an upstream that is itself such a gateway do not pass. `body_changed`: see `request_headers`.
    """
    names = _hops(headers) | (_ABOUT_THE_RESPONSE_BYTES if body_changed else frozenset())
    return _without(headers, names) + (add or [])


def credentials(headers: Headers) -> list[tuple[bytes, bytes]]:
    """What the client authenticates with: (header name in lower case, secret), without the word `Bearer` (R2.8)."""
    found = []
    for name, value in headers:
        lower = name.lower()
        if lower in CREDENTIAL_HEADERS:
            scheme, _, token = value.strip().partition(b" ")
            bearer = lower == b"authorization" and scheme.lower() == b"bearer"
            secret = token.strip() if bearer else value.strip()
            if secret:
                found.append((lower, secret))
    return found


def _hops(headers: Headers) -> frozenset[bytes]:
    listed = header_list(headers, b"connection") or b""
    return _HOP_BY_HOP | {name.strip().lower() for name in listed.split(b",") if name.strip()}


def _without(headers: Headers, names: Collection[bytes]) -> Headers:
    return [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in names and not lower.startswith(INTERNAL_PREFIX)
    ]


def _identity_only(headers: Headers) -> Headers:
    """`accept-encoding: identity` in the place of the client's own."""
    out: Headers = []
    seen = False
    for name, value in headers:
        if name.lower() != b"accept-encoding":
            out.append((name, value))
        elif not seen:
            out.append((name, b"identity"))
            seen = True
    return out
