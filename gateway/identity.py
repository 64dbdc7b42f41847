"""Who is calling (R3.1, R14.1), and which container the client names (R3.5)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.cache import GenerationCache
from gateway.headers import Headers
from gateway.wire import ChatRequest

ANONYMOUS = "anonymous"
SINGLE = "single"
"""The tenant of one person's machine, whatever the credential (R14.1)."""
OWN_SESSION_HEADER = b"x-palimpsest-session"
MAX_SESSION_ID = 256
BODY_IDS = (("metadata", "session_id"), ("metadata", "conversation_id"), ("metadata", "thread_id"))
_UNRESOLVED = re.compile(r"\{\{.*\}\}|\$\{.*\}")


class Tenants:
    """Turns a credential into a tenant: its keyed hash, so that no credential is ever stored (SPEC 1)."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._known: GenerationCache[bytes, str] = GenerationCache(4096)

    def of(self, credential: bytes) -> str:
        """The tenant's id."""
        tenant = self._known.get(credential)
        if tenant is None:
            tenant = "t_" + hmac.new(self._secret, credential, hashlib.sha256).hexdigest()
            self._known.put(credential, tenant)
        return tenant


def explicit_session(headers: Headers, request: ChatRequest, names: Sequence[bytes]) -> str | None:
    """The session id that the client sends: our header, its own header, or a member of the body (R3.5)."""
    given = dict(headers)
    for name in (OWN_SESSION_HEADER, *names):
        if (raw := given.get(name)) is not None and (found := usable_id(raw.decode("latin-1"))):
            return found
    return next(filter(None, map(usable_id, _body_ids(request))), None)


def _body_ids(request: ChatRequest) -> Iterable[Any]:
    if "session_id" in request.members:
        yield request.value("session_id")
    if "metadata" in request.members and isinstance(metadata := request.value("metadata"), dict):
        for _, key in BODY_IDS:
            yield metadata.get(key)


def usable_id(value: Any) -> str | None:
    """The id, trimmed; None where it is no id: empty, `null`, an unresolved template, over 256 bytes (R3.5)."""
    if not isinstance(value, str):
        return None
    value = value.strip()
    if not value or value.lower() in {"null", "undefined"} or _UNRESOLVED.search(value):
        return None
    return value if len(value.encode("utf-8", "surrogatepass")) <= MAX_SESSION_ID else None
