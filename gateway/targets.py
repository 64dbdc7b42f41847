"""Where a request goes at the upstream (R2.1): a path of the client's joined to a base URL, as it came."""

import re
from urllib.parse import urlsplit

VERSION_PREFIX = "/v1"
# What may not stand in a URL as it is. Percent-encodings are left as they came.
_UNSAFE = re.compile(r"[^\x21-\x7e]|#")


def target(base_url: str, raw_path: bytes, query: bytes) -> str:
    """The URL at the upstream for a path as received (`scope["raw_path"]`) and its query.

    A client may or may not write the base URL's path, and may or may not write `/v1`: `/v1/models` and `/models`
    both go to `https://host/v1/models` for the base URL `https://host/v1`, and to `https://host/api/v1/models` for
    `https://host/api/v1`. With a base URL without a path, the client's path is the whole path. Nothing is decoded,
    re-encoded or re-ordered, so that the target is RFC 3986-equivalent to what the client wrote.
    """
    base = urlsplit(base_url)
    path = _joined(base.path.rstrip("/"), _written(raw_path))
    suffix = "?" + _written(query) if query else ""
    return f"{base.scheme}://{base.netloc}{path}{suffix}"


def _joined(base: str, path: str) -> str:
    path = path if path.startswith("/") else "/" + path
    if not base or _is_below(path, base):
        return path
    return base + (path[len(VERSION_PREFIX) :] if _is_below(path, VERSION_PREFIX) else path)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def _written(raw: bytes) -> str:
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", raw.decode("latin-1"))
