"""How bytes and JSON lie on disk."""

import os

import pytest

from store.codec import PLAIN, ZSTD, clean_text, dump_json, load_json, pack, unpack


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        (b"", PLAIN),
        (b"a" * 2048, PLAIN),
        (b"a" * 2049, ZSTD),
        (os.urandom(5000), PLAIN),  # nothing to gain
    ],
)
def test_bytes_come_back(data: bytes, codec: int):
    packed = pack(data)
    assert packed[0] == codec
    assert unpack(*packed) == data
    assert len(packed[1]) <= len(data)


def test_unknown_codec_is_an_error():
    with pytest.raises(ValueError, match="unknown codec 9"):
        unpack(9, b"")


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, "é"]}, {"big": 2**70}, {"s": "\ud800"}, 2**64 - 1])
def test_json_comes_back(value: object):
    read = load_json(dump_json(value))
    assert read == value
    assert type(read) is type(value)
    assert dump_json(value).encode()


def test_text_is_taken_by_any_database():
    assert clean_text("é") == "é"
    assert clean_text("a\ud800") == "a\\ud800"
