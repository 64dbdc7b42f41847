"""The I/O half of compaction: from a plan to candidate segments (R9.1). The `text` compactor asks a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from compaction.checkpoint import segments_with
from compaction.groups import legal_cuts
from compaction.projection import RECORD, anchor_block, kept_systems
from compaction.summary import (
    Mode,
    Prompts,
    SummaryInput,
    fold_chunks,
    output_limit,
    repair_messages,
    repair_output_limit,
    request_tokens,
    summary_messages,
)
from compaction.transcript import RESULT_TOKENS, Source, covered_citations, events, plain_text, transcript
from compaction.types import Counter, Level, Plan, Segment
from compaction.validation import SummaryAnswer, clean, problems, ran_out_of_thought
from gateway.conversation import Conversation
from gateway.summariser import Summariser, SummaryError
from gateway.wire import decode_message

SMALLEST_RESULT = 64
"""Tokens of a tool result that are shown at the least, when a single group is too large for a request (R8.5)."""


class InvalidSummaryError(Exception):
    """Two answers in a row were no summaries (R8.4): trying the same again would end the same (R13.2)."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("; ".join(found))


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a compactor made of a plan: segments, or opaque native state (R9.1)."""

    segments: tuple[Segment, ...]
    model: str
    provider_state: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A plan with what is needed to carry it out."""

    plan: Plan
    conversation: Conversation
    summariser: Summariser
    window: int | None
    """Of the summariser's route, in tokens."""
    ratio: float
    """Calibration of the summariser's route (R5.4)."""


class Compactor(Protocol):
    """Turns a plan into a candidate (R9.1)."""

    async def compact(self, job: Job) -> Candidate:
        """Raises `SummaryError` or `InvalidSummaryError`."""
        ...


