"""One connection, one thread, many callers: work is gathered while the thread is busy and then done in one hop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import aiosqlite

from store.errors import StoreError, store_error

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]
Outcome = tuple[Any, StoreError | None]
_Item = tuple[Work, "asyncio.Future[Any]"]
Batch = Callable[[sqlite3.Connection, Sequence[Work]], list[Outcome]]

MAX_BATCH = 128
"""Items of one transaction: bounds what one caller waits for, and what one failed commit takes with it."""


async def hop(connection: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run a function on the connection's own thread. Every access to SQLite goes through here.

    aiosqlite offers one hop per statement; a transaction in one hop is three times as fast.
    """
    result: T = await connection._execute(work, connection._conn)  # type: ignore[no-untyped-call]  # noqa: SLF001 see above
    return result


def post(connection: aiosqlite.Connection, work: Callable[[], T]) -> asyncio.Future[T]:
    """As `hop`, without a coroutine: hand the function over, and get the future of its result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    connection._tx.put_nowait((future, work))  # noqa: SLF001 see `hop`
    return future


def write_together(connection: sqlite3.Connection, batch: Sequence[Work]) -> list[Outcome]:
    """Run a batch in one transaction; an item that fails takes only itself back (R4.5).

    Failures are rare and savepoints cost, so the batch is first tried without. If anything fails, the whole batch is
    taken back and done again with each item in a savepoint of its own.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:  # another process has held the lock for too long: waiting again would not help
        return _all_failed(connection, batch, error)
    try:
        outcomes: list[Outcome] = [(work(connection), None) for work in batch]
        connection.execute("COMMIT")
    except Exception:  # noqa: BLE001 whatever it was, the second try tells it to the caller it belongs to
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return _write_apart(connection, batch)
    return outcomes


def _write_apart(connection: sqlite3.Connection, batch: Sequence[Work]) -> list[Outcome]:
    """The batch with each item in a savepoint.

    Some errors (a full disk) make SQLite roll the whole transaction back; then the whole batch has failed.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        outcomes: list[Outcome] = []
        for work in batch:
            outcomes.append(_in_savepoint(connection, work))
            if not connection.in_transaction:  # a savepoint would now open a transaction of its own
                return [(None, outcomes[-1][1])] * len(batch)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        return _all_failed(connection, batch, error)
    return outcomes


def _all_failed(connection: sqlite3.Connection, batch: Sequence[Work], error: sqlite3.Error) -> list[Outcome]:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    return [(None, store_error(error))] * len(batch)


def _in_savepoint(connection: sqlite3.Connection, work: Work) -> Outcome:
    connection.execute("SAVEPOINT item")
    try:
        value = work(connection)
    except Exception as error:  # noqa: BLE001 whatever an item does wrong belongs to its caller alone
        if connection.in_transaction:
            connection.execute("ROLLBACK TO item")
            connection.execute("RELEASE item")
        return None, store_error(error)
    connection.execute("RELEASE item")
    return value, None


def read_together(connection: sqlite3.Connection, batch: Sequence[Work]) -> list[Outcome]:
    """Run a batch of reads on one snapshot."""
    try:
        connection.execute("BEGIN")
        outcomes = [_read(connection, work) for work in batch]
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        return _all_failed(connection, batch, error)
    return outcomes


def _read(connection: sqlite3.Connection, work: Work) -> Outcome:
    try:
        return work(connection), None
    except Exception as error:  # noqa: BLE001 whatever an item does wrong belongs to its caller alone
        return None, store_error(error)


class Lane:
    """Callers' work on one connection, a batch per hop. While one batch runs, the next gathers."""

    def __init__(self, connection: aiosqlite.Connection, batch: Batch) -> None:
        self._connection = connection
        self._batch = batch
        self._queue: list[_Item] = []
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The function's result. Raises StoreError. A caller that is cancelled leaves its work to be done."""
        if self._closed:
            raise StoreError("closed", "the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append((work, future))
        if self._idle.is_set():
            self._idle.clear()
            # Not at once: what else this turn of the loop brings goes with it.
            loop.call_soon(self._begin)
        return await future

    async def close(self) -> None:
        """Do what is queued, then close the connection."""
        self._closed = True
        await self._idle.wait()
        await self._connection.close()

    def _begin(self) -> None:
        """Hand over what has gathered."""
        items, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
        work = partial(self._batch, self._connection._conn, [work for work, _ in items])  # noqa: SLF001 see `hop`
        post(self._connection, work).add_done_callback(partial(self._ended, items))

    def _ended(self, items: Sequence[_Item], batch: asyncio.Future[list[Outcome]]) -> None:
        """Begin the next batch, then tell the callers of this one."""
        if self._queue:
            self._begin()
        else:
            self._idle.set()
        # The lane outlives a hop that fails; its callers are told.
        error = batch.exception()
        outcomes = batch.result() if error is None else [(None, store_error(error))] * len(items)
        for (_, future), (value, failure) in zip(items, outcomes, strict=True):
            if future.done():  # the caller was cancelled
                continue
            if failure is None:
                future.set_result(value)
            else:
                future.set_exception(failure)
