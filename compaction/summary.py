"""What is asked of a summariser (SPEC 8): the request, its limits, the repair, and the chunks of a fold."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from compaction.quoting import encodable, escape, fence
from compaction.transcript import (
    RESULT_TOKENS,
    Source,
    plain_text,
    role_of,
    transcript,
)
from compaction.validation import sections

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from compaction.types import Counter, Segment

OUTPUT_LIMIT = 4096
"""Tokens a summary may take, unless configured otherwise (R8.2)."""
_MOST_OUTPUT = 8192
_MOST_OUTPUT_AFTER_THOUGHT = 32_768
_PER_MESSAGE = 4  # tokens, as in R5.3
_SHORTEST_TARGET = 256


@dataclass(frozen=True, slots=True)
class Prompts:
    """The texts of the instruction, handed in, and the version that checkpoints made with them carry (R8.6)."""

    version: str
    system: str
    """The system message: the five sections, the rules, the format of the data."""
    segment: str
    """Closing words of a request for one new segment. `{limit}` stands for the tokens to stay under."""
    session: str
    """... for one record of everything."""
    fold: str
    """... for the running record, rewritten to include another chunk."""
    repair: str
    """Closing words after a first answer that was refused. `{problems}` stands for what was wrong."""


class Mode(StrEnum):
    """What one request asks for."""

    SEGMENT = "segment"
    """A segment for a new range; earlier segments stay as they are (R7.4)."""
    SESSION = "session"
    """One record of all that is given, earlier segments and the old anchor included (R7.5)."""
    FOLD = "fold"
    """The running record, rewritten to include the next chunk (R8.5)."""


@dataclass(frozen=True, slots=True)
class SummaryInput:
    """What one request to the summariser is made from."""

    mode: Mode
    sources: tuple[Source, ...]
    """The messages to be summarised, whole groups, in order."""
    earlier: tuple[Segment, ...] = ()
    """Segments before `sources`: to be rewritten in mode `session`, else only the newest goal is shown, to be read."""
    anchor: tuple[Source, ...] = ()
    """The anchor's user messages, where they are not among `sources`: in mode `session` they open the transcript,
    since the record replaces them; else they are context, to be read."""
    instructions: tuple[str, ...] = ()
    """Texts (`transcript.plain_text`) of covered system messages that are not put back (R6.8)."""
    running: str | None = None
    """The running record of a fold; None for its first chunk."""
    limit: int = OUTPUT_LIMIT
    """The request's output limit, in tokens (`output_limit`)."""
    result_tokens: int = RESULT_TOKENS
    """Tokens of a tool result that are shown; less for a group that does not fit otherwise (R8.5)."""
    text_tokens: int | None = None
    """The same for every other text; None shows them whole."""


def summary_messages(given: SummaryInput, prompts: Prompts, counter: Counter) -> list[dict[str, Any]]:
    """The system instruction and one user message that holds the data, fenced (R8.2)."""
    sources = [*(given.anchor if given.mode is Mode.SESSION else ()), *_without_instructions(given)]
    quoted = transcript(sources, counter, result_tokens=given.result_tokens, text_tokens=given.text_tokens)
    blocks = [*_context(given, counter), fence(quoted)]
    closing = {Mode.SEGMENT: prompts.segment, Mode.SESSION: prompts.session, Mode.FOLD: prompts.fold}[given.mode]
    limit = target_tokens(given, quoted, counter)
    return [
        {"role": "system", "content": prompts.system},
        {"role": "user", "content": "\n\n".join([*blocks, closing.replace("{limit}", str(limit))])},
    ]


def repair_messages(
    original: Sequence[Mapping[str, Any]], bad_text: str | None, problems: Sequence[str], prompts: Prompts
) -> list[dict[str, Any]]:
    """The request once more, with the refused answer as data, what was wrong with it, and a wish for less (R8.4).

    After `validation.ran_out_of_thought` the original is sent again unchanged, with `repair_output_limit`.
    """
    *before, last = original
    asked = prompts.repair.replace("{problems}", "\n".join(f"- {problem}" for problem in problems))
    blocks = [last["content"], *([fence(escape(bad_text), "refused-answer")] if bad_text else []), asked]
    return [*map(dict, before), {**last, "content": "\n\n".join(blocks)}]


