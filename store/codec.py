"""How bytes and JSON lie on disk."""

from __future__ import annotations

import json
from typing import Any

import orjson
import zstandard

PLAIN, ZSTD = 0, 1
WORTH_COMPRESSING = 2048
"""Bytes. Shorter ones gain little, and most messages are shorter."""
_LEVEL = 3


def pack(data: bytes) -> tuple[int, bytes]:
    """The codec and the bytes to store: compressed if the data is long and gets at least an eighth shorter."""
    if len(data) > WORTH_COMPRESSING:
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
        if len(packed) <= len(data) - len(data) // 8:
            return ZSTD, packed
    return PLAIN, data


def unpack(codec: int, data: bytes) -> bytes:
    """The bytes that `pack` was given. Raises ValueError for an unknown codec, zstandard.ZstdError for damage."""
    if codec == PLAIN:
        return data
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().decompress(data)
    raise ValueError(f"unknown codec {codec}")


def dump_json(value: Any) -> str:
    """Compact JSON. What a fast writer refuses (lone surrogates, integers above 64 bits) a slower one escapes."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, separators=(",", ":"))


def load_json(text: str) -> Any:
    """The value that `dump_json` wrote. The faster reader would make doubles of integers above 64 bits."""
    return json.loads(text)


def clean_text(text: str) -> str:
    r"""Text that any database takes: lone surrogates become their escape (`\ud800`)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
