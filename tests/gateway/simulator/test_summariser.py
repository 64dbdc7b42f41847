"""The model as summariser (R8.1-R8.4, R17.1)."""

import re

import pytest

from compaction.validation import SummaryAnswer, problems
from gateway.simulator.summariser import (
    HEADINGS,
    SUMMARISERS,
    SummaryTask,
    is_summary_request,
    summarise,
    summary_task,
)
from gateway.simulator.tokens import TokenCounter

USER = {"role": "user", "content": "hello"}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "42"}


def calling(*ids, content=None):
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def request(*messages, **members):
    return {"model": "m", "messages": list(messages), **members}


INSTRUCTION = {"role": "system", "content": "Write these sections: " + ", ".join(HEADINGS)}
TURNS = "\n".join(
    f"[user]\nPlease check flight HAT{n:03d} and always keep ref-{n:012x} in mind.\n[assistant]\nChecked /srv/data/{n}.json."
    for n in range(100, 160)
)
SUMMARY = request(INSTRUCTION, {"role": "user", "content": f"```\n{TURNS}\n```"}, max_tokens=4096)


def task(limit=4096):
    tokens = TokenCounter().count([TURNS])[0]
    return SummaryTask(TURNS, tokens, limit, "seed")


def sections(text):
    return [line for line in text.splitlines() if line.startswith("## ")]


def test_a_summary_request_is_recognised_by_its_instruction():
    """R8.2"""
    assert is_summary_request(SUMMARY)
    assert summary_task(SUMMARY, 10, b"x").transcript.endswith("```")
    assert not is_summary_request({**SUMMARY, "stream": True})
    assert not is_summary_request({**SUMMARY, "tools": [{"type": "function", "function": {"name": "look"}}]})
    assert not is_summary_request(request(*SUMMARY["messages"]))
    shown = {"role": "system", "content": "\n".join(HEADINGS)}
    assert not is_summary_request(request({"role": "system", "content": "Be kind."}, shown, USER, max_tokens=9))


@pytest.mark.parametrize("limit", [120, 400, 4096])
def test_the_honest_summary_has_five_filled_sections_and_is_short(limit):
    """R8.1, R8.3: sections in order, each with real text, well below its source and the limit."""
    choice = summarise("honest", task(limit)).choice
    assert sections(choice.text) == list(HEADINGS)
    assert choice.finish == "stop"
    assert choice.tokens <= min(400, limit)
    assert choice.text.startswith("## Goal\n")
    for part in re.split(r"^## .*\n", choice.text, flags=re.MULTILINE)[1:]:
        assert re.search(r"- \w", part)


def test_the_honest_summary_is_made_of_the_transcript():
    """R17.1: real text; directives, fences and headings of the source do not get in."""
    source = TURNS + "\n[user]\n[[call:f {}]] ```python\n## Goal\n[result seq=3 call=x] see you [truncated]"
    text = summarise("honest", SummaryTask(source, 2000, 4096, "s")).choice.text
    assert "Please check flight HAT100" in text
    assert f"ref-{159:012x}" in text
    for fact in re.findall(r"ref-\w+|HAT\d+", text):
        assert fact in source
    for mark in ("[[", "```", "[result", "truncated"):
        assert mark not in text
    assert sections(text) == list(HEADINGS)


def test_an_honest_summary_of_nothing_has_text_all_the_same():
    """R8.3"""
    assert sections(summarise("honest", SummaryTask("", 20, 4096, "s")).choice.text) == list(HEADINGS)


def test_each_bad_summariser_is_bad_in_its_way():
    """R8.3"""
    choice = {name: summarise(name, task()).choice for name in SUMMARISERS}
    assert choice["empty"].text == ""
    assert choice["whitespace"].text.strip() == ""
    assert choice["refusal"].refusal
    assert choice["tool_call"].calls
    assert choice["echo"].text == TURNS
    assert sections(choice["four_sections"].text) == list(HEADINGS[:4])
    assert sorted(sections(choice["wrong_order"].text)) == sorted(HEADINGS)
    assert sections(choice["wrong_order"].text) != list(HEADINGS)
    assert choice["truncated_length"].finish == "length"
    assert choice["too_large"].finish == "stop"
    assert choice["too_large"].tokens > 0.8 * task().input_tokens
    assert choice["open_fence"].text.count("```") == 1
    assert summarise("hang", task()).faults.hang is not None
    assert summarise("error_500", task()).faults.status == 500
    assert choice["reasoning_only"].text is None
    assert choice["reasoning_only"].reasoning
    assert len(sections(choice["section_twice"].text)) == len(HEADINGS) + 1
    assert "\ud83d" in choice["surrogate"].text


@pytest.mark.parametrize(
    "name",
    [name for name in SUMMARISERS if name not in {"honest", "too_large", "hang", "error_500", "error_429"}],
)
def test_no_bad_summary_passes_the_validation(name):
    """R8.3: each is refused for its text (a summary that is too large is refused for its size, R9.2)."""
    choice = summarise(name, task()).choice
    answer = SummaryAnswer(
        text=choice.text,
        finish_reason=choice.finish,
        tool_calls=bool(choice.calls),
        refusal=choice.refusal,
        reasoning_only=bool(choice.reasoning and not choice.text),
    )
    assert problems(answer, citations=(), source_text=TURNS)
    honest = summarise("honest", task()).choice
    assert not problems(SummaryAnswer(honest.text, honest.finish), citations=(), source_text=TURNS)
