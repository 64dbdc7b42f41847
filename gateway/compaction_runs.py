"""Carries out compactions: one at a time per source, in tasks of their own, every decision logged (R9.5, R13.4)."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from compaction.acceptance import OVERTAKEN, refusal
from compaction.checkpoint import new_checkpoint
from compaction.failures import fingerprint, remember
from compaction.planner import min_gain, projected_tokens
from compaction.retreat import MOST_HALVINGS, to_boundary, to_half
from compaction.types import Budget, Checkpoint, Level, Plan, Policy
from gateway.compactors import Candidate, Compactor, InvalidSummaryError, Job
from gateway.conversation import Conversation
from gateway.recording import usage_row
from gateway.reply import Usage
from gateway.routes import RouteBook
from gateway.settings import Route
from gateway.summariser import OnSend, OnUsage, Summariser, SummaryError
from gateway.tasks import Supervisor
from gateway.telemetry import Metrics
from store import entries
from store.errors import StoreError
from store.protocol import CheckpointReader, Store
from store.rows import Entry, Recorded

log = structlog.get_logger("palimpsest.compaction")


SummariserFactory = Callable[[OnSend, OnUsage], Summariser]
"""Makes the caller's way to the summarising model, given whom to tell of bodies sent and tokens used."""


@dataclass(frozen=True, slots=True)
class Order:
    """A compaction to be carried out for one request."""

    plan: Plan
    conversation: Conversation
    route: Route
    budget: Budget
    ratio: float
    recorded: Recorded
    summariser: SummariserFactory
    read: CheckpointReader
    measure: Callable[[Checkpoint], int]
    """Estimated tokens of the checkpoint message."""


class CompactionRuns:
    """All compactions of this process. None of them ever raises to the request that waits for it (R13.1)."""

    def __init__(
        self,
        *,
        store: Store,
        routes: RouteBook,
        compactor: Compactor,
        policy: Policy,
        prompt_version: str,
        tasks: Supervisor,
        metrics: Metrics,
        timeout: float,
    ) -> None:
        self._store = store
        self._routes = routes
        self._compactor = compactor
        self._policy = policy
        self._prompt_version = prompt_version
        self._tasks = tasks
        self._metrics = metrics
        self._timeout = timeout
        self._running: dict[tuple[str, bytes, str], asyncio.Task[Checkpoint | None]] = {}
        self._failed: dict[int, tuple[str, ...]] = {}

    async def run(self, order: Order) -> Checkpoint | None:
        """The checkpoint that is in force afterwards because of this compaction; None: it came to nothing.

        The work outlives its client, and an equal one joins it (R9.5, R9.7).
        """
        key = (order.conversation.tenant, order.plan.source_digest, order.route.name)
        task = self._running.get(key)
        if task is None:
            task = self._tasks.spawn(self._guarded(order), "compaction")
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def _guarded(self, order: Order) -> Checkpoint | None:
        run = _Run(self._store, order, self._metrics)
        known = self._failed.get(order.recorded.session_key, ())
        mark = fingerprint(
            order.plan,
            prompt_version=self._prompt_version,
            route=order.route.name,
            min_gain=min_gain(order.budget, self._policy, order.plan.trigger, order.plan.tokens_before),
        )
        if mark.hash in known:
            await run.note("planning", "suppressed", "an equal attempt has failed before")
            return None
        if self._routes.backs_off(order.route.name):
            await run.note("planning", "suppressed", "the summariser is left alone for a while")
            return None
        try:
            async with asyncio.timeout(self._timeout):
                return await self._compact(order, run)
        except (SummaryError, TimeoutError) as error:
            passing = isinstance(error, TimeoutError) or error.passing
            if passing:
                retry_after = 0.0 if isinstance(error, TimeoutError) else error.retry_after
                self._routes.summary_failed(order.route.name, retry_after)
            reason = error.reason if isinstance(error, SummaryError) else f"not done within {self._timeout:g} s"
            await run.failed("generation", reason)
            deterministic = not passing
        except InvalidSummaryError as error:
            await run.failed("validation", str(error))
            deterministic = True
        except _RefusedError as error:
            await run.failed("validation", str(error))
            deterministic = True
        except StoreError as error:
            await run.failed("persistence", str(error))
            deterministic = False
        if deterministic:
            self._failed[order.recorded.session_key] = remember(known, mark)
        return None

    async def _compact(self, order: Order, run: _Run) -> Checkpoint | None:
        await run.started()
        order, candidate = await self._candidate(order, run)
        try:
            checkpoint = self._checkpoint(order, candidate)
        except _RefusedError as error:
            if order.plan.level is not Level.SEGMENTED:
                raise
            # One more segment does not make it shorter: one record in the place of all may (R7.5).
            await run.note("validation", "skipped", f"{error}; all segments are replaced")
            order, candidate = await self._candidate(replace(order, plan=replace(order.plan, level=Level.SESSION)), run)
            checkpoint = self._checkpoint(order, candidate)
        commit = await self._commit(order, checkpoint)
        if commit is not checkpoint:
            await run.note("persistence", "skipped", OVERTAKEN)
            return commit
        self._failed.pop(order.recorded.session_key, None)
        self._routes.summary_succeeded(order.route.name)
        await run.done(checkpoint)
        return checkpoint

    async def _candidate(self, order: Order, run: _Run) -> tuple[Order, Candidate]:
        """What the compactor makes of the plan, or of a shorter one where its own request overflows (R9.4)."""
        summariser = order.summariser(run.sending, run.used)
        attempts = 0
        while True:
            window = self._routes.window(order.route)
            job = Job(order.plan, order.conversation, summariser, window, order.ratio)
            try:
                return order, await self._compactor.compact(job)
            except SummaryError as error:
                attempts += 1
                shorter = await self._retreated(order, attempts) if error.overflow else None
                if shorter is None:
                    raise
                order = replace(order, plan=shorter)
                await run.note("generation", "skipped", shorter.reason)

    async def _retreated(self, order: Order, attempts: int) -> Plan | None:
        path = order.conversation.path
        if attempts == 1:
            known = await self._store.boundaries(order.conversation.tenant, path, order.route.name)
            accepted = [(boundary.through_seq, boundary.checkpoint_id) for boundary in known]
            if shorter := to_boundary(order.plan, path, accepted):
                return shorter
        return to_half(order.plan, path) if attempts <= MOST_HALVINGS else None

    def _checkpoint(self, order: Order, candidate: Candidate) -> Checkpoint:
        """The candidate as a checkpoint with its size measured. Raises `_RefusedError` (R9.2)."""
        plan, conversation = order.plan, order.conversation
        draft = new_checkpoint(
            plan,
            candidate.segments,
            session_id=order.recorded.session,
            model=candidate.model,
            prompt_version=self._prompt_version,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            tokens_after=0,
            provider_route=order.route.name if candidate.provider_state is not None else None,
            provider_state=candidate.provider_state,
        )
        after = projected_tokens(conversation.path, conversation.overhead, order.ratio, draft, order.measure(draft))
        current_id = plan.previous.checkpoint_id if plan.previous else None
        why_not = refusal(
            plan,
            draft,
            conversation.path,
            current_id,
            self._policy,
            order.budget,
            after,
            route=order.route.name,
            prompt_version=self._prompt_version,
        )
        if why_not is not None:
            raise _RefusedError(why_not)
        return replace(draft, tokens_after=after)

    async def _commit(self, order: Order, checkpoint: Checkpoint) -> Checkpoint | None:
        """The checkpoint if it was committed, else the one that was there first (R9.2, R9.3)."""
        commit = await self._store.commit_checkpoint(
            order.conversation.tenant, order.recorded.session_key, checkpoint, order.conversation.path, order.read
        )
        return checkpoint if commit.committed else commit.winner


