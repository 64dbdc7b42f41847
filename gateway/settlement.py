"""What a whole answer teaches: usage, calibration, and how much the route accepted (R5.4, R5.6, R10.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from compaction.size import looks_truncated
from gateway.answer import Answer
from gateway.compiled import Compiled
from gateway.recording import Outcome
from gateway.reply import Reply, Usage, usage_numbers
from gateway.routes import RouteBook
from gateway.settings import Route
from store.rows import Boundary

log = structlog.get_logger("palimpsest.settlement")


@dataclass(frozen=True, slots=True)
class Settlement:
    """Adds to the outcome of one exchange what is to be stored with it."""

    routes: RouteBook
    route: Route
    compiled: Compiled

    def __call__(self, answer: Answer, reply: Reply | None, outcome: Outcome) -> Outcome:
        """The outcome with usage and accepted boundary; the route's knowledge is updated on the way."""
        sent = self.compiled.sent.to_log()
        if reply is None or reply.usage is None:
            return replace(outcome, sent=sent)
        usage = usage_numbers(reply.usage)
        boundary = self._accepted(usage) if answer.ok and outcome.error is None else None
        return replace(outcome, sent=sent, spent=usage, boundary=boundary)

    def _accepted(self, usage: Usage) -> Boundary | None:
        """What the route took, unless it does not say so."""
        if usage.prompt is None:
            return None
        if looks_truncated(self.compiled.after, usage.prompt):
            # R5.6: the server cut the input and said nothing.
            log.warning("input_truncated", route=self.route.name, estimate=self.compiled.after, reported=usage.prompt)
            self.routes.learn_truncation(self.route, usage.prompt)
            return None
        self.routes.accepted(self.route, self.compiled.raw_after, usage.prompt)
        return self._boundary(usage.prompt, usage.completion or 0)

    def _boundary(self, prompt: int, completion: int) -> Boundary:
        path = self.compiled.conversation.path
        return Boundary(
            route=self.route.name,
            digest=path.digests[-1],
            through_seq=len(path),
            checkpoint_id=self.compiled.sent.checkpoint_id,
            input_tokens=prompt,
            output_tokens=completion,
            payload_bytes=len(self.compiled.body),
        )
