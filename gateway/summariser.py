"""Asks a model for one summary, with the caller's own credential (R8.2), and says how it went."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from compaction.validation import SummaryAnswer, read_answer
from gateway.answer import Answer
from gateway.answer import read_answer as read_upstream
from gateway.destination import Destination
from gateway.overflow import RequestFacts
from gateway.reply import Usage, usage_numbers
from gateway.routes import RouteBook
from gateway.settings import Route
from gateway.upstream import UpstreamClient, UpstreamError

OnSend = Callable[[bytes], Awaitable[None]]
OnUsage = Callable[[Usage], Awaitable[None]]
LIMIT_NAMES = ("max_tokens", "max_completion_tokens")


class SummaryError(Exception):
    """No summary came back. `overflow`: its own input was too long (R9.4); `passing`: trying later may help (R13.3)."""

    def __init__(self, reason: str, *, overflow: bool = False, passing: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.overflow = overflow
        self.passing = passing
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Summariser:
    """One caller's way to a model that summarises."""

    upstream: UpstreamClient
    routes: RouteBook
    route: Route
    destination: Destination
    limit_name: str | None
    """The parameter that the caller's own request limits its output with."""
    reasoning: bool
    """The caller's request carries `reasoning_effort`, so the summary's carries `low`."""
    timeout: float
    """Seconds for one call."""
    on_send: OnSend
    """Told of each body before it is sent: every request stands in the log."""
    on_usage: OnUsage

    async def ask(self, messages: Sequence[Mapping[str, Any]], limit: int, estimate: int) -> SummaryAnswer:
        """One summary request. Raises `SummaryError`."""
        try:
            async with asyncio.timeout(self.timeout):
                return await self._ask(messages, limit, estimate)
        except TimeoutError as error:
            raise SummaryError(f"no summary within {self.timeout:g} s", passing=True) from error
        except UpstreamError as error:
            raise SummaryError(f"upstream {error.failure}", passing=True) from error

    async def _ask(self, messages: Sequence[Mapping[str, Any]], limit: int, estimate: int) -> SummaryAnswer:
        first = self.routes.limit_name(self.route.name) or self.limit_name or LIMIT_NAMES[0]
        answer = await self._send(messages, first, limit, estimate)
        if _refuses(answer, first):
            other = next(name for name in LIMIT_NAMES if name != first)
            self.routes.use_limit_name(self.route.name, other)
            answer = await self._send(messages, other, limit, estimate)
        if not answer.ok:
            raise _failed(answer)
        usage = answer.value.get("usage") if isinstance(answer.value, dict) else None
        if isinstance(usage, dict):
            await self.on_usage(usage_numbers(usage))
        return read_answer(answer.value)

    async def _send(self, messages: Sequence[Mapping[str, Any]], name: str, limit: int, estimate: int) -> Answer:
        body = orjson.dumps(
            {"model": self.route.model, "messages": list(messages), name: limit}
            | ({"reasoning_effort": "low"} if self.reasoning else {})
        )
        await self.on_send(body)
        headers = self.destination.headers_for(changed=True, again=True)
        response = await self.upstream.send("POST", self.destination.url, headers, body, self.destination.timeouts)
        try:
            facts = RequestFacts(window=self.routes.window(self.route), output_limit=limit, estimate=estimate)
            answer = await read_upstream(response, facts, wants_stream=False)
        finally:
            await response.close()
        if answer.refused:
            self.routes.learn_limit(self.route, answer.verdict, estimate)
        return answer


def _refuses(answer: Answer, name: str) -> bool:
    """The provider does not know the parameter that limits the output."""
    return answer.response.status in {400, 422} and not answer.refused and name.encode() in answer.plain[:65_536]


def _failed(answer: Answer) -> SummaryError:
    status = answer.response.status
    if answer.refused:
        return SummaryError("the summary request overflows", overflow=True)
    passing = status in {408, 409, 425, 429} or status >= 500
    return SummaryError(
        f"status {status}", passing=passing, retry_after=_seconds(answer.response.header("retry-after"))
    )


def _seconds(value: str) -> float:
    return float(value) if value.isdigit() else 0.0
