"""The simulated provider's pure parts: what it refuses, counts, answers and summarises (R17.1)."""

import re

import pytest

from gateway.simulator.dialects import DIALECTS, OPENAI, Excess, Problem
from gateway.simulator.encodings import decoded
from gateway.simulator.faults import parse_faults
from gateway.simulator.jsonio import decode_json, encode_json
from gateway.simulator.received import ReceivedLog
from gateway.simulator.replies import Choice, answer, limited, pieces, request_seed
from gateway.simulator.schemas import minimal_instance
from gateway.simulator.script import parse_script, script_of
from gateway.simulator.settings import SimulatorSettings
from gateway.simulator.strict import check_body
from gateway.simulator.summariser import (
    parse_summarisers,
)
from gateway.simulator.tokens import PrefixCache, TokenCounter, input_tokens

USER = {"role": "user", "content": "hello"}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "42"}


def calling(*ids, content=None):
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def request(*messages, **members):
    return {"model": "m", "messages": list(messages), **members}


REFUSED = {
    "no object": [],
    "no model": {"messages": [USER]},
    "no messages": {"model": "m"},
    "empty messages": request(),
    "empty tools": request(USER, tools=[]),
    "unknown role": request({"role": "robot", "content": "x"}),
    "result without a call": request(USER, RESULT),
    "result of another call": request(USER, calling("b"), RESULT),
    "call without a result": request(USER, calling("a", "b"), RESULT, USER),
    "call at the end": request(USER, calling("a")),
    "duplicate result": request(USER, calling("a"), RESULT, RESULT),
    "result after another message": request(USER, calling("a"), RESULT, USER, RESULT),
    "assistant with nothing": request(USER, {"role": "assistant", "content": None}),
    "user without content": request({"role": "user", "content": None}),
    "no parts": request({"role": "user", "content": []}),
    "unknown part": request({"role": "user", "content": [{"type": "hologram"}]}),
    "text part without text": request({"role": "user", "content": [{"type": "text"}]}),
    "image part without address": request({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
    "empty calls": request(USER, {"role": "assistant", "content": "x", "tool_calls": []}),
    "arguments that are no text": request(
        USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]}, RESULT
    ),
    "result without id": request(USER, calling("a"), {"role": "tool", "content": "x"}),
    "no output": request(USER, max_tokens=0),
    "usage of no stream": request(USER, stream_options={"include_usage": True}),
}
ACCEPTED = {
    "plain": request(USER),
    "calls in parallel, results in any order": request(
        USER, calling("a", "b"), {"role": "tool", "tool_call_id": "b", "content": ""}, RESULT
    ),
    "an id used again in a later step": request(USER, calling("a"), RESULT, calling("a"), RESULT),
    "empty text of an assistant": request(USER, {"role": "assistant", "content": ""}, USER),
    "instructions in between": request({"role": "developer", "content": "x"}, USER, {"role": "system", "content": "y"}),
    "prefill": request(USER, {"role": "assistant", "content": "Sure:"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    """A strict provider refuses malformed requests with 400. R17.1"""
    problem = check_body(REFUSED[name], OPENAI, alternate=False)
    assert problem is not None
    assert problem.status == 400


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name):
    """What real providers take is taken. R17.1"""
    assert check_body(ACCEPTED[name], OPENAI, alternate=False) is None


def test_alternation_is_only_asked_for_with_the_switch():
    """R17.1"""
    body = request(USER, USER)
    assert check_body(body, OPENAI, alternate=False) is None
    assert "alternate" in check_body(body, OPENAI, alternate=True).message


@pytest.mark.parametrize(
    ("messages", "good"),
    [
        (
            [
                {"role": "system", "content": "s"},
                USER,
                calling("a"),
                RESULT,
                {"role": "assistant", "content": "x"},
                USER,
            ],
            1,
        ),
        ([USER, calling("a"), RESULT, calling("a"), RESULT, USER], 1),
        ([{"role": "assistant", "content": "x"}, USER], 0),
        ([USER, {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}], 0),
        ([USER, {"role": "system", "content": "s"}, {"role": "assistant", "content": "x"}], 0),
    ],
)
def test_results_belong_to_the_assistants_step(messages, good):
    """R17.1"""
    problem = check_body(request(*messages), DIALECTS["llamacpp"], alternate=True)
    assert (problem is None) == bool(good)
    assert good or problem.status == 500


def test_a_refused_member_is_refused_only_when_present():
    """A provider that does not know a member says so (R2.10 c, R8.2)."""
    refuse = ("max_tokens",)
    assert check_body(request(USER), OPENAI, alternate=False, refuse=refuse) is None
    assert (
        check_body(request(USER, max_tokens=5), OPENAI, alternate=False, refuse=refuse).code == "unsupported_parameter"
    )


# Real answers, figures replaced.
REAL_OVERFLOWS = {
    "openai": "This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens. "
    "Please reduce the length of the messages.",
    "vllm": "This model's maximum context length is 8192 tokens. However, your request has 8227 input tokens. "
    "Please reduce the length of the input messages. (parameter=input_tokens, value=8227)",
    "llamacpp": "request (8227 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "anthropic": "prompt is too long: 8227 tokens > 8192 maximum",
    "gemini": "The input token count (8227) exceeds the maximum number of tokens allowed (8192).",
    "openrouter": "This endpoint's maximum context length is 8192 tokens. However, you requested about 8227 tokens "
    "(8227 of text input). Please reduce the length of either one, or use the context-compression plugin to compress "
    "your prompt automatically.",
}


@pytest.mark.parametrize("name", DIALECTS)
def test_overflow_is_worded_as_the_real_provider_words_it(name):
    """Each dialect states its limit in the real provider's words (R10.1, R17.1)."""
    dialect = DIALECTS[name]
    excess = Excess(8227, 0, None, 8192)
    assert dialect.exceeds(excess)
    assert dialect.overflow(excess).message == REAL_OVERFLOWS[name]


def test_error_bodies_have_the_dialects_form():
    """R17.1"""
    problem = Problem(400, "no", extra={"n_ctx": 5})
    assert DIALECTS["openai"].envelope(problem)["error"]["type"] == "invalid_request_error"
    assert DIALECTS["vllm"].envelope(problem)["error"] == {
        "message": "no",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    assert DIALECTS["llamacpp"].envelope(problem)["error"]["n_ctx"] == 5
    assert DIALECTS["anthropic"].envelope(problem)["type"] == "error"
    assert DIALECTS["gemini"].envelope(problem)[0]["error"]["status"] == "INVALID_ARGUMENT"
    assert DIALECTS["openrouter"].envelope(problem)["error"]["metadata"] == {"provider_name": None}


def test_only_some_dialects_count_the_output_against_the_window():
    """R10.1"""
    excess = Excess(5000, 0, 4000, 8192)
    assert {name for name, dialect in DIALECTS.items() if dialect.exceeds(excess)} == {"vllm", "openrouter"}
    assert "(parameter=input_tokens, max_tokens, value=(5000, 4000))" in DIALECTS["vllm"].overflow(excess).message


def test_input_counts_text_names_arguments_tools_and_images():
    """R5.3"""
    counter = TokenCounter()
    plain = input_tokens(request(USER), counter, 1).total
    assert plain == 1 + 4
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
    assert input_tokens(request(image), counter, 1).total == 765 + 4
    assert input_tokens(request(USER, tools=[{"type": "function"}]), counter, 1).tools > 0
    assert input_tokens(request(USER, calling("a"), RESULT), counter, 1).total > plain + 8
    assert input_tokens(request(USER), counter, 2).total == 10


def test_lone_surrogates_are_counted_and_written():
    """R2.12"""
    body = decode_json(b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800 [[say:\\ud800]]"}]}')
    assert input_tokens(body, TokenCounter(), 1).total > 4
    assert encode_json(answer(body, request_seed(body), 100).choices[0].text) == b'"\\ud800"'


def test_counts_stay_right_when_old_ones_are_forgotten():
    """Memory is bounded (R16.2)."""
    counter = TokenCounter(entries=2)
    texts = ["one", "two words", "three whole words", "one"]
    assert counter.count(texts) == [1, 2, 3, 1]
    assert counter.count(texts) == [1, 2, 3, 1]
    assert len(counter._counts) == 2


def test_cached_tokens_are_those_of_the_longest_known_prefix():
    """Usage counts the shared prefix, in whole steps of 128 (R17.1)."""
    cache = PrefixCache()
    first, second, other = (b"a", 200), (b"b", 200), (b"c", 300)
    assert cache.cached_tokens("s", [first, second]) == 0
    assert cache.cached_tokens("s", [first, second, other]) == 384
    assert cache.cached_tokens("s", [first, other]) == 128
    assert cache.cached_tokens("another credential", [first, second]) == 0
    assert cache.cached_tokens("s", [first, second]) == 384
    assert PrefixCache(entries=1).cached_tokens("s", [first]) == 0


def test_directives_are_read_in_order_and_removed():
    """Tool calls on request (R17.1)."""
    script = parse_script('please [[call:f {"a": [["]]"]]}]] and [[call:g]] now [[words:3]] [[unclosed:')
    assert script.calls == (("f", '{"a": [["]]"]]}'), ("g", "{}"))
    assert script.get("words") == "3"
    assert script.rest == "please  and  now  [[unclosed:"


def test_results_carry_the_next_step_and_hide_the_users_directives():
    """The agent's work does not depend on steps that a gateway may have compacted."""
    messages = [{"role": "user", "content": "[[call:f]]"}, calling("a"), {**RESULT, "content": "[[call:g]]"}]
    assert script_of(messages).calls == (("g", "{}"),)
    assert script_of([*messages[:2], RESULT]).calls == ()


TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}}}
    for n in ("f", "g")
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "members", "names", "finish"),
    [
        ("[[call:f]] [[call:g]]", {"tools": TOOLS}, ["f", "g"], "tool_calls"),
        ("[[call:f]] [[call:g]]", {"tools": TOOLS, "parallel_tool_calls": False}, ["f"], "tool_calls"),
        ("[[call:f]]", {"tools": TOOLS, "tool_choice": "none"}, [], "stop"),
        ("hello", {"tools": TOOLS, "tool_choice": "required"}, ["f"], "tool_calls"),
        ("hello", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, ["g"], "stop"),
        ("[[call:h]]", {"tools": TOOLS}, [], "stop"),
        ("[[call:f]]", {}, [], "stop"),
    ],
)
def test_tools_are_called_as_the_request_allows(text, members, names, finish):
    """R17.1"""
    body = request({"role": "user", "content": text}, **members)
    choice = answer(body, request_seed(body), 1000).choices[0]
    assert [call.name for call in choice.calls] == names
    assert choice.finish == finish
    assert (choice.text is None) == bool(names)