def output_limit(window: int | None, wanted: int = OUTPUT_LIMIT) -> int:
    """Output limit of a summary request, in tokens (R8.2): `wanted`, at most 8,192 and a quarter of the window."""
    return _within_quarter(min(wanted, _MOST_OUTPUT), window)


def repair_output_limit(limit: int, window: int | None, *, ran_out_of_thought: bool) -> int:
    """Output limit of the repair request (R8.4): as before, or four times as much if reasoning took it all."""
    return _within_quarter(min(limit * 4, _MOST_OUTPUT_AFTER_THOUGHT), window) if ran_out_of_thought else limit


def target_tokens(given: SummaryInput, quoted: str, counter: Counter) -> int:
    """The length that the summariser is asked to stay under, in tokens.

    Well below the output limit, since models count badly and reasoning counts too; and no more than a quarter of what
    is new, with what is already short kept, since a record that is not shorter is refused (R9.2).
    """
    short = [given.running or "", *(segment.text for segment in given.earlier if given.mode is Mode.SESSION)]
    new, *kept = counter([quoted, *short])
    return max(1, min(given.limit * 3 // 4, max(_SHORTEST_TARGET, new // 4 + sum(kept))))


def request_tokens(messages: Sequence[Mapping[str, Any]], counter: Counter) -> int:
    """Estimate of a summary request's input: it must fit before it is sent (R8.5)."""
    return sum(counter([message["content"] for message in messages])) + _PER_MESSAGE * len(messages)


def fold_chunks(
    sources: Sequence[Source], sizes: Sequence[int], cuts: Sequence[int], capacity: int
) -> list[tuple[int, int]]:
    """Ranges of seq, gapless, each as long as fits `capacity` tokens, ending on legal cuts (R8.5).

    `sizes` are the tokens of each source as shown (`transcript.events`), `cuts` the seqs that a covered prefix may end
    at. What lies between two cuts is never split: if it alone is too large it is a chunk of its own, to be sent with
    smaller `result_tokens`. Sources behind the last cut are in no chunk.
    """
    if not sources:
        return []
    before = [0, *accumulate(sizes)]
    seqs = [source.seq for source in sources]
    ends = sorted({bisect_right(seqs, cut) for cut in cuts if cut <= seqs[-1]} - {0})
    bounds = [0]
    while ends and bounds[-1] < ends[-1]:
        fitting = bisect_right(ends, capacity + before[bounds[-1]], key=lambda end: before[end])
        following = bisect_left(ends, bounds[-1] + 1)
        bounds.append(ends[max(fitting - 1, following)])
    return [(sources[start].seq, sources[end - 1].seq) for start, end in pairwise(bounds)]


def goal(segments: Sequence[Segment]) -> str | None:
    """The goal as the newest segment states it (R7.4)."""
    found = dict(sections(segments[-1].text)).get("Goal") if segments else None
    return found or None


def _within_quarter(limit: int, window: int | None) -> int:
    return max(1, limit if window is None else min(limit, window // 4))


def _context(given: SummaryInput, counter: Counter) -> Iterator[str]:
    for text in given.instructions:
        yield fence(escape(text), "instructions")
    if given.mode is Mode.SESSION:
        for segment in given.earlier:
            yield fence(encodable(segment.text), "earlier-record", f"seq={segment.from_seq}-{segment.through_seq}")
    elif known := goal(given.earlier):
        yield fence(encodable(known), "goal")
    if given.anchor and given.mode is not Mode.SESSION:
        yield fence(transcript(given.anchor, counter), "current-request")
    if given.running is not None:
        yield fence(encodable(given.running), "running-record")


def _without_instructions(given: SummaryInput) -> list[Source]:
    """The sources, less the system messages whose text is shown among the instructions already."""
    shown = set(given.instructions)
    return [
        source
        for source in given.sources
        if not (role_of(source.message) == "system" and plain_text(source.message) in shown)
    ]
