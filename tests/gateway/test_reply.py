"""What an answer says is the same however a provider cuts it (R3.7, R11.5)."""

import pytest

from gateway.reply import ReplyFold, Usage, merged_name, usage_numbers


def chunk(*deltas, **more):
    return {"choices": [{"index": 0, "delta": delta} for delta in deltas], **more}


def fold(*chunks):
    replies = ReplyFold()
    for one in chunks:
        replies.add_chunk(one)
    return replies.result()


def message(*deltas):
    (choice,) = fold(*map(chunk, deltas)).choices
    return choice.message


def calls(*deltas):
    return message(*({"tool_calls": [delta] if isinstance(delta, dict) else delta} for delta in deltas))["tool_calls"]


def call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_an_ordinary_stream():
    reply = fold(
        {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        chunk({"content": "Hel"}, id="c1"),
        chunk({"content": "lo"}),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    )
    assert (reply.id, reply.model, reply.error) == ("c1", "m", None)
    assert reply.choices[0].message == {"role": "assistant", "content": "Hello"}
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage == {"prompt_tokens": 5, "completion_tokens": 2}


def test_a_json_answer_keeps_its_message_as_it_is():
    said = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call("a", "f", "{}")], "x": [1]}
    replies = ReplyFold()
    replies.add_json(
        {
            "id": "c",
            "model": "m",
            "choices": [
                {"index": 1, "message": {"role": "assistant", "content": "two"}, "finish_reason": "length"},
                {"index": 0, "message": said, "finish_reason": "tool_calls"},
            ],
            "usage": {"prompt_tokens": 1},
        }
    )
    reply = replies.result()
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].message == said
    assert [choice.finish_reason for choice in reply.choices] == ["tool_calls", "length"]


def test_choices_that_alternate_stay_apart():
    reply = fold(
        {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]},
        {"choices": [{"index": 0, "delta": {"content": "A"}}]},
        {"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}]},
    )
    assert [choice.message["content"] for choice in reply.choices] == ["aA", "bB"]
    assert [choice.finish_reason for choice in reply.choices] == [None, "length"]


def test_a_choice_without_index_is_taken_by_its_place():
    assert fold({"choices": [{"delta": {"content": "a"}}]}).choices[0].index == 0


def test_null_first_then_text_loses_nothing():
    assert message({"content": None}, {"content": "a"}, {"content": None}, {"content": "b"})["content"] == "ab"


def test_vendor_strings_are_joined_and_stated_values_replaced():
    got = message(
        {"role": "assistant", "reasoning_content": "th", "refusal": "n"},
        {"role": "assistant", "reasoning_content": "ink", "refusal": "o", "x_vendor": "1"},
        {"x_vendor": "2", "x_number": 1},
        {"x_number": 2},
    )
    assert got == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "think",
        "refusal": "no",
        "x_vendor": "12",
        "x_number": 2,
    }


def test_content_parts_follow_text_and_adjacent_texts_join():
    got = message(
        {"content": "a"},
        {"content": [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {"content": "c"},
        {"content": [{"type": "text", "text": "d"}]},
    )
    assert got["content"] == [
        {"type": "text", "text": "ab"},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "text", "text": "cd"},
    ]


def test_reasoning_details_are_joined_by_type_and_index_and_keep_their_signature():
    got = message(
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "S1"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "xx"}]},
    )
    assert got["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "S1"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xx"},
    ]


def test_thinking_blocks_are_joined_until_they_are_signed():
    got = message(
        {"thinking_blocks": [{"type": "thinking", "thinking": "a"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "b", "signature": "S"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "c"}]},
    )
    assert got["thinking_blocks"] == [
        {"type": "thinking", "thinking": "ab", "signature": "S"},
        {"type": "thinking", "thinking": "c"},
    ]


def test_audio_is_joined():
    got = message(
        {"audio": {"id": "a", "data": "QU", "transcript": "he"}}, {"audio": {"data": "JD", "transcript": "y"}}
    )
    assert got["audio"] == {"id": "a", "data": "QUJD", "transcript": "hey"}


def test_a_legacy_function_call_is_joined():
    got = message(
        {"function_call": None},
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ":1}"}},
    )
    assert got["function_call"] == {"name": "f", "arguments": '{"a":1}'}


# Each is one call f({"a":1}) with id "a", or that and a second one.
ONE = [call("a", "f", '{"a":1}')]
TWO = [*ONE, call("b", "g", "{}")]