class _RefusedError(Exception):
    """A valid summary that may not be committed (R9.2)."""


class _Run:
    """What one compaction writes: log entries, log lines, metrics."""

    def __init__(self, store: Store, order: Order, metrics: Metrics) -> None:
        self._store = store
        self._order = order
        self._metrics = metrics
        self._began = time.monotonic()

    async def started(self) -> None:
        plan = self._order.plan
        await self._append(entries.STARTED, {**self._facts(), "reason": plan.reason})

    async def sending(self, body: bytes) -> None:
        """A summary request is about to be sent: its bytes stand in the log first."""
        await self._append(
            entries.DIAGNOSTIC,
            {**self._facts(), "stage": "generation", "request": hashlib.sha256(body).hexdigest()},
            [body],
        )

    async def used(self, usage: Usage) -> None:
        """A summary was answered: its tokens are counted to the caller (R8.2)."""
        row = usage_row(self._order.route.name, "compaction", usage, time.time())
        await self._store.add_usage(self._order.conversation.tenant, row)

    async def note(self, stage: str, outcome: str, reason: str) -> None:
        """A decision that is no failure."""
        await self._diagnose(entries.DIAGNOSTIC, stage, outcome, reason)

    async def failed(self, stage: str, reason: str) -> None:
        """It came to nothing; the request goes on with what is valid (R13.1)."""
        try:
            await self._diagnose(entries.FAILED, stage, "failed_open", reason)
        except StoreError as error:
            log.error("store_failed", what="compaction", error=str(error))

    async def done(self, checkpoint: Checkpoint) -> None:
        """It was committed; the entry `compaction_completed` is part of that transaction."""
        await self._diagnose(
            entries.DIAGNOSTIC,
            "complete",
            "compacted",
            self._order.plan.reason,
            checkpoint=checkpoint.checkpoint_id,
            tokens_after=checkpoint.tokens_after,
        )

    async def _diagnose(self, kind: str, stage: str, outcome: str, reason: str, **more: Any) -> None:
        plan = self._order.plan
        facts = {
            **self._facts(),
            "stage": stage,
            "outcome": outcome,
            "reason": reason,
            "milliseconds": round((time.monotonic() - self._began) * 1000),
            **more,
        }
        log.info("compaction", session=self._order.recorded.session, **facts)
        self._metrics.compaction(plan.trigger, plan.phase, outcome)
        await self._append(kind, facts)

    def _facts(self) -> dict[str, Any]:
        plan = self._order.plan
        return {
            "trigger": plan.trigger.value,
            "phase": plan.phase.value,
            "level": plan.level.value,
            "route": self._order.route.name,
            "from_seq": plan.from_seq,
            "through_seq": plan.through_seq,
            "head_anchor_seq": plan.head_anchor_seq,
            "tokens_before": plan.tokens_before,
        }

    async def _append(self, kind: str, data: dict[str, Any], bodies: Sequence[bytes] = ()) -> None:
        entry = Entry(kind, data, bodies=bodies)
        await self._store.append(self._order.conversation.tenant, self._order.recorded.session_key, [entry])
