"""Law 8: any chunking of a stream gives the same events and the same bytes; no answer makes the fold fail."""

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.reply import ReplyFold, usage_numbers
from gateway.sse import EventDecoder

lines = st.sampled_from(
    [
        b"data: x",
        b"data:y",
        b"data",
        b": comment",
        b":",
        b"event: e",
        b"id: 1",
        b"",
        b"data: \xc3\xa9",
        b"\xef\xbb\xbfdata: z",
    ]
)
ends = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])
streams = st.lists(st.tuples(lines, ends).map(b"".join), max_size=12).map(b"".join)
tails = st.sampled_from([b"", b"data: cut", b": cut", b"\r", b"\xef\xbb"])


def cut(stream, places):
    marks = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(marks)]


def decode(chunks):
    decoder = EventDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.end()


def reference(stream):
    """What a client dispatches, by the letter of the standard, read from the whole stream."""
    text = stream.removeprefix(b"\xef\xbb\xbf")
    found, data, event = [], None, None
    for line in text.splitlines():
        if not line:
            if data is not None:
                found.append((data, event))
            data = event = None
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            data = value if data is None else data + b"\n" + value
        elif name == b"event":
            event = value
    return found + ([(data, event)] if data is not None else [])


@given(streams, tails, st.lists(st.integers(0, 500), max_size=8))
@settings(max_examples=200)
def test_any_chunking_gives_the_same_events_and_all_bytes(stream, tail, places):
    stream += tail
    whole = decode([stream])
    assert b"".join(event.raw for event in whole) == stream
    assert decode(cut(stream, places)) == whole
    assert decode([stream[at : at + 1] for at in range(len(stream))]) == whole


@given(streams, tails)
@settings(max_examples=400)
def test_events_are_those_of_the_standard(stream, tail):
    stream += tail
    assert [(event.data, event.event) for event in decode([stream]) if event.data is not None] == reference(stream)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_arbitrary_bytes_come_out_as_they_went_in(chunks):
    assert b"".join(event.raw for event in decode(chunks)) == b"".join(chunks)


# --- the fold ------------------------------------------------------------------------------------------------------

NAMES = [
    "id", "model", "choices", "usage", "error", "object", "index", "delta", "message", "finish_reason", "role", "content",
    "tool_calls", "function", "custom", "name", "arguments", "input", "type", "text", "function_call", "reasoning",
    "thinking_blocks", "signature", "prompt_tokens", "x_groq",
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)
call_deltas = st.fixed_dictionaries(
    {},
    optional={
        "index": json_values,
        "id": json_values,
        "type": json_values,
        "function": json_values | st.fixed_dictionaries({}, optional={"name": json_values, "arguments": json_values}),
    },
)
deltas = st.dictionaries(st.sampled_from(NAMES), json_values, max_size=4) | st.fixed_dictionaries(
    {}, optional={"tool_calls": st.lists(call_deltas, max_size=3), "content": json_values, "reasoning": json_values}
)
chunks = json_values | st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries({}, optional={"index": json_values, "delta": deltas, "message": deltas}), max_size=3
        )
    }
)


@given(st.lists(chunks, max_size=5), st.booleans())
@settings(max_examples=100)
def test_the_fold_takes_any_json(objects, whole):
    before = json.dumps(objects)
    fold = ReplyFold()
    for obj in objects:
        fold.add_json(obj) if whole else fold.add_chunk(obj)
        reply = fold.result()
        assert all(isinstance(choice.message, dict) for choice in reply.choices)
        usage_numbers(reply.usage)
    assert json.dumps(objects) == before, "what was given is not changed"


@given(json_values | st.dictionaries(st.sampled_from(["prompt_tokens", "input_tokens", "total_tokens"]), json_values))
def test_usage_takes_any_json(usage):
    numbers = usage_numbers(usage)
    assert all(value is None or value >= 0 for value in (numbers.prompt, numbers.completion))


@given(
    st.text(max_size=30),
    st.text(max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_text_and_arguments_are_the_same_however_they_are_cut(text, arguments, cuts, more_cuts):
    fold = ReplyFold()
    fold.add_chunk(
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}}]}
    )
    for piece in cut(text, cuts):
        fold.add_chunk({"choices": [{"index": 0, "delta": {"content": piece}}]})
    for piece in cut(arguments, more_cuts):
        delta = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        fold.add_chunk({"choices": [{"index": 0, "delta": delta}]})
    (choice,) = fold.result().choices
    assert choice.message["content"] == text
    assert choice.message["tool_calls"][0]["function"] == {"name": "f", "arguments": arguments}
