"""Which answers of a summariser are accepted, and what is said of the others (R8.3)."""

import json
from pathlib import Path as File

import pytest

from compaction.transcript import Source, transcript
from compaction.validation import (
    HEADINGS,
    SummaryAnswer,
    clean,
    problems,
    ran_out_of_thought,
    read_answer,
    sections,
)

AIRLINE = File(__file__).parents[1] / "data" / "conversations" / "tau-airline.jsonl"
GOOD = """## Goal
Move booking `ZX81` to 2024-05-20.

## Progress
- Looked up the booking [result seq=4 call=call_1]: two bags, economy.
- Ran the check:
  ```bash
  check --all
  ```

## Key Decisions
- None so far.

## Next Steps
1. Ask for the payment method.

## Critical Context
- The user: "never book a flight before 11am".
- /srv/app/config.yaml (truncated to 50 rows), list [note the order]"""
CITATIONS = frozenset({(4, "call_1")})
CONVERSATION = json.loads(AIRLINE.read_text().splitlines()[0])["messages"][1:]
TRANSCRIPT = transcript(
    [Source(seq, message) for seq, message in enumerate(CONVERSATION, 1)],
    lambda texts: [len(text) // 4 for text in texts],
)


def found(text: str | None, *, source_text: str = "", marks: tuple[str, ...] = (), **fields: object) -> list[str]:
    answer = SummaryAnswer(text=text, **{"finish_reason": "stop", **fields})
    return problems(answer, citations=CITATIONS, source_text=source_text, marks=marks)


def record(**bodies: str) -> str:
    """A summary with the given bodies, by the headings' first words."""
    return "\n\n".join(f"## {heading}\n{bodies.get(heading.split()[0].lower(), 'Something.')}" for heading in HEADINGS)


def test_a_good_summary_has_no_problems():
    assert found(GOOD) == []


class TestAnswer:
    @pytest.mark.parametrize("reason", ["stop", None, "", "STOP", "eos", "end_turn", "stop_sequence", "eos_token"])
    def test_an_answer_that_ended_by_itself_is_accepted(self, reason):
        assert found(GOOD, finish_reason=reason) == []

    @pytest.mark.parametrize("reason", ["length", "max_tokens"])
    def test_an_answer_cut_for_length_is_refused(self, reason):
        assert found(GOOD, finish_reason=reason) == ["It was cut off at the output limit."]

    @pytest.mark.parametrize("reason", ["content_filter", "tool_calls", "error", "something_new"])
    def test_any_other_end_is_refused(self, reason):
        assert found(GOOD, finish_reason=reason) == ["It did not end by itself."]

    @pytest.mark.parametrize("text", [None, "", " \n\t "])
    def test_no_text_is_refused(self, text):
        assert found(text) == ["It is empty."]

    def test_a_tool_call_is_refused_also_beside_text(self):
        assert found(GOOD, tool_calls=True) == ["It calls a tool."]

    def test_a_refusal_is_refused_also_beside_text(self):
        assert found(GOOD, refusal="I cannot") == ["It refuses."]

    def test_reasoning_alone_is_refused(self):
        assert found(None, reasoning_only=True) == ["It holds reasoning and no answer."]

    def test_a_refusal_in_plain_words_has_no_sections(self):
        assert len(found("I'm sorry, but I can't help with that.")) == 6


class TestSections:
    @pytest.mark.parametrize("heading", HEADINGS)
    def test_a_missing_section_is_named(self, heading):
        text = GOOD.replace(f"## {heading}\n", "")
        assert f"The heading `## {heading}` must occur exactly once." in found(text)

    @pytest.mark.parametrize("heading", HEADINGS)
    def test_a_section_twice_is_named(self, heading):
        assert found(f"{GOOD}\n\n## {heading}\nmore") == [f"The heading `## {heading}` must occur exactly once."]

    def test_another_order_is_refused(self):
        text = (
            GOOD.replace("## Progress", "## X")
            .replace("## Key Decisions", "## Progress")
            .replace("## X", "## Key Decisions")
        )
        assert found(text) == ["The headings are not in the given order."]

    def test_a_sixth_section_is_refused(self):
        assert found(f"{GOOD}\n\n## Notes\nmore") == ["There are level-two headings other than the five."]

    @pytest.mark.parametrize(
        "heading", ["# @", "### @", "**@**", "## progress", "## @:", " ## @", "##@", "##  @", "@\n---"]
    )
    def test_a_heading_written_otherwise_is_none(self, heading):
        text = GOOD.replace("## Progress", heading.replace("@", "Progress"))
        assert "The heading `## Progress` must occur exactly once." in found(text)

    def test_deeper_headings_are_content(self):
        assert found(GOOD.replace("- Ran", "### Checks\n- Ran")) == []

    @pytest.mark.parametrize("before", ["Here is the summary:\n\n", "# Summary\n", "\ufeff"])
    def test_nothing_stands_before_the_first_heading(self, before):
        assert "Something stands before the first heading." in found(before + GOOD)

    def test_headings_inside_a_code_fence_are_content(self):
        fake = "\n".join(f"## {heading}\nfake" for heading in HEADINGS)
        assert found(f"{GOOD}\n```markdown\n{fake}\n```") == []
        assert len(sections(f"{GOOD}\n~~~\n{fake}\n~~~")) == 5

    @pytest.mark.parametrize("body", ["", "-", "...", "* \n* ", "TBD", "```\n```", "[placeholder]", "---"])
    @pytest.mark.parametrize("heading", ["goal", "progress", "key", "next", "critical"])
    def test_a_section_without_words_is_empty(self, heading, body):
        named = next(known for known in HEADINGS if known.lower().startswith(heading))
        assert f"The section `## {named}` is empty." in found(record(**{heading: body}))

    @pytest.mark.parametrize("body", ["完成了", "готово", "é", "42"])
    def test_words_of_any_script_are_content(self, body):
        assert found(record(goal=body)) == []

    @pytest.mark.parametrize(
        "none",
        [
            "None",
            "none.",
            "N/A",
            "- None\n- nothing",
            "**None**",
            "Keine.",
            "aucun",
            "нет",
            "无",
            "なし",
            "없음",
            "ไม่มี",
            "कोई नहीं",
            "لا يوجد",
        ],
    )
    def test_not_all_sections_may_say_none(self, none):
        bodies = {heading.split()[0].lower(): none for heading in HEADINGS}
        assert found(record(**bodies)) == ["No section says anything."]
        assert found(record(**bodies | {"goal": "Find it."})) == []


class TestFences:
    @pytest.mark.parametrize(
        "block",
        ["```\nx", "~~~\nx\n```", "````\nx\n```", "```py\nx\n```py", "- ```\n  x", "> ```\n> x"],
    )
    def test_an_open_fence_is_refused(self, block):
        assert found(f"{GOOD}\n{block}") == ["A code fence is not closed."]

    @pytest.mark.parametrize(
        "block",
        [
            "```\nx\n```",
            "````\n```\n````",
            "~~~\n```\n~~~",
            "- ```\n  x\n  ```",
            "1. a\n    ```js\n    x\n    ```",
            "```code```",
        ],
    )
    def test_a_closed_fence_is_accepted(self, block):
        assert found(f"{GOOD}\n{block}") == []

    def test_a_fence_open_across_sections_hides_them(self):
        assert "A code fence is not closed." in found(record(goal="```\nMove"))
        assert "The heading `## Progress` must occur exactly once." in found(record(goal="```\nMove"))


class TestForbidden:
    @pytest.mark.parametrize(
        "mark",
        [
            "[truncated]", "[Truncated]", "...[continued]", "[continued]", "(continued)", "(to be continued)", "[... 20 lines omitted ...]",
            "<truncated>", "… (truncated)", "(continued in the next message)", "[output truncated]", "[截断]", "（未完待续）", "... truncated",
            "[gekürzt]", "\n...", "\n- …", "\n[...]",
        ],
    )  # fmt: skip
    def test_a_truncation_mark_is_refused(self, mark):
        assert found(GOOD + " " + mark) == ["It holds a mark that says that something was cut or continues elsewhere."]

    @pytest.mark.parametrize(
        "text", ["(truncated to 50 rows)", "it was truncated", "wait ...", "a [...] b", "continued work"]
    )
    def test_words_about_cutting_are_no_mark(self, text):
        assert found(GOOD + " " + text + " x") == []

    @pytest.mark.parametrize(
        "syntax",
        [
            "<tool_call>", '<tool_call>{"name": "x"}</tool_call>', "</function_calls>", '<invoke name="x">', "<function=search>",
            "[TOOL_CALLS]", "<|im_start|>", "<|tool_call|>", "<\uff5ctool\u2581calls\u2581begin\uff5c>", '{"tool_calls": []}',
            "```tool_code\nx\n```", '\n{"name": "search", "arguments": {}}', "<think>", "\n```json\n<tool_use>\n```",
        ],
    )  # fmt: skip
    def test_tool_syntax_is_refused(self, syntax):
        assert found(f"{GOOD}\n{syntax}\nend") == ["It holds the syntax of a tool call or of reasoning."]

    @pytest.mark.parametrize(
        "text",
        ["The parser reads `<tool_call>` tags.", "`<|im_end|>`", "a <tools> tag", "x < y | z > w", "a <goal> tag"],
    )
    def test_tags_named_in_code_quotes_are_words(self, text):
        assert found(f"{GOOD}\n{text}") == []

    @pytest.mark.parametrize(
        "mark",
        [
            "[event seq=4 role=user]", "[call id=x name=y]", "[media type=image_url]", "[cut characters=1 lines=2]", "[note no-result]",
            "<transcript-0123456789abcdef>", "</goal-01234567>", "[result seq=4]", "[Result seq=4 call=call_1]", "[result seq=x call=y]",
        ],
    )  # fmt: skip
    def test_a_mark_of_the_transcript_is_refused(self, mark):
        assert found(f"{GOOD}\n{mark}")[0].startswith("It holds a mark of the transcript")

    def test_further_marks_may_be_given(self):
        assert found(GOOD, marks=("{{palimpsest}}",)) == []
        assert len(found(f"{GOOD} {{{{palimpsest}}}}", marks=("{{palimpsest}}",))) == 1

    def test_a_citation_that_does_not_exist_is_refused_by_its_seq(self):
        text = f"{GOOD}\n[result seq=9 call=call_1] [result seq=4 call=call_2] [result seq=9 call=z]"
        assert found(text) == ["It cites results that are not in the transcript: seq 4, 9."]

    @pytest.mark.parametrize("character", [chr(0xD800), chr(0xDFFF), chr(0)])
    def test_characters_that_cannot_be_stored_are_refused(self, character):
        assert found(GOOD + character) == ["It holds characters that cannot be stored."]

    def test_all_that_is_wrong_is_named_at_once(self):
        assert len(found("Sure!\n## Goal\n\n```", finish_reason="length")) == 8

    def test_nothing_of_the_answer_is_repeated(self):  # R15.4: problems are logged
        texts = found(
            "swordfish\n## swordfish\n<tool_call>swordfish</tool_call>[result seq=9 call=swordfish]",
            finish_reason="swordfish",
        )
        assert texts
        assert "swordfish" not in "".join(texts)


class TestEcho:
    @pytest.mark.parametrize("prefix", ["", "- ", "> "])
    def test_the_transcript_under_five_headings_is_an_echo(self, prefix):
        copied = "\n".join(prefix + line for line in TRANSCRIPT.replace("[", "(").split("\n"))[:6000]
        text = record(goal="Go on.", progress=copied, key="None.", next="Go on.", critical="None.")
        assert found(text, source_text=TRANSCRIPT) == ["It repeats the transcript instead of summarising it."]

    def test_pieces_of_the_transcript_in_every_section_are_an_echo(self):
        plain = TRANSCRIPT.replace("[", "(").replace("\n#", "\n")
        size = 2500
        parts = [plain[at : at + size].replace("\n", " ") for at in range(0, 5 * size, size)]
        text = record(**dict(zip(("goal", "progress", "key", "next", "critical"), parts, strict=True)))
        assert "It repeats the transcript instead of summarising it." in found(text, source_text=TRANSCRIPT)

    def test_sentences_taken_from_the_transcript_are_none(self):
        lines = [line for line in TRANSCRIPT.split("\n") if 40 < len(line) < 250 and "[" not in line]
        bodies = dict(zip(("goal", "progress", "key", "next", "critical"), lines[::3], strict=False))
        assert found(record(**bodies), source_text=TRANSCRIPT) == []

    def test_a_long_request_quoted_whole_beside_other_content_is_none(self):
        words = " ".join(f"constraint{number}" for number in range(60))
        text = record(goal=words, progress=" ".join(f"step{number}" for number in range(60)))
        assert found(text, source_text=f"[event seq=1 role=user]\n{words}") == []

    def test_without_any_words_there_is_nothing_to_echo(self):
        assert "It repeats" not in "".join(found("---", source_text="..."))


class TestClean:
    @pytest.mark.parametrize(
        "dressed",
        [
            f"\n\n {GOOD}\n ",
            f"```markdown\n{GOOD}\n```",
            f"```\n\n{GOOD}\n```\n",
            f"~~~~md\n{GOOD}\n~~~~",
            f"````markdown\n{GOOD}\n````",
        ],
    )
    def test_removes_outer_blanks_and_one_fence_around_all(self, dressed):
        assert clean(dressed) == GOOD
        assert found(dressed) == []

    def test_removes_blanks_behind_headings(self):
        assert clean(GOOD.replace("## Goal", "## Goal  ").replace("## Progress", "## Progress\t\r")) == GOOD

    def test_accepts_carriage_returns(self):
        assert found(GOOD.replace("\n", "\r\n")) == []

    @pytest.mark.parametrize("text", [GOOD, "```\ncode\n```", "```markdown\n## Goal\nx", "", "x"])
    def test_leaves_everything_else(self, text):
        assert clean(text) == text

    def test_cleaning_twice_changes_nothing(self):
        assert clean(clean(f"```md\n{GOOD} \n```")) == clean(f"```md\n{GOOD} \n```")


class TestReading:
    def test_reads_a_chat_completion(self):
        body = {
            "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "x", "refusal": None}}]
        }
        assert read_answer(body) == SummaryAnswer("x", "stop")

    def test_joins_content_parts(self):
        parts = [
            {"type": "text", "text": "a"},
            {"type": "thinking", "thinking": "t"},
            "junk",
            {"type": "text", "text": "b"},
        ]
        assert read_answer({"choices": [{"message": {"content": parts}}]}).text == "ab"

    @pytest.mark.parametrize("calls", [{"tool_calls": [{}]}, {"function_call": {"name": "x"}}])
    def test_sees_calls_and_refusals(self, calls):
        answer = read_answer({"choices": [{"message": calls | {"refusal": "no"}}]})
        assert answer == SummaryAnswer(None, None, tool_calls=True, refusal="no")

    @pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"])
    def test_sees_reasoning_without_text(self, key):
        assert read_answer({"choices": [{"message": {"content": " ", key: "hm"}}]}).reasoning_only
        assert not read_answer({"choices": [{"message": {"content": "x", key: "hm"}}]}).reasoning_only

    @pytest.mark.parametrize(
        "body",
        [
            None,
            [],
            {},
            {"choices": []},
            {"choices": {}},
            {"choices": [None]},
            {"choices": [{"message": 1, "finish_reason": 2}]},
        ],
    )
    def test_whatever_is_missing_is_absent(self, body):
        assert read_answer(body) == SummaryAnswer(None)


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        (None, "length", True),
        (" ", "max_tokens", True),
        ("x", "length", False),
        (None, "stop", False),
        (None, None, False),
    ],
)
def test_running_out_of_thought_is_stopping_for_length_without_text(text, reason, expected):  # R8.4
    assert ran_out_of_thought(SummaryAnswer(text, reason, reasoning_only=True)) is expected


def test_a_think_block_before_the_summary_is_no_part_of_it():
    """R8.3: reasoning alone is no summary, but reasoning before one does no harm."""
    text = "\n\n".join(f"## {heading}\n- something said about {heading}" for heading in HEADINGS)
    answer = SummaryAnswer(text=f"<think>\n## Goal? Let me see.\n</think>\n\n{text}", finish_reason="stop")
    assert problems(answer, citations=(), source_text="") == []
    assert clean(answer.text or "") == text
