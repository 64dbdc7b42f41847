"""What is known of each route: its window, and what its provider has taught (R5.1, R5.4, R10.4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import structlog

from compaction.failures import Backoff
from compaction.size import AcceptedInput, Calibration, LearnedLimit, accepted, effective_window, learn
from gateway.overflow import Verdict
from gateway.settings import Route
from gateway.tasks import Supervisor
from store.errors import StoreError
from store.protocol import Store
from store.rows import RouteState

SAVE_AFTER = 5.0
"""Seconds between two writes of what changes with every answer; what changes decisions is written at once."""

log = structlog.get_logger("palimpsest.routes")


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Everything learned about one route."""

    calibration: Calibration = field(default=Calibration())
    limit: LearnedLimit | None = None
    taken: AcceptedInput | None = None
    refused: frozenset[str] = frozenset()
    """Members of the gateway's own that the provider refused (R2.10 c)."""
    limit_name: str | None = None
    """The output-limit parameter that summaries use, once the other was refused (R8.2)."""
    backoff: Backoff = field(default=Backoff())

    def to_data(self) -> dict[str, Any]:
        """As JSON-like data. The back-off is of this process only: another may have better luck."""
        return {
            "ratios": list(self.calibration.ratios),
            "limit": asdict(self.limit) if self.limit else None,
            "taken": asdict(self.taken) if self.taken else None,
            "refused": sorted(self.refused),
            "limit_name": self.limit_name,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Knowledge:
        """The reverse of `to_data`."""
        return cls(
            calibration=Calibration(tuple(data["ratios"])),
            limit=LearnedLimit(**data["limit"]) if data["limit"] else None,
            taken=AcceptedInput(**data["taken"]) if data["taken"] else None,
            refused=frozenset(data["refused"]),
            limit_name=data["limit_name"],
        )


class RouteBook:
    """What this process knows of routes; kept in the store, so that it survives a restart."""

    def __init__(
        self,
        store: Store,
        tasks: Supervisor,
        listed_window: Callable[[str, str | None], int | None],
        shipped_window: Callable[[str, str], int | None],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._listed_window = listed_window
        self._shipped_window = shipped_window
        self._known: dict[str, Knowledge] = {}
        self._saved_at: dict[str, float] = {}

    async def load(self) -> None:
        """Read what was learned before."""
        for state in await self._store.route_states():
            self._known[state.route] = Knowledge.from_data(state.data)

    def window(self, route: Route) -> int | None:
        """The window to plan with, in tokens; None if nothing is known (R5.1)."""
        window = route.context_window or self._listed_window(route.upstream.name, route.model)
        if window is None and route.model is not None:
            window = self._shipped_window(route.model, route.upstream.base_url)
        return effective_window(window, self._of(route.name).limit, time.time())

    def ratio(self, route: Route) -> float:
        """The calibration of the route's estimates (R5.4)."""
        return self._of(route.name).calibration.ratio

    def accepted(self, route: Route, estimate: int, reported: int) -> None:
        """Learn from an answer: `estimate` is uncalibrated, `reported` are the provider's prompt tokens (R5.4)."""
        known = self._of(route.name)
        self._known[route.name] = replace(
            known,
            calibration=known.calibration.with_sample(estimate, reported),
            taken=accepted(known.taken, reported, time.time()),
        )
        if time.monotonic() - self._saved_at.get(route.name, -SAVE_AFTER) >= SAVE_AFTER:
            self._save(route.name)

    def learn_limit(self, route: Route, verdict: Verdict, estimate: int) -> None:
        """Learn from an input overflow of a request with this calibrated estimate (R10.4)."""
        known = self._of(route.name)
        limit = learn(known.limit, stated=verdict.limit, estimate=estimate, accepted_input=known.taken, now=time.time())
        log.warning("limit_learned", route=route.name, stated=verdict.limit, limit=limit.limit if limit else None)
        self._put(route.name, replace(known, limit=limit))

    def learn_truncation(self, route: Route, reported: int) -> None:
        """Learn from an answer that did not see its whole input (R5.6)."""
        known = self._of(route.name)
        limit = learn(known.limit, stated=reported, estimate=reported, accepted_input=None, now=time.time())
        self._put(route.name, replace(known, limit=limit))

    def refused_members(self, route: str) -> AbstractSet[str]:
        """Members of the gateway's own that this route does not take (R2.10 c)."""
        return self._of(route).refused

    def refuse_member(self, route: str, name: str) -> None:
        """Remember that a 4xx named a member which only the gateway had asked for."""
        known = self._of(route)
        self._put(route, replace(known, refused=known.refused | {name}))

    def limit_name(self, route: str) -> str | None:
        """The output-limit parameter for summaries, where one was refused before (R8.2)."""
        return self._of(route).limit_name

    def use_limit_name(self, route: str, name: str) -> None:
        """Remember which output-limit parameter is taken."""
        self._put(route, replace(self._of(route), limit_name=name))

    def backs_off(self, route: str) -> bool:
        """Whether the summariser is left alone for now (R13.3)."""
        return self._of(route).backoff.waits(time.time())

    def summary_failed(self, route: str, retry_after: float) -> None:
        """A network error, 429 or 5xx of the summariser (R13.3)."""
        known = self._of(route)
        self._known[route] = replace(known, backoff=known.backoff.failed(time.time(), retry_after))

    def summary_succeeded(self, route: str) -> None:
        """The summariser works again."""
        self._known[route] = replace(self._of(route), backoff=Backoff())

    def _of(self, route: str) -> Knowledge:
        return self._known.get(route, _NOTHING)

    def _put(self, route: str, knowledge: Knowledge) -> None:
        self._known[route] = knowledge
        self._save(route)

    def _save(self, route: str) -> None:
        self._saved_at[route] = time.monotonic()
        self._tasks.spawn(self._write(RouteState(route, self._known[route].to_data())), "save_route")

    async def _write(self, state: RouteState) -> None:
        try:
            await self._store.save_route(state)
        except StoreError as error:
            log.error("store_failed", what="route", error=str(error))


_NOTHING = Knowledge()
