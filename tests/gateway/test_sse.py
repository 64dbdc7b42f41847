"""Streams are cut into events without losing, adding or holding back a byte (R2.4)."""

import time

import pytest

from gateway.sse import Event, EventDecoder


def decode(*chunks):
    decoder = EventDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.end()


def ways(stream):
    """The stream whole, byte by byte, and cut in two at each place."""
    yield (stream,)
    yield tuple(stream[at : at + 1] for at in range(len(stream)))
    for at in range(1, len(stream)):
        yield stream[:at], stream[at:]


CASES = [
    (b'data: {"a":1}\n\n', [Event(b'data: {"a":1}\n\n', b'{"a":1}', None, False)]),
    (b"data:x\n\n", [Event(b"data:x\n\n", b"x", None, False)]),
    (b"data:  x\n\n", [Event(b"data:  x\n\n", b" x", None, False)]),
    (b"data\n\n", [Event(b"data\n\n", b"", None, False)]),
    (b"data: a\r\n\r\n", [Event(b"data: a\r\n\r\n", b"a", None, False)]),
    (b"data: a\r\r", [Event(b"data: a\r\r", b"a", None, False)]),
    (b"data: a\ndata: b\n\n", [Event(b"data: a\ndata: b\n\n", b"a\nb", None, False)]),
    (b"data: a\rdata: b\r\n\n", [Event(b"data: a\rdata: b\r\n\n", b"a\nb", None, False)]),
    (b"event: e\nid: 1\nretry: 5\n\n", [Event(b"event: e\nid: 1\nretry: 5\n\n", None, b"e", False)]),
    (b"event: error\ndata: {}\n\n", [Event(b"event: error\ndata: {}\n\n", b"{}", b"error", False)]),
    (b": ping\n", [Event(b": ping\n", None, None, True)]),
    (b": ping\n\n", [Event(b": ping\n", None, None, True), Event(b"\n", None, None, True)]),
    (
        b": ping\r\n\r\ndata: x\r\n\r\n",
        [
            Event(b": ping\r\n", None, None, True),
            Event(b"\r\n", None, None, True),
            Event(b"data: x\r\n\r\n", b"x", None, False),
        ],
    ),
    (b"data: a\n: note\n\n", [Event(b"data: a\n: note\n\n", b"a", None, False)]),
    (b"\n\ndata: a\n\n", [Event(b"\n", None, None, True)] * 2 + [Event(b"data: a\n\n", b"a", None, False)]),
    (b"data: [DONE]", [Event(b"data: [DONE]", b"[DONE]", None, False)]),
    (b"data: [DONE]\n", [Event(b"data: [DONE]\n", b"[DONE]", None, False)]),
    (b"data: x\r\n\r", [Event(b"data: x\r\n\r", b"x", None, False)]),
    (b": cut", [Event(b": cut", None, None, True)]),
    (b"\xef\xbb\xbfdata: x\n\n", [Event(b"\xef\xbb\xbfdata: x\n\n", b"x", None, False)]),
    (b"\xef\xbb\xbf: x\n\n", [Event(b"\xef\xbb\xbf: x\n", None, None, True), Event(b"\n", None, None, True)]),
    (b"\xef\xbb\xbf\n", [Event(b"\xef\xbb\xbf\n", None, None, True)]),
    (
        b"data: a\n\n\xef\xbb\xbfdata: b\n\n",
        [
            Event(b"data: a\n\n", b"a", None, False),
            Event(b"\xef\xbb\xbfdata: b\n\n", None, None, False),
        ],
    ),
    (
        "data: é😀\u2028\x85\n\n".encode(),
        [Event("data: é😀\u2028\x85\n\n".encode(), "é😀\u2028\x85".encode(), None, False)],
    ),
    (b"data: x\x0b\x0c\x1cy\n\n", [Event(b"data: x\x0b\x0c\x1cy\n\n", b"x\x0b\x0c\x1cy", None, False)]),
    (b"", []),
]


@pytest.mark.parametrize(("stream", "events"), CASES)
def test_a_stream_gives_its_events_however_it_is_cut(stream, events):
    for chunks in ways(stream):
        assert decode(*chunks) == events, chunks  # law 8
    # and the same where it is not the first of its stream
    if not stream.startswith(b"\xef\xbb\xbf"):
        before = b"data: before\n\n"
        for chunks in ways(stream):
            assert decode(before, *chunks)[1:] == events, chunks


def test_an_event_is_given_as_soon_as_it_is_complete():
    decoder = EventDecoder()
    for stream in (b"data: x\n\n", b"data: x\r\n\r\n", b"data: x\r\r", b": ping\n", b"data: x\n\n"):
        assert [event.raw for event in decoder.feed(stream)] == [stream]


def test_a_comment_is_not_held_back_for_its_blank_line():
    decoder = EventDecoder()
    assert decoder.feed(b": keep-ali") == []
    assert decoder.feed(b"ve\n") == [Event(b": keep-alive\n", None, None, True)]


def test_a_carriage_return_at_the_end_of_a_read_waits_for_its_line_feed():
    decoder = EventDecoder()
    assert decoder.feed(b"data: x\r\n\r") == []
    assert [event.raw for event in decoder.feed(b"\ndata: y\r\n\r\n")] == [b"data: x\r\n\r\n", b"data: y\r\n\r\n"]


def test_a_stream_may_change_its_line_ends():
    decoder = EventDecoder()
    chunks = (b"data: a\n\n", b"data: b\r\n\r\ndata: cc", b"c\n\nd", b"ata:1\r\n\r\n")
    assert [[event.data for event in decoder.feed(chunk)] for chunk in chunks] == [[b"a"], [b"b"], [b"ccc"], [b"1"]]


def test_end_gives_what_is_left_once():
    decoder = EventDecoder()
    decoder.feed(b"data: x")
    assert [event.raw for event in decoder.end()] == [b"data: x"]
    assert decoder.end() == []


@pytest.mark.parametrize(
    ("line", "size", "length"), [(b"x", 1, 200_000), (b"x", 16_384, 10_000_000), (b"x\ndata: ", 16_384, 1_000_000)]
)
def test_a_large_event_takes_linear_time(line, size, length):
    """Quadratic work on 10 MB would take minutes."""
    stream = b"data: " + line * (length // len(line)) + b"\n\n"
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    began = time.process_time()
    (event,) = decode(*chunks)
    assert event.raw == stream
    assert time.process_time() - began < 6


def test_many_events_in_one_read_take_linear_time():
    for event in (b"data: x\n\n", b": x\n", b"\n", b"data: x\r\n\r\n", b"data: x\r\r"):
        began = time.process_time()
        assert len(decode(b"data: a\n\n", event * 20_000)) == 20_001
        assert time.process_time() - began < 3
