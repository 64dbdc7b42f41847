"""Content encodings of request bodies (R2.8)."""

import zlib

import brotli  # type: ignore[import-untyped]  # has no stubs
import zstandard


def decoded(body: bytes, encoding: str) -> bytes:
    """A request body without its content encodings. Raises ValueError where it can't be read."""
    try:
        for name in reversed([part.strip().lower() for part in encoding.split(",")]):
            body = _without(body, name)
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise ValueError(f"the body is not in its content-encoding: {error}") from error
    return body


def _without(body: bytes, name: str) -> bytes:
    match name:
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return zlib.decompress(body, zlib.MAX_WBITS | 16)
        case "deflate":
            # Some clients send the bare stream without the zlib header that the name means.
            return zlib.decompress(body, zlib.MAX_WBITS if body[:1] == b"\x78" else -zlib.MAX_WBITS)
        case "br":
            unpacked: bytes = brotli.decompress(body)
            return unpacked
        case "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(body)
        case _:
            raise ValueError(f"content-encoding {name!r} is not supported")
