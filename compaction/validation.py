"""May this answer stand for a part of the conversation? Every clause of R8.3 is one small function.

What a clause finds wrong is said in words of this module only, never in the model's, since it is also logged (R15.4).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compaction.quoting import CITATION, MARK, cited
from compaction.transcript import without_reasoning

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

HEADINGS = ("Goal", "Progress", "Key Decisions", "Next Steps", "Critical Context")
"""The five sections of a summary, in order (R8.1)."""

FINISHED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
"""Finish reasons that mean `stop`; the others are the names that relays leave as the model's own provider wrote them."""


@dataclass(frozen=True, slots=True)
class SummaryAnswer:
    """What a summariser answered, whatever the dialect."""

    text: str | None
    finish_reason: str | None = None
    tool_calls: bool = False
    refusal: str | None = None
    reasoning_only: bool = False
    """There is reasoning, and no text beside it."""


def read_answer(body: Any) -> SummaryAnswer:
    """The answer inside a decoded chat completion. Any JSON value is read; what is not there is absent."""
    choices = _members(body).get("choices")
    choice = _members(choices[0]) if isinstance(choices, list) and choices else {}
    message = _members(choice.get("message"))
    text = _text(message.get("content"))
    finish, refusal = choice.get("finish_reason"), message.get("refusal")
    thought = any(
        message.get(key) for key in ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks")
    )
    return SummaryAnswer(
        text=text,
        finish_reason=finish if isinstance(finish, str) else None,
        tool_calls=bool(message.get("tool_calls") or message.get("function_call")),
        refusal=refusal if isinstance(refusal, str) else None,
        reasoning_only=thought and not (text or "").strip(),
    )


def clean(text: str) -> str:
    """The text without what models add: think blocks, outer blanks, one fence around all, blanks behind headings."""
    text = without_reasoning(text).strip()
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped:
        text = wrapped["text"].strip()
    return _BLANK_BEHIND_HEADING.sub(r"\1", text)


def sections(text: str) -> list[tuple[str, str]]:
    """The level-two sections of a text, as (heading, body), in order. A heading inside a code fence is none."""
    found: list[tuple[str, list[str]]] = []
    for line, fenced in _lines(text):
        if not fenced and line.startswith("## "):
            found.append((line[3:], []))
        elif found:
            found[-1][1].append(line)
    return [(heading, "\n".join(body).strip()) for heading, body in found]


def ran_out_of_thought(answer: SummaryAnswer) -> bool:
    """It stopped for length before any visible text: the reasoning took it all (R8.4)."""
    return _reason(answer) in {"length", "max_tokens"} and not (answer.text or "").strip()


def problems(
    answer: SummaryAnswer,
    *,
    citations: Collection[tuple[int, str]],
    source_text: str,
    marks: Sequence[str] = (),
) -> list[str]:
    """Why this answer is no summary (R8.3); empty if it is one.

    `citations` are the tool results of the covered range, `source_text` is the transcript that was sent, `marks` are
    further texts of the gateway's own that may not occur. An accepted answer's text is `clean(answer.text)`.
    """
    outer = [*_unfinished(answer), *_no_text(answer)]
    text = clean(answer.text or "")
    if not text:
        return outer
    inner = [problem for clause in _TEXT_CLAUSES for problem in clause(text)]
    given = [*_unknown_citations(text, citations), *_gateway_marks(text, marks), *_echo(text, source_text)]
    return [*outer, *inner, *given]


# --- the answer ----------------------------------------------------------------------------------------------------


def _reason(answer: SummaryAnswer) -> str:
    return (answer.finish_reason or "stop").lower()


def _unfinished(answer: SummaryAnswer) -> Iterator[str]:
    reason = _reason(answer)
    if reason in {"length", "max_tokens"}:
        yield "It was cut off at the output limit."
    elif reason not in FINISHED:
        yield "It did not end by itself."


def _no_text(answer: SummaryAnswer) -> Iterator[str]:
    if answer.tool_calls:
        yield "It calls a tool."
    if answer.refusal:
        yield "It refuses."
    if answer.reasoning_only:
        yield "It holds reasoning and no answer."
    elif not (answer.text or "").strip():
        yield "It is empty."


# --- the sections --------------------------------------------------------------------------------------------------

_WRAPPED = re.compile(r"(?P<fence>`{3,}|~{3,})(?:markdown|md|text)?[ \t\r]*\n(?P<text>\s*## .*)\n(?P=fence)", re.DOTALL)
_BLANK_BEHIND_HEADING = re.compile(r"^(## [^\n]*[^\s])[ \t\r]+$", re.MULTILINE)
_FENCE = re.compile(r"(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*(`{3,}|~{3,})(.*)")
_WORDS = re.compile(r"[^\W_]+")

