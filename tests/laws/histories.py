"""Random histories, well-formed and in every malformed shape that clients send; shared by the laws."""

import json

from hypothesis import strategies as st

from compaction.canonical import build_path, read_message
from compaction.types import Path

TENANT = "tenant"

# Surrogates included: a JSON escape can hold a lone one (R2.12).
characters = st.characters(codec=None, exclude_categories=())
words = st.sampled_from(
    ["", " ", "a", "\r\n", "\n", "<think>", "</think>", "é", "😀", "\ud800", "{}", "=", "No.", "\x00"]
)
texts = st.one_of(
    st.text(characters, max_size=6),
    st.lists(words, max_size=3).map("".join),
    st.sampled_from(["go on", "yes", "A" * 3000, "data:image/png;base64,AAAA"]),
)
numbers = st.one_of(
    st.integers(-(10**30), 10**30), st.floats(allow_nan=False), st.sampled_from([0, -0.0, 1.0, 2**53, 1e16])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "id", "cache_control", "é"]), inner, max_size=3),
    ),
    max_leaves=3,
)
depths = st.sampled_from([10, 99, 101, 500, 3000])
deep_arguments = depths.map(lambda depth: '{"a":' * depth + "1" + "}" * depth)
arguments = st.one_of(
    st.dictionaries(st.sampled_from(["path", "n", "é"]), values, max_size=3).map(json.dumps),
    st.sampled_from(["", "{}", " {} ", "{", "[1, 2.0]", "null", '{"n": 9007199254740993}', '"text"']),
    deep_arguments,
)
ids = st.sampled_from(["call_0", "call_1", "call_2", "", "é"])
names = st.sampled_from(["look", "write", ""])