def test_answers_are_functions_of_the_request_and_not_of_its_delivery():
    """`id` and `created` are functions of the request (R17.1)."""
    body = request(USER, n=2)
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    reply = answer(body, request_seed(body), 1000)
    assert answer(streamed, request_seed(streamed), 1000) == reply
    assert reply.choices[0] != reply.choices[1]
    other = request(USER, n=2, temperature=0)
    assert answer(other, request_seed(other), 1000).id != reply.id
    assert re.search(r"ref-[0-9a-f]{12}", reply.choices[0].text)
    assert "hello" in reply.choices[0].text


def test_directives_shape_the_answer():
    """R17.1"""

    def said(text, **members):
        body = request({"role": "user", "content": text}, **members)
        return answer(body, request_seed(body), 1000).choices[0]

    assert said("[[say:so]]").text == "so"
    assert len(said("[[words:50]]").text.split()) == 50
    assert said("[[finish:length]]").finish == "length"
    assert said("[[reasoning:hm]] hi").reasoning == "hm"
    assert said("[[say:one two]]", stop=[" two"]).text == "one"
    cut = said("[[words:50]]", max_tokens=5)
    assert (cut.finish, cut.tokens) == ("length", 5)
    assert set(decode_json(said("x", response_format={"type": "json_object"}).text.encode())) == {"answer", "ref"}