@dataclass(frozen=True, slots=True)
class TextCompactor:
    """Five-section summaries by a chat model (SPEC 8). What walks over long texts runs in a thread."""

    prompts: Prompts
    counter: Counter
    fold: bool = True

    async def compact(self, job: Job) -> Candidate:
        """One summary for the plan's new range, folded if it is too long for one request (R8.5)."""
        given = await asyncio.to_thread(self._input, job)
        if await asyncio.to_thread(self._fits, job, given):
            text = await self._summary(job, given)
        elif self.fold:
            text = await self._folded(job, given)
        else:
            raise SummaryError("the range does not fit one summary request", overflow=True)
        tokens = self.counter([text])[0]
        return Candidate(segments_with(job.plan, text, tokens), job.summariser.route.model or "")

    def _input(self, job: Job) -> SummaryInput:
        plan, path, history = job.plan, job.conversation.path, job.conversation.history
        sources = [Source(seq, decode_message(history[seq - 1])) for seq in range(plan.from_seq, plan.through_seq + 1)]
        kept = kept_systems(path, plan.through_seq, plan.head_anchor_seq)
        instructions = [
            plain_text(source.message)
            for source in sources
            if path.at(source.seq).role == "system" and source.seq not in kept
        ]
        anchor = self._anchor(job)
        if plan.level is Level.SEGMENTED and plan.previous and plan.previous.head_anchor_seq != plan.head_anchor_seq:
            # The old anchor was shown verbatim up to now; the segment that takes its place begins with it (R7.5).
            sources, anchor = [*anchor, *sources], ()
        return SummaryInput(
            mode=Mode.SEGMENT if plan.level is Level.SEGMENTED else Mode.SESSION,
            sources=tuple(sources),
            earlier=plan.previous.segments if plan.previous else (),
            anchor=anchor,
            instructions=tuple(instructions),
            limit=output_limit(job.window),
        )

    def _anchor(self, job: Job) -> tuple[Source, ...]:
        """The anchor's messages where they are not in the plan's new range: the old anchor's if another follows (R7.5)."""
        plan, conversation = job.plan, job.conversation
        previous = plan.previous
        if previous is not None and previous.head_anchor_seq not in {0, plan.head_anchor_seq}:
            block = anchor_block(conversation.path, previous.through_seq, previous.head_anchor_seq)
        else:
            block = anchor_block(conversation.path, plan.through_seq, plan.head_anchor_seq)
        return tuple(Source(seq, decode_message(conversation.history[seq - 1])) for seq in block if seq < plan.from_seq)

    def _tokens(self, job: Job, messages: Sequence[dict[str, Any]]) -> int:
        return round(request_tokens(messages, self.counter) * job.ratio)

    def _fits(self, job: Job, given: SummaryInput) -> bool:
        if job.window is None:
            return True
        return self._tokens(job, summary_messages(given, self.prompts, self.counter)) + given.limit <= job.window

    async def _folded(self, job: Job, given: SummaryInput) -> str:
        """Chunk after chunk, each request rewriting the running record; the last one is the summary."""
        running: str | None = None
        new = tuple(source for source in given.sources if source.seq >= job.plan.from_seq)
        if len(new) < len(given.sources):
            # Chunks are cut from a gapless range: what was put before it is context for each of them.
            given = replace(given, sources=new, anchor=given.sources[: len(given.sources) - len(new)])
        if given.mode is Mode.SESSION and len(given.earlier) > 1:
            # The records so far may be as long as the window themselves, so they are made one first.
            running = await self._joined(job, given)
            given = replace(given, earlier=())
        # What another anchor takes the place of has been in no summary yet (R7.5): the first chunk begins with it.
        before = given.anchor if given.mode is Mode.SESSION else ()
        given = replace(given, anchor=given.anchor if given.mode is Mode.SEGMENT else ())
        for first, last in await asyncio.to_thread(self._chunks, job, given):
            chunk = (*before, *(source for source in given.sources if first <= source.seq <= last))
            before = ()
            step = replace(given, sources=chunk, running=running)
            if running is not None:
                step = replace(step, mode=Mode.FOLD, earlier=(), instructions=())
            running = await self._summary(job, await asyncio.to_thread(self._shrunk, job, step))
        if running is None:
            raise SummaryError("nothing to summarise")
        return running

    async def _joined(self, job: Job, given: SummaryInput) -> str:
        """One record in the place of the earlier ones, two at a time."""
        first, *others = given.earlier
        text = first.text
        for segment in others:
            both = (replace(first, through_seq=segment.from_seq - 1, text=text), segment)
            text = await self._summary(job, replace(given, earlier=both, sources=(), anchor=(), instructions=()))
        return text

    def _chunks(self, job: Job, given: SummaryInput) -> list[tuple[int, int]]:
        assert job.window is not None
        empty = replace(given, sources=(), running="x" * 4 * given.limit)
        room = job.window - given.limit - self._tokens(job, summary_messages(empty, self.prompts, self.counter))
        sizes = [round(size * job.ratio) + 2 for size in self.counter(events(given.sources, self.counter))]
        cuts = sorted(cut for cut in legal_cuts(job.conversation.path) if cut <= job.plan.through_seq)
        return fold_chunks(given.sources, sizes, cuts, max(room, 256))

    def _shrunk(self, job: Job, given: SummaryInput) -> SummaryInput:
        """A group that does not fit alone, with its texts cut harder until it does."""
        shown = RESULT_TOKENS
        while not self._fits(job, given) and shown > SMALLEST_RESULT:
            shown //= 2
            given = replace(given, result_tokens=shown, text_tokens=shown)
        return given

    async def _summary(self, job: Job, given: SummaryInput) -> str:
        """One summary request, and one repair if the first answer is none (R8.4)."""
        messages = await asyncio.to_thread(summary_messages, given, self.prompts, self.counter)
        answer = await job.summariser.ask(messages, given.limit, await asyncio.to_thread(self._tokens, job, messages))
        found = await asyncio.to_thread(self._problems, job, given, answer)
        if not found:
            return clean(answer.text or "")
        thought = ran_out_of_thought(answer)
        again = messages if thought else repair_messages(messages, answer.text, found, self.prompts)
        limit = repair_output_limit(given.limit, job.window, ran_out_of_thought=thought)
        if job.window is not None and self._tokens(job, again) + limit > job.window:
            again = repair_messages(messages, None, found, self.prompts)
        answer = await job.summariser.ask(again, limit, await asyncio.to_thread(self._tokens, job, again))
        if found := await asyncio.to_thread(self._problems, job, given, answer):
            raise InvalidSummaryError(found)
        return clean(answer.text or "")

    def _problems(self, job: Job, given: SummaryInput, answer: SummaryAnswer) -> list[str]:
        # Earlier records are part of the input, so what they cite may be cited again.
        known = covered_citations(job.conversation.path, 1, job.plan.through_seq)
        shown = transcript(
            given.sources, self.counter, result_tokens=given.result_tokens, text_tokens=given.text_tokens
        )
        return problems(answer, citations=known, source_text=shown, marks=(f"<{RECORD}", f"</{RECORD}"))