def piece(index=None, call_id=None, **function):
    delta = {} if index is None else {"index": index}
    return delta | ({} if call_id is None else {"id": call_id}) | {"function": function}


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param([piece(0, "a", name="f", arguments=""), piece(0, arguments='{"a":'), piece(0, arguments="1}")], ONE,
                     id="as OpenAI does"),
        pytest.param([piece(0, "a", name="f", arguments='{"a":1}'), piece(1, "b", name="g", arguments="{}")], TWO,
                     id="two calls"),
        pytest.param([piece(0, "a", name="f"), piece(1, "b", name="g"), piece(0, arguments='{"a":1}'),
                      piece(1, arguments="{}")], TWO, id="interleaved"),
        pytest.param([piece(1, "b", name="g", arguments="{}"), piece(0, "a", name="f", arguments='{"a":1}')], TWO,
                     id="second first"),
        pytest.param([piece(0, "a", name="f", arguments='{"a":1}'), piece(0, "b", name="g", arguments="{}")], TWO,
                     id="all index 0, whole"),
        pytest.param([piece(None, "a", name="f", arguments='{"a":'), piece(None, arguments="1}"),
                      piece(None, "b", name="g", arguments="{}")], TWO, id="no index"),
        pytest.param([piece(None, "a", name="f", arguments='{"a":1}'), piece(None, "b", name="g"),
                      piece(None, "b", arguments="{}")], TWO, id="no index, id repeated"),
        pytest.param([piece(0, "a", name="f", arguments='{"a":'), piece(0, "a", name="f", arguments="1}")], ONE,
                     id="name and id repeated"),
        pytest.param([piece(0, "a", name="f", arguments='{"a":'), piece(0, "z", arguments="1}")], ONE,
                     id="a new id with every delta"),
        pytest.param([piece(None, "a", name="f", arguments='{"a":'), piece(None, "z", arguments="1}")], ONE,
                     id="a new id with every delta, no index"),
        pytest.param([piece(None, "a", name="f", arguments='{"a":{}'), piece(None, name="f", arguments="}")],
                     [call("a", "f", '{"a":{}}')], id="name repeated, no index"),
        pytest.param([piece(0, "a", arguments='{"a":'), piece(0, name="f", arguments="1}")], ONE, id="name late"),
        pytest.param([piece(0, name="f", arguments='{"a":1}'), piece(0, "a")], ONE, id="id late"),
        pytest.param([piece(0, "a", name="f", arguments={"a": 1})], ONE, id="arguments as an object"),
        pytest.param([piece(0, "a", name="f", arguments=None), {"index": 0, "id": None, "function": None},
                      piece(0, "", name="", arguments='{"a":1}')], ONE, id="nulls and empty strings"),
        pytest.param([[piece(0, "a", name="f", arguments='{"a":1}'), piece(1, "b", name="g", arguments="{}")]], TWO,
                     id="both in one delta"),
        pytest.param([{"index": 0, "id": "a", "type": "", "function": {"name": "f", "arguments": '{"a":1}'}},
                      {"index": 0, "type": None}], ONE, id="type empty"),
    ],
)  # fmt: skip
def test_calls_are_put_together_however_they_are_cut(deltas, expected):
    assert calls(*deltas) == expected


def test_what_cannot_be_written_as_text_is_left_out():
    deep = {}
    for _ in range(5_000):
        deep = {"a": deep}
    assert calls(piece(0, "a", name="f", arguments=deep)) == [call("a", "f", "")]


def test_a_vendor_member_of_a_function_is_kept():
    (got,) = calls({"index": 0, "id": "a", "function": {"name": "f", "strict": True}})
    assert got["function"] == {"name": "f", "arguments": "", "strict": True}


def test_whole_calls_without_index_and_id_are_apart():
    got = calls(piece(name="f", arguments='{"a":1}'), piece(name="f", arguments='{"a":2}'))
    assert got == [call("", "f", '{"a":1}'), call("", "f", '{"a":2}')]


def test_a_call_keeps_vendor_members_and_custom_input():
    got = calls(
        {"index": 0, "id": "a", "type": "custom", "custom": {"name": "c", "input": "x"}},
        {"index": 0, "custom": {"input": "y"}, "extra_content": {"google": {"thought_signature": "S"}}},
    )
    assert got == [
        {
            "id": "a",
            "type": "custom",
            "custom": {"name": "c", "input": "xy"},
            "extra_content": {"google": {"thought_signature": "S"}},
        }
    ]


@pytest.mark.parametrize(
    ("known", "piece", "name"),
    [
        ("", "f", "f"),
        ("f", "f", "f"),
        ("get", "get_weather", "get_weather"),
        ("get_", "weather", "get_weather"),
        ("f", "", "f"),
    ],
)
def test_a_name_may_be_repeated_grow_or_come_in_pieces(known, piece, name):
    assert merged_name(known, piece) == name


