"""Encoded bodies are understood, within a bound (R2.8, R2.13)."""

import gzip
import time
import zlib

import brotli
import pytest
import zstandard

from gateway.encodings import (
    BodyTooLargeError,
    CorruptBodyError,
    ResponseDecoder,
    UnsupportedEncodingError,
    decode_body,
)

TEXT = b'{"messages": [' + b'{"role":"user","content":"hello"},' * 5000 + b"{}]}"
LIMIT = 1_000_000


def bare_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=3),
    "zstd": zstandard.compress,
}
PACKED = [*((name, pack(TEXT)) for name, pack in ENCODERS.items()), ("deflate", bare_deflate(TEXT))]


@pytest.mark.parametrize(("name", "packed"), PACKED, ids=[*ENCODERS, "bare deflate"])
def test_each_encoding_is_decoded_whole_and_in_pieces(name, packed):
    assert decode_body(packed, name, LIMIT) == TEXT
    for size in (1, 7, 5000):
        decoder = ResponseDecoder(name.encode())
        pieces = [decoder.feed(packed[at : at + size]) for at in range(0, len(packed), size)]
        assert b"".join(pieces) + decoder.finish() == TEXT


@pytest.mark.parametrize("encoding", [None, b"", "identity", " Identity ", ","])
def test_identity_leaves_the_body(encoding):
    assert decode_body(TEXT, encoding, LIMIT) is TEXT
    assert ResponseDecoder(encoding).is_identity
    assert ResponseDecoder(encoding).feed(b"x") == b"x"


def test_several_in_a_row_are_undone_from_the_last():
    assert decode_body(brotli.compress(gzip.compress(TEXT)), b"gzip, identity, BR", LIMIT) == TEXT


@pytest.mark.parametrize("encoding", ["compress", "gzip, foo", "gzip,gzip,gzip,gzip,gzip"])
def test_unknown_encodings_and_too_many_are_refused(encoding):
    with pytest.raises(UnsupportedEncodingError):
        decode_body(b"", encoding, LIMIT)


@pytest.mark.parametrize(("name", "pack"), ENCODERS.items())
def test_what_is_cut_off_damaged_or_something_else_is_refused(name, pack):
    packed = pack(TEXT)
    for bad in (packed[: len(packed) // 2], packed[:-1], b"this is no compressed text", packed[:10] + b"\xff" * 40):
        with pytest.raises(CorruptBodyError):
            decode_body(bad, name, LIMIT)


@pytest.mark.parametrize("name", ["gzip", "br", "zstd"])
def test_what_follows_the_end_is_refused(name):
    with pytest.raises(CorruptBodyError):
        decode_body(ENCODERS[name](b"{}") + b"garbage", name, LIMIT)


@pytest.mark.parametrize("name", [*ENCODERS])
def test_an_empty_body_is_empty(name):
    assert decode_body(b"", name, LIMIT) == b""
    assert decode_body(ENCODERS[name](b""), name, LIMIT) == b""


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_members_one_after_another_are_one_body(name):
    pack = ENCODERS[name]
    assert decode_body(pack(b"ab") + pack(b"") + pack(TEXT), name, LIMIT) == b"ab" + TEXT


@pytest.mark.parametrize(("name", "packed"), PACKED, ids=[*ENCODERS, "bare deflate"])
def test_the_bound_is_exact(name, packed):
    assert decode_body(packed, name, len(TEXT)) == TEXT
    with pytest.raises(BodyTooLargeError):
        decode_body(packed, name, len(TEXT) - 1)


@pytest.mark.parametrize("length", range(65_520, 65_820, 7))
def test_output_that_ends_near_a_piece_is_not_held_back(length):
    assert decode_body(bare_deflate(bytes(length)), "deflate", LIMIT) == bytes(length)
    assert decode_body(brotli.compress(bytes(length), quality=3), "br", LIMIT) == bytes(length)


def test_the_bound_holds_without_encoding():
    with pytest.raises(BodyTooLargeError):
        decode_body(TEXT, None, len(TEXT) - 1)


@pytest.mark.parametrize("encodings", [["gzip"], ["br"], ["zstd"], ["deflate"], ["gzip", "gzip"], ["zstd", "br"]])
def test_a_bomb_costs_no_more_than_the_bound(encodings):
    """Megabytes in a few bytes, wherever in the row it sits."""
    piece = bytes(50_000_000)
    bomb = piece
    for name in encodings:
        bomb = ENCODERS[name](bomb)
    began = time.process_time()
    with pytest.raises(BodyTooLargeError):
        decode_body(bomb, ", ".join(encodings), LIMIT)
    assert time.process_time() - began < 1


def test_a_bomb_inside_an_empty_result_is_bounded_too():
    """The inner layer gives nothing, the outer one much: each layer has the bound."""
    members = gzip.compress(b"") * 100_000
    with pytest.raises((BodyTooLargeError, CorruptBodyError)):
        decode_body(gzip.compress(members), "gzip, gzip", 100_000)


def test_very_many_members_are_refused():
    with pytest.raises(CorruptBodyError, match="members"):
        decode_body(gzip.compress(b"x") * 2000, "gzip", LIMIT)


def test_a_stream_that_is_flushed_event_by_event_is_decoded_event_by_event():
    """A copied stream must be read as it arrives (R2.4)."""
    packer = zlib.compressobj(wbits=31)
    decoder = ResponseDecoder("gzip")
    for event in (b"data: 1\n\n", b"data: " + b"2" * 200_000 + b"\n\n", b"data: [DONE]\n\n"):
        assert decoder.feed(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)) == event


def test_a_stream_is_bounded_where_asked():
    decoder = ResponseDecoder("gzip", max_size=10)
    with pytest.raises(BodyTooLargeError):
        decoder.feed(gzip.compress(bytes(11)))