def test_recall_tells_whether_the_model_can_see_a_text():
    """Shows what survives a compaction; the question itself does not count."""
    asking = {"role": "user", "content": "[[recall:ref-12]]"}
    seen = request({"role": "user", "content": "note ref-12"}, asking)
    joined = request({"role": "user", "content": "record: ref-12\n\n[[recall:ref-12]]"})
    unseen = request(USER, asking)
    texts = [answer(body, request_seed(body), 100).choices[0].text for body in (seen, joined, unseen)]
    assert texts == ["recall: ref-12 found."] * 2 + ["recall: ref-12 not found."]


def test_a_limit_cuts_text_and_then_calls():
    """R17.1"""
    body = request({"role": "user", "content": '[[say:one two three]] [[call:f {"x": 12345678}]]'}, tools=TOOLS)
    whole = answer(body, request_seed(body), 1000).choices[0]
    cut = limited(whole, 5)
    assert cut.text == whole.text
    assert whole.calls[0].arguments.startswith(cut.calls[0].arguments)
    assert cut.calls[0].arguments != whole.calls[0].arguments
    assert limited(whole, 2).calls == ()
    assert limited(Choice("one"), 1).finish == "stop"


@pytest.mark.parametrize(
    "text", ["", "a b", "  lead", "trail \n", "averyveryverylongword", "\n\n", "日本語のテキストは長い"]
)
def test_pieces_join_to_the_text(text):
    """A stream says the same as JSON."""
    assert "".join(pieces(text)) == text


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, {"a": "xxxx"}),
        ({"enum": ["u", "v"]}, "u"),
        ({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}], "$defs": {"n": {}}}, None),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"type": ["string", "null"]}, None),
        ({"type": "integer", "minimum": 3}, 3),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"const": 7}}}, 7),
        ({"allOf": [{"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}]}, {"a": 0}),
    ],
)
def test_the_minimal_instance_fits_the_schema(schema, value):
    """R17.1"""
    assert minimal_instance(schema) == value


def test_a_schema_that_contains_itself_ends():
    """R16.2"""
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert minimal_instance(node)


def test_faults_are_parsed_and_unknown_ones_refused():
    """R17.1"""
    faults = parse_faults("429, cut:3, slow:250, crlf")
    assert (faults.status, faults.cut, faults.slow, faults.newline) == (429, 3, 0.25, b"\r\n")
    assert parse_faults("hang").hang == -1
    for text in ("nonsense", "cut", "200", "slow:x", "crlf:2"):
        with pytest.raises(ValueError, match="unknown fault"):
            parse_faults(text)


def test_body_that_is_not_in_its_encoding_is_an_error():
    """R2.8"""
    for encoding in ("gzip", "deflate", "br", "zstd", "rot13"):
        with pytest.raises(ValueError, match="content-encoding"):
            decoded(b"\x00plain", encoding)


def test_received_requests_are_bounded_and_numbers_go_on():
    """R17.1"""
    log = ReceivedLog(entries=2, size=10)
    for body in (b"1", b"2", b"3"):
        log.add("POST", "/x", {}, body)
    assert [entry.n for entry in log.after(0)] == [2, 3]
    log.add("POST", "/x", {}, b"123456789ab")
    assert [entry.body for entry in log.after(0)] == [b"123456789ab"]
    log.clear()
    assert log.add("POST", "/x", {}, b"").n == 5
    assert log.after(4, limit=1)[0].n == 5


def test_bad_settings_are_errors():
    """R15.5"""
    for bad in ({"dialect": "klingon"}, {"window": 0}, {"fault_rate": 2.0}):
        with pytest.raises(ValueError, match=r"."):
            SimulatorSettings(**bad)
    with pytest.raises(ValueError, match="unknown"):
        parse_summarisers("honest,best")


# -- summaries