def test_a_whole_message_inside_a_stream_counts_where_there_is_no_delta():
    whole = {"role": "assistant", "content": "all", "annotations": [{"type": "text", "text": "a"}]}
    given = {"choices": [{"index": 0, "message": whole, "finish_reason": "stop"}]}
    reply = fold(given, chunk({"annotations": [{"type": "text", "text": "b"}], "content": "!"}))
    assert reply.choices[0].message == whole | {"content": "all!", "annotations": [{"type": "text", "text": "ab"}]}
    assert whole["annotations"] == [{"type": "text", "text": "a"}], "what was given is not changed"


def test_a_result_can_be_taken_at_any_time():
    replies = ReplyFold()
    replies.add_chunk(chunk({"content": "a", "tool_calls": [piece(0, "a", name="f", arguments="{")]}))
    first = replies.result()
    replies.add_chunk(chunk({"content": "b", "tool_calls": [piece(0, arguments="}")]}))
    assert first.choices[0].message["content"] == "a"
    assert replies.result().choices[0].message["content"] == "ab"
    assert replies.result() == replies.result()


@pytest.mark.parametrize(
    ("obj", "error"),
    [
        ({"error": {"message": "no", "code": 1}}, {"message": "no", "code": 1}),
        ({"error": "no"}, {"message": "no"}),
        ({"object": "error", "message": "no"}, {"object": "error", "message": "no"}),
        ({"error": None, "choices": []}, None),
    ],
)
def test_errors_inside_a_stream_are_seen(obj, error):
    assert fold(chunk({"content": "a"}), obj).error == error


def test_usage_beside_choices_in_choices_and_in_parts():
    assert fold(chunk({"content": "a"}, usage={"prompt_tokens": 1})).usage == {"prompt_tokens": 1}
    assert fold({"choices": [{"delta": {}, "usage": {"prompt_tokens": 2}}]}).usage == {"prompt_tokens": 2}
    assert fold({"x_groq": {"usage": {"prompt_tokens": 3}}}).usage == {"prompt_tokens": 3}
    assert fold({"usage": {"input_tokens": 3, "output_tokens": 1}}, {"usage": {"input_tokens": None, "output_tokens": 9}}).usage == {
        "input_tokens": 3,
        "output_tokens": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 64},
                "completion_tokens_details": {"reasoning_tokens": 12},
            },
            Usage(100, 20, 64, 12),
            id="OpenAI",
        ),
        pytest.param(
            {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 7},
            Usage(97, 5, 80, 0),
            id="Anthropic: cache beside",
        ),
        pytest.param(
            {"prompt_tokens": 90, "completion_tokens": 5, "cache_read_input_tokens": 80},
            Usage(90, 5, 80, 0),
            id="a relay: cache included",
        ),
        pytest.param(
            {"prompt_tokens": 10, "completion_tokens": 5, "cache_read_input_tokens": 80},
            Usage(90, 5, 80, 0),
            id="not included",
        ),
        pytest.param(
            {"input_tokens": 90, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 80}},
            Usage(90, 5, 80, 0),
            id="Responses",
        ),
        pytest.param(
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 60,
                "prompt_cache_miss_tokens": 40,
            },
            Usage(100, 5, 60, 0),
            id="DeepSeek",
        ),
        pytest.param(
            {"prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40}, Usage(100, None, 60, 0), id="hits only"
        ),
        pytest.param({"prompt_tokens": "12", "completion_tokens": " 3 "}, Usage(12, 3, 0, 0), id="strings"),
        pytest.param(
            {"prompt_tokens": 12.0, "completion_tokens": None, "total_tokens": 15}, Usage(12, 3, 0, 0), id="total"
        ),
        pytest.param({"prompt_tokens": -1, "completion_tokens": True}, Usage(None, None, 0, 0), id="nonsense"),
        pytest.param({"prompt_tokens": float("nan"), "prompt_tokens_details": None}, Usage(None, None, 0, 0), id="NaN"),
        pytest.param(
            {"prompt_tokens": 1, "cached_tokens": 1, "reasoning_tokens": "2"}, Usage(1, None, 1, 2), id="flat"
        ),
        pytest.param(None, Usage(None, None, 0, 0), id="null"),
        pytest.param([1], Usage(None, None, 0, 0), id="a list"),
    ],
)
def test_usage_of_every_provider_gives_the_same_numbers(usage, expected):
    assert usage_numbers(usage) == expected  # R5.6
