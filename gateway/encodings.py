"""Content encodings of bodies: gzip, deflate, br and zstd, also several in a row, decoded within a bound (R2.8, R2.13).

Data flows through the layers in small pieces, and each layer counts what it gives out, so that a bomb costs no more
than the bound wherever in the row it sits.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import brotli  # type: ignore[import-untyped]  # it ships no types
import zstandard

_PIECE = 65_536
_SLICE = 4_096
# One zstd block of 4 bytes can stand for 128 kB, and its decoder takes no output limit: 256 bytes give 8 MB at most.
_ZSTD_SLICE = 256
_ZSTD_WINDOW = 8 << 20  # RFC 9659
_MOST_MEMBERS = 1_000
_MOST_LAYERS = 4


class EncodingError(ValueError):
    """A body that cannot be decoded."""


class UnsupportedEncodingError(EncodingError):
    """A content encoding that is not known, or too many in a row: status 415."""


class CorruptBodyError(EncodingError):
    """The body is not what its content encoding says, or it is cut off: status 400."""


class BodyTooLargeError(EncodingError):
    """The decoded body is larger than the bound: status 413."""


class _Codec(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]: ...

    def finish(self) -> Iterator[bytes]:
        """What is left. Raises `CorruptBodyError` if the data is cut off."""
        ...


class _Members:
    """One compressed member (gzip) or frame (zstd) after another, by objects of the standard library's form."""

    def __init__(self, start: Callable[[], Any], step: int, *limit: int) -> None:
        self._start, self._step, self._limit = start, step, limit
        self._current = start()
        self._begun = False
        self._count = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        for part in _slices(data, self._step):
            yield from self._feed(part)

    def _feed(self, data: bytes) -> Iterator[bytes]:
        full = False
        while data or full:
            if self._current.eof:
                self._next()
            self._begun = True
            piece = self._current.decompress(data, *self._limit)
            yield piece
            data = self._current.unused_data if self._current.eof else self._current.unconsumed_tail
            full = len(piece) == _PIECE and not self._current.eof

    def _next(self) -> None:
        self._count += 1
        if self._count > _MOST_MEMBERS:
            raise CorruptBodyError("too many members")
        self._current = self._start()

    def finish(self) -> Iterator[bytes]:
        if self._begun and not self._current.eof:
            raise CorruptBodyError("the body is cut off")
        yield b""


class _Deflate:
    """`deflate` as meant (zlib), or as some send it (bare): the first two bytes tell."""

    def __init__(self) -> None:
        self._head = b""
        self._codec: _Members | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._codec is None:
            self._head += data
            if len(self._head) < 2:
                return
            data = self._head
            is_zlib = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._codec = _Members(lambda: zlib.decompressobj(15 if is_zlib else -15), _SLICE, _PIECE)
        yield from self._codec.feed(data)

    def finish(self) -> Iterator[bytes]:
        if self._codec is not None:
            yield from self._codec.finish()
        elif self._head:
            raise CorruptBodyError("the body is cut off")


class _Brotli:
    def __init__(self) -> None:
        self._current = brotli.Decompressor()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._begun = self._begun or bool(data)
        piece = self._current.process(data, output_buffer_limit=_PIECE)
        yield piece
        # It can hold back output after it has taken all input.
        while piece and not self._current.is_finished():
            piece = self._current.process(b"", output_buffer_limit=_PIECE)
            yield piece

    def finish(self) -> Iterator[bytes]:
        if self._begun and not self._current.is_finished():
            raise CorruptBodyError("the body is cut off")
        yield b""


def _gzip() -> _Codec:
    return _Members(lambda: zlib.decompressobj(31), _SLICE, _PIECE)


def _zstd() -> _Codec:
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    return _Members(context.decompressobj, _ZSTD_SLICE)


_CODECS: dict[str, Callable[[], _Codec]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _zstd,
}
_FAILURES = (zlib.error, brotli.error, zstandard.ZstdError)


class _Layer:
    """One encoding, with its bound in bytes."""

    def __init__(self, codec: _Codec, bound: int | None) -> None:
        self._codec, self._bound, self._total = codec, bound, 0

    def through(self, pieces: Iterable[bytes], *, end: bool) -> Iterator[bytes]:
        for piece in pieces:
            yield from self._counted(self._codec.feed(piece))
        if end:
            yield from self._counted(self._codec.finish())

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._total += len(piece)
            if self._bound is not None and self._total > self._bound:
                raise BodyTooLargeError(f"the decoded body is larger than {self._bound} bytes")
            yield piece


class ResponseDecoder:
    """Decodes a body as it arrives, for the copy that the gateway reads (R2.13). A body that is cut off is no error.

    `max_size` bounds the decoded bytes of the whole body. Raises `UnsupportedEncodingError` when made.
    """

    def __init__(self, content_encoding: bytes | str | None, max_size: int | None = None) -> None:
        self._layers = [_Layer(codec(), max_size) for codec in _codecs(content_encoding)]

    @property
    def is_identity(self) -> bool:
        """True if bytes come out as they go in."""
        return not self._layers

    def feed(self, data: bytes) -> bytes:
        """What can be decoded so far. Raises `CorruptBodyError`, `BodyTooLargeError`."""
        return self._run(data, end=False) if self._layers else data

    def finish(self) -> bytes:
        """What is left. Raises `CorruptBodyError` if the body was cut off."""
        return self._run(b"", end=True)

    def _run(self, data: bytes, *, end: bool) -> bytes:
        pieces: Iterable[bytes] = [data] if data else []
        for layer in self._layers:
            pieces = layer.through(pieces, end=end)
        try:
            return b"".join(pieces)
        except _FAILURES as error:
            raise CorruptBodyError(str(error)) from error


def decode_body(body: bytes, content_encoding: bytes | str | None, max_size: int) -> bytes:
    """The body without its content encodings, at most `max_size` bytes.

    Raises `UnsupportedEncodingError`, `CorruptBodyError` or `BodyTooLargeError`.
    """
    decoder = ResponseDecoder(content_encoding, max_size)
    decoded = decoder.feed(body)
    if not decoder.is_identity:
        decoded += decoder.finish()
    if len(decoded) > max_size:
        raise BodyTooLargeError(f"the body is larger than {max_size} bytes")
    return decoded


def _codecs(content_encoding: bytes | str | None) -> list[Callable[[], _Codec]]:
    """What undoes the encodings, the last applied first."""
    text = content_encoding.decode("latin-1") if isinstance(content_encoding, bytes) else content_encoding or ""
    names = [name.strip().lower() for name in text.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    unknown = [name for name in names if name not in _CODECS]
    if unknown:
        raise UnsupportedEncodingError(f"content encoding {unknown[0]!r} is not supported")
    if len(names) > _MOST_LAYERS:
        raise UnsupportedEncodingError(f"more than {_MOST_LAYERS} content encodings")
    return [_CODECS[name] for name in reversed(names)]


def _slices(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]
