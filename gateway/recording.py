"""One request's entry in the canonical history, written beside the upstream call (R4.2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.errors import store_refused
from gateway.replies import reply_bodies, reply_keys
from gateway.reply import Reply, Usage
from gateway.tasks import Supervisor
from gateway.telemetry import Metrics
from store import entries
from store.errors import StoreError
from store.protocol import Store
from store.rows import Boundary, Entry, Recorded, ReplyRecord, RequestRecord, UsageRow

log = structlog.get_logger("palimpsest.recording")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an exchange with the provider ended, for the `response` entry (R4.1)."""

    status: int
    reply: Reply | None = None
    delivered_bytes: int = 0
    interrupted: bool = False
    error: str | None = None
    boundary: Boundary | None = None
    spent: Usage | None = None
    sent: Mapping[str, Any] | None = field(default=None)


class Recording:
    """Writes the request once and the response once, whatever happens in between.

    A store that fails never takes the request with it unless `refuse` is set (R4.4): then `recorded` raises 503.
    """

    def __init__(
        self, store: Store, tasks: Supervisor, metrics: Metrics, record: RequestRecord, *, refuse: bool
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._metrics = metrics
        self._refuse = refuse
        self._tenant = record.tenant
        self._route = record.route
        self._sent = record.sent
        self._closed = False
        self._task = tasks.spawn(self._write_request(record), "record_request")

    async def _write_request(self, record: RequestRecord) -> Recorded | None:
        try:
            return await self._store.record_request(record)
        except StoreError as error:
            self._failed("request", error)
            return None

    async def recorded(self) -> Recorded | None:
        """Where the request stands in the history, once it is committed; None if the store failed.

        Raises `GatewayError` (503) where the store must not fail.
        """
        recorded = self._task.result() if self._task.done() else await asyncio.shield(self._task)
        if recorded is None and self._refuse:
            raise store_refused()
        return recorded

    async def dispatch(self, sent: Mapping[str, Any]) -> None:
        """Enter how the body that is about to be sent follows from the client's, if that has changed since (R4.1)."""
        if sent == self._sent:
            return
        self._sent = sent
        recorded = await self.recorded()
        if recorded is None:
            return
        data = {"stage": "dispatch", "outcome": "sent", "request_n": recorded.request_n, "sent": sent}
        try:
            await self._store.append(self._tenant, recorded.session_key, [Entry(entries.DIAGNOSTIC, data)])
        except StoreError as error:
            self._failed("dispatch", error)

    async def close(self, outcome: Outcome) -> None:
        """Write the `response` entry; returns once it is committed. Only the first call writes."""
        if self._closed:
            return
        self._closed = True
        if self._task.done():
            # The store has the entry from the first step on, so a client that hangs up meanwhile does not take it back.
            await self._write_response(outcome)
        else:
            await asyncio.shield(self._tasks.spawn(self._write_response(outcome), "record_response"))

    async def _write_response(self, outcome: Outcome) -> None:
        recorded = await self.recorded()
        if recorded is None:
            return
        try:
            await self._store.record_reply(self._reply_record(recorded, outcome))
        except StoreError as error:
            self._failed("response", error)
            if self._refuse:
                raise store_refused() from error

    def abandon(self, outcome: Outcome) -> None:
        """Write the `response` entry in the background, for a client that is gone (R2.9)."""
        if not self._closed:
            self._closed = True
            self._tasks.spawn(self._write_response(outcome), "record_interrupted")

    def _reply_record(self, recorded: Recorded, outcome: Outcome) -> ReplyRecord:
        reply = outcome.reply
        now = time.time()
        return ReplyRecord(
            tenant=self._tenant,
            recorded=recorded,
            at=now,
            status=outcome.status,
            choices=reply_bodies(reply),
            keys=reply_keys(reply, interrupted=outcome.interrupted),
            finish_reason=reply.choices[0].finish_reason if reply and reply.choices else None,
            usage=reply.usage if reply else None,
            delivered_bytes=outcome.delivered_bytes,
            interrupted=outcome.interrupted,
            error=outcome.error,
            sent=outcome.sent,
            boundary=outcome.boundary,
            spent=usage_row(self._route, "chat", outcome.spent, now) if outcome.spent else None,
        )

    def _failed(self, what: str, error: StoreError) -> None:
        self._metrics.store_failure(what)
        log.error("store_failed", what=what, error=str(error))


def usage_row(route: str, kind: str, usage: Usage, at: float) -> UsageRow:
    """The usage of one answer, filed under its UTC day (R14.3)."""
    day = time.strftime("%Y-%m-%d", time.gmtime(at))
    return UsageRow(day, route, kind, usage.prompt or 0, usage.completion or 0, usage.cached, usage.reasoning)