_NONE_TEXT = (
    "none;n a;na;nil;null;no;nothing;empty;not applicable;none so far;none yet;nothing yet;nothing so far;"
    "none identified;none recorded;not available;unknown;"
    "keine;keiner;keines;nichts;entfällt;aucun;aucune;rien;néant;sans objet;ninguno;ninguna;nada;no aplica;"
    "nenhum;nenhuma;não aplicável;nessuno;nessuna;niente;geen;niets;ingen;inget;inga;intet;ingenting;ei mitään;"
    "brak;nic;žádné;žádná;nicio;niciuna;nimic;nincs;yok;нет;ничего;отсутствует;немає;нема;няма;"
    "无;無;暂无;暫無;没有;沒有;なし;特になし;ありません;없음;لا يوجد;لا شيء;אין;कोई नहीं;không;không có;"
    "tidak ada;tiada;ไม่มี;κανένα;τίποτα"
)
_PLACEHOLDER = frozenset(("tbd", "tba", "todo", "to be determined", "to be added", "placeholder"))


def _bare_words(text: str) -> str:
    return " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))


_NONE = frozenset(map(_bare_words, _NONE_TEXT.split(";")))


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a code fence."""
    fence = ""
    for line in text.split("\n"):
        fence, fenced = _after(line, fence)
        yield line, fenced


def _after(line: str, fence: str) -> tuple[str, bool]:
    """The fence that is open after this line, and whether the line is part of one."""
    found = _FENCE.match(line)
    if not found:
        return fence, bool(fence)
    run, rest = found[1], found[2]
    if not fence:
        opens = run[0] == "~" or "`" not in rest  # else it is code within a line
        return (run, True) if opens else ("", False)
    closes = run[0] == fence[0] and len(run) >= len(fence) and not rest.strip()
    return ("", True) if closes else (fence, True)


def _open_fence(text: str) -> Iterator[str]:
    fence = ""
    for line in text.split("\n"):
        fence, _ = _after(line, fence)
    if fence:
        yield "A code fence is not closed."


def _preamble(text: str) -> Iterator[str]:
    if not text.startswith("## "):
        yield "Something stands before the first heading."


def _headings(text: str) -> Iterator[str]:
    found = [heading for heading, _ in sections(text)]
    for heading in HEADINGS:
        if found.count(heading) != 1:
            yield f"The heading `## {heading}` must occur exactly once."
    known = [heading for heading in found if heading in HEADINGS]
    if len(known) < len(found):
        yield "There are level-two headings other than the five."
    if sorted(known) == sorted(HEADINGS) and known != list(HEADINGS):
        yield "The headings are not in the given order."


def _bodies(text: str) -> Iterator[str]:
    bodies = {heading: _said(body) for heading, body in sections(text) if heading in HEADINGS}
    for heading, said in bodies.items():
        if not said:
            yield f"The section `## {heading}` is empty."
    if bodies and all(said and said <= _NONE for said in bodies.values()):
        yield "No section says anything."


def _said(body: str) -> frozenset[str]:
    """The lines of a section as bare words, without those that say nothing."""
    return frozenset(words for line in body.split("\n") if (words := _bare_words(line))) - _PLACEHOLDER


# --- what may not be in it -----------------------------------------------------------------------------------------

_TRUNCATION = re.compile(
    # In square or angle brackets, also with a count: `[truncated]`, `[... 200 lines omitted ...]`, `<truncated>`.
    r"\[[^\[\]\n]{0,40}\b(?:truncated|continued|continues|omitted|snipped|gekürzt|tronqué|truncado)\b[^\]\n]{0,40}\]"
    r"|<(?:truncated|continued|snip)>"
    # In round ones only alone or with "in the next message": `(truncated to 50 rows)` is a fact of the conversation.
    r"|\((?:\.{3}|…)?\s*(?:to be )?(?:truncated|continued|continues|cut off)(?:\s+(?:in|on|below|for)\b[^)\n]{0,40})?\s*"
    r"(?:\.{3}|…)?\)"
    r"|[\[(【\uff08]\s*(?:\.{3}|…+)?\s*(?:截断|截斷|省略|未完|待续|待續|未完待续|续|續|続く|つづく)\s*(?:\.{3}|…+)?\s*[\])】\uff09]"
    r"|(?:\.{3}|…)[ \t*_-]*(?:truncated|continued)[ \t*_.-]*$",
    re.IGNORECASE | re.MULTILINE,
)
_LAST_LINE_ELLIPSIS = re.compile(r"\n[ \t]*(?:[-*+][ \t]+)?[\[(]?(?:\.{3,}|…+)[\])]?\Z")
_CODE_WORD = re.compile(r"`[^`\n]{1,40}`")
_TOOL_SYNTAX = re.compile(
    r"</?(?:\w{1,20}:)?(?:tool_calls?|tool_use|tool_response|tool_result|function_calls?|function_results?|invoke)"
    r"\b[^>\n]{0,200}>"
    r"|<function=|</function>|<[|\uff5c][\w\u2581\uff5c|]{2,40}[|\uff5c]>"
    r"|\[/?TOOL_(?:CALLS?|RESULTS?|REQUEST)\]|\[AVAILABLE_TOOLS\]"
    r'|"(?:tool_calls|function_call|tool_call_id)"\s*:|```tool_(?:code|call|use)'
    r'|^[ \t]*\{\s*"(?:name|tool|function)"\s*:\s*"[^"\n]*"\s*,\s*"(?:arguments|parameters|input)"\s*:'
    r"|</?(?:think|thinking|reasoning)>",
    re.IGNORECASE | re.MULTILINE,
)
_UNENCODABLE = re.compile(r"[\x00\ud800-\udfff]")


def _truncation(text: str) -> Iterator[str]:
    if _TRUNCATION.search(text) or _LAST_LINE_ELLIPSIS.search(text):
        yield "It holds a mark that says that something was cut or continues elsewhere."


def _tool_syntax(text: str) -> Iterator[str]:
    # A tag that is named in code quotes is a word of the conversation, not a call.
    if _TOOL_SYNTAX.search(_CODE_WORD.sub("", text)):
        yield "It holds the syntax of a tool call or of reasoning."


def _unencodable(text: str) -> Iterator[str]:
    if _UNENCODABLE.search(text):
        yield "It holds characters that cannot be stored."


def _gateway_marks(text: str, marks: Sequence[str]) -> Iterator[str]:
    without = CITATION.sub("", text)
    if MARK.search(without) or any(mark in without for mark in marks):
        yield "It holds a mark of the transcript that is no citation of the form `[result seq=<n> call=<id>]`."


def _unknown_citations(text: str, citations: Collection[tuple[int, str]]) -> Iterator[str]:
    unknown = sorted({seq for seq, call in cited(text) if (seq, call) not in citations})
    if unknown:
        yield f"It cites results that are not in the transcript: seq {', '.join(map(str, unknown[:10]))}."


# --- echo ----------------------------------------------------------------------------------------------------------

_BLOCK = 40  # letters and digits: a copied run of twice as many holds a whole block of the source
_RUN = 300  # letters and digits, about 60 words: quoting that much at a time is copying
_ECHO = 0.8  # share of the text


def _echo(text: str, source_text: str) -> Iterator[str]:
    """Copied from end to end, whatever headings, bullets or quote marks were put between.

    Facts and the user's constraints are copied word for word on purpose, so only long runs count, and only when they
    are nearly all of the text.
    """
    bare, source = _bare(text), _bare(source_text)
    blocks = {source[at : at + _BLOCK] for at in range(0, len(source) - _BLOCK + 1, _BLOCK)}
    copied = sum(length for length in _copied_runs(bare, blocks) if length >= _RUN)
    if copied > _ECHO * len(bare):
        yield "It repeats the transcript instead of summarising it."


def _copied_runs(bare: str, blocks: Collection[str]) -> Iterator[int]:
    """Lengths of the stretches of a text that are covered by blocks."""
    start = end = 0
    for at in range(len(bare) - _BLOCK + 1):
        if bare[at : at + _BLOCK] in blocks:
            if at > end:
                yield end - start
                start = at
            end = at + _BLOCK
    yield end - start


def _bare(text: str) -> str:
    return "".join(_WORDS.findall(text.casefold()))


_TEXT_CLAUSES: tuple[Callable[[str], Iterator[str]], ...] = (
    _preamble,
    _headings,
    _bodies,
    _open_fence,
    _truncation,
    _tool_syntax,
    _unencodable,
)


def _text(content: Any) -> str | None:
    """Content as text: a string, or the text parts that some relays send."""
    if isinstance(content, list):
        parts = [_members(part) for part in content]
        return "".join(
            part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else None


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
