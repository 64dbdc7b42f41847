"""From a path to what is sent: ask the planner, carry out what it decides (DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from compaction.checkpoint import current as newest_valid
from compaction.checkpoint import damage, from_json, why_invalid
from compaction.planner import Situation, plan
from compaction.projection import checkpoint_text
from compaction.size import PER_MESSAGE, budget
from compaction.tool_results import before_newest_group, large_results
from compaction.types import Budget, Checkpoint, Compact, Decision, Path, Policy, Trigger, Verbatim
from gateway.cache import GenerationCache
from gateway.compaction_runs import CompactionRuns, Order, SummariserFactory
from gateway.compiled import NOTICE_TOKENS, Compiled, Sent, added_members, compile_body
from gateway.conversation import Conversation
from gateway.routes import RouteBook
from gateway.settings import Route
from gateway.tokens import TokenCounter
from store.errors import StoreError
from store.protocol import Store
from store.rows import Recorded

log = structlog.get_logger("palimpsest.context")


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of a request before it is sent, and what the planner says to that."""

    conversation: Conversation
    route: Route
    checkpoint: Checkpoint | None
    budget: Budget
    ratio: float
    decision: Decision
    store_failed: bool = False

    def is_over(self, compiled: Compiled) -> bool:
        """What would be sent is still above high water, as far as is known."""
        high = self.budget.high
        return self.route.mode == "on" and not self.store_failed and high is not None and compiled.after > high

    @property
    def compacts(self) -> bool:
        """A compaction must be tried before the request is sent."""
        return isinstance(self.decision, Compact) and self.route.mode == "on"


class CheckpointsOnPath:
    """Reads stored checkpoints for one path, and notes which rows are damaged (R7.3, R7.6)."""

    def __init__(self, path: Path, route: str, prompt_version: str) -> None:
        self.path = path
        self.damaged = False
        self._route = route
        self._version = prompt_version

    def __call__(self, text: str) -> Checkpoint | None:
        """The checkpoint, if it is valid here."""
        checkpoint = from_json(text)
        if checkpoint is None or damage(checkpoint, prompt_version=self._version) is not None:
            self.damaged = True
            return None
        reason = why_invalid(checkpoint, self.path, route=self._route, prompt_version=self._version)
        return checkpoint if reason is None else None

    def best(self, texts: Sequence[str]) -> Checkpoint | None:
        """The valid one that covers most."""
        found = [checkpoint for checkpoint in map(from_json, texts) if checkpoint is not None]
        return newest_valid(found, self.path, route=self._route, prompt_version=self._version)


