"""Supervised background tasks: the only place that creates tasks which outlive a request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")
log = structlog.get_logger("palimpsest.tasks")


class Supervisor:
    """Keeps references to running tasks, logs what they raise, and waits for them at shutdown (R15.6)."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start `work`. A failure that nobody awaits is logged, never lost."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("task_failed", task=task.get_name(), error=type(error).__name__, exc_info=error)

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for what runs, then cancel the rest."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1)
