"""Law: whatever way a client spells its JSON, its bytes can be rebuilt, and a change touches nothing else (R2.2)."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import spans
from gateway.wire import decode_message, dump_frame, frame_of, load_frame, read_chat_request, rebuild, splice

white = st.text(" \t\n\r", max_size=2)
numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(["-0", "0.0", "1.0", "1E5", "1e-7", "1.50", "1e999", "NaN", "-Infinity", "9007199254740993"]),
)


@st.composite
def strings(draw, alphabet):
    """A JSON string, each character as itself or escaped, lone surrogates too."""
    out = []
    for char in draw(st.text(alphabet, max_size=6)):
        code = ord(char)
        must = code < 0x20 or char in '"\\' or 0xD800 <= code < 0xE000
        if must or (code < 0x10000 and draw(st.booleans())):
            out.append(f"\\u{code:04x}" if draw(st.booleans()) else f"\\u{code:04X}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


any_strings = strings(st.characters(codec=None, categories=None))


@st.composite
def arrays(draw, items, max_size=3):
    parts = draw(st.lists(items, max_size=max_size))
    spaced = [draw(white) + part + draw(white) for part in parts]
    return "[" + (",".join(spaced) or draw(white)) + "]"


@st.composite
def objects(draw, values, keys=None, more=()):
    """An object, duplicate names not excluded; `more` members stand at any place."""
    names = any_strings if keys is None else keys
    members = [*draw(st.lists(st.tuples(names, values), max_size=3)), *more]
    members = draw(st.permutations(members))
    spaced = [f"{draw(white)}{name}{draw(white)}:{draw(white)}{value}{draw(white)}" for name, value in members]
    return "{" + (",".join(spaced) or draw(white)) + "}"


scalars = st.one_of(st.sampled_from(["null", "true", "false"]), numbers, any_strings)
values = st.recursive(scalars, lambda inner: arrays(inner) | objects(inner), max_leaves=6)
messages_arrays = arrays(objects(values), max_size=4)
other_names = st.sampled_from(['"model"', '"stream"', '"n"', '"x"', '"\\u0078"', '"messages "'])


@st.composite
def bodies(draw):
    array = draw(messages_arrays)
    name = draw(st.sampled_from(['"messages"', '"m\\u0065ssages"']))
    text = draw(objects(values, keys=other_names, more=[(name, array)]))
    bom = draw(st.sampled_from(["", "\ufeff"]))
    return (bom + draw(white) + text + draw(white)).encode()


def same(left, right):
    """Equal values of equal types; NaN is itself."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def load(text):
    return json.loads(text.decode("utf-8-sig"))


@given(bodies())
def test_every_spelling_is_read_as_the_standard_reader_reads_it(body):
    request = read_chat_request(body)
    assert request is not None
    value = load(body)
    assert same([decode_message(raw) for raw in request.messages], value["messages"])
    assert dict.fromkeys(request.members, True) == dict.fromkeys(value, True)
    assert all(same(load(request.raw(name)), value[name]) for name in value)


@given(bodies())
def test_frame_and_messages_are_the_body(body):
    request = read_chat_request(body)
    frame = load_frame(dump_frame(frame_of(request)))
    assert rebuild(frame, request.messages) == body  # R4.1
    assert frame == frame_of(request)
    assert splice(request) == body
    assert splice(request, list(request.messages)) == body


@given(bodies(), st.lists(objects(scalars).map(str.encode), max_size=3))
def test_other_messages_leave_all_members_and_all_bytes_around(body, messages):
    request = read_chat_request(body)
    changed = splice(request, messages)
    again = read_chat_request(changed)
    assert list(again.messages) == messages
    assert changed[: request.array[0]] == body[: request.array[0]]
    assert changed.endswith(body[request.array[1] :])
    assert [again.raw(name) for name in request.members if name != "messages"] == [
        request.raw(name) for name in request.members if name != "messages"
    ]


@given(
    bodies(),
    st.dictionaries(
        st.sampled_from(["model", "stream", "n", "x", "new", 'odd "name"']),
        st.none() | values.map(str.encode),
    ),
    st.none() | st.lists(objects(scalars).map(str.encode), max_size=2),
)
def test_only_the_members_that_change_change(body, changes, messages):
    request = read_chat_request(body)
    again = read_chat_request(splice(request, messages, changes))
    assert again is not None
    assert list(again.messages) == (list(request.messages) if messages is None else messages)
    for name in {*request.members, *changes} - {"messages"}:
        expected = changes[name] if name in changes else request.raw(name)
        assert again.raw(name) == expected
    kept = [name for name in request.members if changes.get(name, b"") is not None]
    assert [name for name in again.members if name in kept] == kept


@given(values)
@settings(max_examples=200)
def test_the_slow_reader_and_the_standard_reader_agree(text):
    assert same(spans.decode(text.encode()), json.loads(text))
    assert same(decode_message(text.encode()), json.loads(text))


@given(st.text('{}[]",:0-1.eE+ntrufals \\\n', max_size=12))
@settings(max_examples=500)
def test_readers_refuse_the_same_texts(text):
    data = text.encode()
    try:
        expected = json.loads(text)
    except ValueError:
        assert decode_message(data) is None
    else:
        assert same(decode_message(data), expected)
        assert same(spans.decode(data), expected)