class ContextCompiler:
    """Compiles requests. Whatever goes wrong in compaction, there is something to be sent (R13.1)."""

    def __init__(
        self,
        *,
        store: Store,
        routes: RouteBook,
        runs: CompactionRuns,
        counter: TokenCounter,
        policy: Policy,
        prompt_version: str,
    ) -> None:
        self._store = store
        self._routes = routes
        self._runs = runs
        self._counter = counter
        self._policy = policy
        self._prompt_version = prompt_version
        self._tokens: GenerationCache[tuple[str, str], int] = GenerationCache(4096)

    async def look(self, conversation: Conversation, route: Route, trigger: Trigger) -> Outlook:
        """Read what applies to the path, and plan. A store that fails leaves the request verbatim (R4.4)."""
        checkpoint, failed = None, False
        if route.mode != "off":
            try:
                checkpoint = await self._checkpoint(conversation, route)
            except StoreError as error:
                log.error("store_failed", what="context", error=str(error))
                failed = True
        limits = budget(
            self._routes.window(route), conversation.request.output_limit, route.max_input_tokens, self._policy
        )
        ratio = self._routes.ratio(route)
        decision: Decision = Verbatim(conversation.tokens, "the store failed" if failed else "off")
        if route.mode != "off" and not failed:
            decision = plan(
                Situation(
                    path=conversation.path,
                    overhead=conversation.overhead,
                    checkpoint=checkpoint,
                    budget=limits,
                    policy=self._policy,
                    trigger=trigger,
                    ratio=ratio,
                    checkpoint_tokens=self.tokens_of(checkpoint, conversation.encoding),
                )
            )
        return Outlook(conversation, route, checkpoint, limits, ratio, decision, failed)

    async def _checkpoint(self, conversation: Conversation, route: Route) -> Checkpoint | None:
        tenant, path = conversation.tenant, conversation.path
        read = CheckpointsOnPath(path, route.name, self._prompt_version)
        rows = await self._store.read_context(tenant, path, route.name, read)
        if not read.damaged:
            return rows.checkpoint
        # R7.6: replaced from the newest valid event on the path; with none, dropped.
        best = read.best(await self._store.completed_checkpoints(tenant, path))
        log.warning("checkpoint_rows_damaged", rows=list(rows.invalid), recovered=best is not None)
        await self._store.repair_checkpoint(tenant, rows.invalid, best)
        return best or rows.checkpoint

    async def compact(
        self, outlook: Outlook, recorded: Recorded | None, summariser: SummariserFactory
    ) -> Checkpoint | None:
        """Carry out the compaction that the planner asked for: the checkpoint then in force, or None (R13.1)."""
        if not isinstance(outlook.decision, Compact) or recorded is None:
            return None
        conversation = outlook.conversation
        order = Order(
            plan=outlook.decision.plan,
            conversation=conversation,
            route=outlook.route,
            budget=outlook.budget,
            ratio=outlook.ratio,
            recorded=recorded,
            summariser=summariser,
            read=CheckpointsOnPath(conversation.path, outlook.route.name, self._prompt_version),
            measure=lambda checkpoint: self.tokens_of(checkpoint, conversation.encoding),
        )
        return await self._runs.run(order)

    def compile(self, outlook: Outlook, checkpoint: Checkpoint | None) -> Compiled:
        """The body to be sent with `checkpoint` in force; without one, the client's own (R12.4)."""
        conversation, route = outlook.conversation, outlook.route
        applied = checkpoint if route.mode == "on" else None
        sent = Sent(
            checkpoint_id=applied.checkpoint_id if applied else None,
            role=route.checkpoint_role,
            merge=route.merge_consecutive,
            parts=route.content_parts,
            members=added_members(conversation, route, self._routes.refused_members(route.name)),
        )
        tokens = self.tokens_of(applied, conversation.encoding)
        return compile_body(conversation, applied, tokens, sent, outlook.ratio)

    def shorten(self, outlook: Outlook, compiled: Compiled) -> Compiled | None:
        """The last relief: large results shortened, older ones first; None if there are none (R6.2, R10.3, R11.2)."""
        path, limit = outlook.conversation.path, self._policy.result_tokens
        covered = compiled.checkpoint.through_seq if compiled.checkpoint else 0
        large = large_results(path, covered, limit + NOTICE_TOKENS)
        relieved = None
        for seqs in dict.fromkeys((before_newest_group(path, large), large)):
            if not seqs:
                continue
            sent = replace(compiled.sent, shortened=seqs, result_tokens=limit)
            tokens = self.tokens_of(compiled.checkpoint, outlook.conversation.encoding)
            relieved = compile_body(outlook.conversation, compiled.checkpoint, tokens, sent, outlook.ratio)
            if outlook.budget.high is not None and relieved.after <= outlook.budget.high:
                break
        return relieved

    def tokens_of(self, checkpoint: Checkpoint | None, encoding: str) -> int:
        """Estimated tokens of the checkpoint message."""
        if checkpoint is None:
            return 0
        key = (checkpoint.checkpoint_id, encoding)
        tokens = self._tokens.get(key)
        if tokens is None:
            tokens = self._counter.count([checkpoint_text(checkpoint)], encoding)[0] + PER_MESSAGE
            self._tokens.put(key, tokens)
        return tokens