marks = st.sampled_from(
    [{}, {"cache_control": {"type": "ephemeral"}}, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}]
)
text_parts = st.builds(lambda text, mark: {"type": "text", "text": text, **mark}, texts, marks)
media_parts = st.sampled_from(
    [
        {"type": "image_url", "image_url": {"url": "https://host/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 200}},
        {"type": "input_audio", "input_audio": {"data": "UklGR" * 100, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0x"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "hologram", "hologram": [1.0, {"cache_control": {"type": "ephemeral"}}]},
    ]
)
contents = st.one_of(texts, texts, st.lists(st.one_of(text_parts, media_parts), max_size=4))
reasoning = st.sampled_from(
    [{}, {"reasoning_content": "hm"}, {"thinking_blocks": [{"signature": "x"}], "refusal": None}]
)


def call(call_id, name, text):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def result(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


users = st.builds(
    lambda content, name: {"role": "user", "content": content, **name},
    contents,
    st.sampled_from([{}, {}, {"name": "anna"}, {"name": None}]),
)
systems = st.builds(
    lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "developer"]), contents
)
answers = st.builds(
    lambda content, more: {"role": "assistant", "content": content, **more}, st.one_of(contents, st.none()), reasoning
)
calling = st.builds(
    lambda calls, content, more: {"role": "assistant", "content": content, "tool_calls": calls, **more},
    st.lists(st.builds(call, ids, names, arguments), min_size=1, max_size=3),
    st.one_of(st.none(), texts),
    reasoning,
)
results = st.builds(result, ids, st.one_of(contents, st.none()))
legacy_calls = st.builds(
    lambda name, text: {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": text}},
    names,
    arguments,
)
legacy_results = st.builds(lambda name, content: {"role": "function", "name": name, "content": content}, names, texts)
strange = st.sampled_from(
    [
        {},
        {"role": None, "content": "x"},
        {"role": "critic", "content": [{"type": "text"}]},
        {"role": "user"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"a": 1}},
        {"role": "user", "content": ["x", None]},
        {"role": "tool", "content": "no id"},
        {"role": "tool", "tool_call_id": 5, "content": None},
        {"role": "assistant", "tool_calls": {"a": 1}},
        {
            "role": "assistant",
            "tool_calls": [None, {"id": 1}, {"id": "call_0", "type": "custom", "custom": {"name": "x", "input": "y"}}],
        },
        {"role": "assistant", "function_call": "look"},
        {"role": "assistant", "content": None, "refusal": "No.", "audio": {"id": "audio_1"}},
    ]
)


@st.composite
def groups(draw):
    """An assistant message with calls, and the results of all of them in any order."""
    message = draw(calling)
    called = [found["id"] for found in message["tool_calls"]]
    return [message, *(result(call_id, draw(texts)) for call_id in draw(st.permutations(called)))]


@st.composite
def damaged_groups(draw):
    """A group that lost a result, or has one twice, or a foreign message between."""
    group = draw(groups())
    if draw(st.booleans()):
        del group[draw(st.integers(1, len(group) - 1))]
    if draw(st.booleans()):
        group.insert(draw(st.integers(1, len(group))), draw(st.one_of(results, systems, st.just(group[-1]))))
    return group


def pieces(*kinds):
    return st.lists(st.one_of(*kinds), max_size=6).map(lambda found: [message for piece in found for message in piece])


def single(kind):
    return kind.map(lambda message: [message])


well_formed = pieces(single(users), single(answers), groups())
"""Lists of messages that every provider takes: each call has its result."""

histories = pieces(
    single(users),
    st.lists(users, min_size=2, max_size=3),
    single(answers),
    groups(),
    damaged_groups(),
    single(systems),
    single(results),
    st.tuples(legacy_calls, legacy_results).map(list),
    single(legacy_calls),
    single(strange),
)
"""Lists of messages in any shape: orphan results, missing ones, abandoned groups, reused ids, odd values."""


def exact_bytes(message):
    return json.dumps(message).encode()


def path_of(messages, tenant=TENANT, tokens=None):
    """The path of decoded messages. A message costs `tokens`, else a figure that follows from its bytes."""
    readings = [read_message(message, exact_bytes(message)) for message in messages]
    return build_path(tenant, [reading.message(tokens or 4 + reading.size // 4) for reading in readings])


def prefix_of(path, last):
    """The path's first `last` messages, without reading them again."""
    return Path(path.messages[:last], path.digests[: last + 1], path.nodes[: last + 1])


@st.composite
def respelled(draw, messages):
    """The same messages as another client spells them: nothing that counts is changed (R3.2)."""
    spelled = [json.loads(exact_bytes(message)) for message in messages]  # copies: one may stand in two places
    for message in spelled:
        if message.get("role") not in ("system", "developer", "user", "tool", "assistant"):
            continue  # hashed whole
        if message["role"] in ("system", "developer"):
            message["role"] = draw(st.sampled_from(["system", "developer"]))
        message["vendor_field"] = draw(values)
        if isinstance(message.get("content"), str):
            message["content"] = draw(_respelled_text(message["content"]))
        if message["role"] == "assistant":
            message.update(draw(st.sampled_from([{}, {"reasoning": "other"}, {"annotations": [], "parsed": {"a": 1}}])))
    return _renamed(spelled, draw(st.sampled_from(["", "x"])))


@st.composite
def _respelled_text(draw, text):
    if "\r\r\n" in text:  # LF for its CRLF would leave another CRLF
        return text
    text = text.replace("\r\n", "\n")
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    parts = [{"type": "text", "text": piece, "cache_control": {"type": "ephemeral"}} for piece in pieces]
    return draw(st.sampled_from([text, text.replace("\n", "\r\n"), parts]))


def _renamed(messages, suffix):
    """Every tool call id with a suffix, wherever it stands: consistently renamed. An empty id is none, and stays."""
    for message in messages:
        calls = message.get("tool_calls")
        for found in calls if isinstance(calls, list) else ():
            if isinstance(found, dict) and isinstance(found.get("id"), str) and found["id"]:
                found["id"] += suffix
        if isinstance(message.get("tool_call_id"), str) and message["tool_call_id"]:
            message["tool_call_id"] += suffix
    return messages
