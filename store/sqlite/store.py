"""The `Store` over SQLite: each call is one function on a lane; the functions are in the modules beside this one."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath

import aiosqlite

from compaction.types import Checkpoint, Path
from store.errors import StoreError, store_error
from store.migrations import migrate, read_steps
from store.protocol import CheckpointReader
from store.rows import (
    Boundary,
    BranchRow,
    Commit,
    ContextRows,
    Entry,
    LogEntry,
    Recorded,
    ReplyRecord,
    RequestRecord,
    RouteState,
    SessionRow,
    StoredRequest,
    UsageRow,
)
from store.sqlite import checkpoints, deletion, reading, requests, workers
from store.sqlite.lane import Lane, hop, read_together, write_together
from store.sqlite.log import append_entries

OLDEST_SQLITE = (3, 37, 0)
"""The first with strict tables."""
BUSY_TIMEOUT = 5.0
"""Seconds that a writer waits for another process."""
_STATEMENTS = 256
_WAL_RETRY = 0.02
_PRAGMAS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",  # else INSERT OR REPLACE gets past the log's triggers
    "PRAGMA cache_size = -16000",
    "PRAGMA wal_autocheckpoint = 4000",  # pages that many transactions change are copied back once
)


class SqliteStore:
    """The canonical history in one SQLite file. Use it on the event loop that opened it."""

    def __init__(self, path: FilePath, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._worker = 0
        self._lanes: _Lanes | None = None

    async def open(self) -> None:
        """Make the file if there is none, migrate it, and give up what workers that are gone had in flight."""
        connections: list[aiosqlite.Connection] = []
        try:
            make_file(self.path)
            for setting in (_prepare, _only_read, _only_read):
                connections.append(await _connect(self.path))
                self._worker = await hop(connections[-1], setting) or self._worker
        except Exception as error:
            for connection in connections:
                await connection.close()
            raise store_error(error) from error
        writer, hot, cold = connections
        # Two readers, so that no long read of an operator's holds up a request.
        self._lanes = _Lanes(Lane(writer, write_together), Lane(hot, read_together), Lane(cold, read_together))

    async def close(self) -> None:
        """Finish what is queued, then close."""
        lanes, self._lanes = self._lanes, None
        if lanes is None:
            return
        try:
            await lanes.write.do(partial(workers.resign, worker=self._worker))
        finally:
            for lane in (lanes.write, lanes.hot, lanes.cold):
                await lane.close()

    @property
    def _open(self) -> _Lanes:
        if self._lanes is None:
            raise StoreError("closed", "the store is not open")
        return self._lanes

    async def record_request(self, record: RequestRecord) -> Recorded:
        """Decide where the request belongs (R3.5-R3.8) and write what is new in it."""
        return await self._open.write.do(partial(requests.record_request, worker=self._worker, record=record))

    async def record_reply(self, record: ReplyRecord) -> None:
        """Write the `response` entry, the accepted boundary and the usage; ends the request's flight."""
        await self._open.write.do(partial(requests.record_reply, record=record))

    async def append(self, tenant: str, session_key: int, entries: Sequence[Entry]) -> Sequence[int]:
        """Append entries to a session's log; returns their numbers."""
        work = partial(append_entries, tenant=tenant, session=session_key, at=self._clock(), entries=entries)
        return await self._open.write.do(work)

    async def read_context(self, tenant: str, path: Path, route: str, read: CheckpointReader) -> ContextRows:
        """The valid checkpoint that covers most of the path (R3.4), and the route's state."""
        work = partial(checkpoints.read_context, tenant=tenant, path=path, route=route, read=read)
        return await self._open.hot.do(work)

    async def completed_checkpoints(self, tenant: str, path: Path) -> Sequence[str]:
        """JSON texts of `compaction_completed` entries whose source digest is on the path, newest first (R7.6)."""
        return await self._open.cold.do(partial(checkpoints.completed_checkpoints, tenant=tenant, path=path))

    async def repair_checkpoint(self, tenant: str, drop: Sequence[str], replacement: Checkpoint | None) -> None:
        """Replace invalid checkpoint rows by one rebuilt from the log, or drop them (R7.6)."""
        work = partial(checkpoints.repair_checkpoint, tenant=tenant, drop=drop, replacement=replacement)
        await self._open.write.do(work)

    async def commit_checkpoint(
        self, tenant: str, session_key: int, checkpoint: Checkpoint, path: Path, read: CheckpointReader
    ) -> Commit:
        """Write the row and its `compaction_completed` entry, if `previous_checkpoint_id` is still current (R9.2)."""
        work = partial(
            checkpoints.commit_checkpoint,
            tenant=tenant,
            session=session_key,
            checkpoint=checkpoint,
            path=path,
            read=read,
            at=self._clock(),
        )
        return await self._open.write.do(work)

    async def boundaries(self, tenant: str, path: Path, route: str) -> Sequence[Boundary]:
        """What the route accepted on this path, largest first (R10.5)."""
        return await self._open.cold.do(partial(checkpoints.boundaries, tenant=tenant, path=path, route=route))

    async def route_states(self) -> Sequence[RouteState]:
        """Everything learned about routes."""
        return await self._open.cold.do(reading.route_states)

    async def save_route(self, state: RouteState) -> None:
        """Replace what is known of a route."""
        await self._open.write.do(partial(requests.save_route, state=state))

    async def add_usage(self, tenant: str, row: UsageRow) -> None:
        """Count tokens that belong to no reply (a summary)."""
        await self._open.write.do(partial(requests.add_usage_of, tenant=tenant, row=row))

    async def sessions(self, tenant: str | None, limit: int = 100, before: float | None = None) -> Sequence[SessionRow]:
        """Sessions, newest request first; of one tenant, or of all."""
        return await self._open.cold.do(partial(reading.sessions, tenant=tenant, limit=limit, before=before))

    async def find_session(self, tenant: str | None, session: str) -> SessionRow | None:
        """One session by its public id."""
        return await self._open.cold.do(partial(reading.find_session, tenant=tenant, session=session))

    async def branches(self, session_key: int) -> Sequence[BranchRow]:
        """The session's branches, newest first."""
        return await self._open.cold.do(partial(reading.branches, session=session_key))

    async def log(self, session_key: int, after: int = 0, limit: int = 1000) -> Sequence[LogEntry]:
        """The session's log in order."""
        return await self._open.cold.do(partial(reading.log, session=session_key, after=after, limit=limit))

    async def history(self, tenant: str, head: bytes) -> Sequence[bytes]:
        """The exact bytes of the messages from the root to the node `head`."""
        return await self._open.cold.do(partial(reading.history, tenant=tenant, head=head))

    async def request(self, session_key: int, n: int) -> StoredRequest:
        """A recorded request, whole."""
        return await self._open.cold.do(partial(reading.request, session=session_key, n=n))

    async def body(self, tenant: str, sha256: bytes) -> bytes:
        """A stored byte string by its SHA-256."""
        return await self._open.cold.do(partial(reading.body, tenant=tenant, sha256=sha256))

    async def delete_session(self, session_key: int) -> None:
        """Remove a session, and the nodes and bodies that no other session's request uses (R3.6, R4.3)."""
        await self._open.write.do(partial(deletion.delete_session, session=session_key))


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The connections of an open store."""

    write: Lane
    hot: Lane
    """Reads that a request waits for."""
    cold: Lane


def make_file(path: FilePath) -> None:
    """Make the database's file, for its owner alone, and the directories that it lacks (R4.5).

    SQLite gives its own side files the same mode. What exists keeps its mode.
    """
    for directory in reversed(path.absolute().parents):
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)  # another worker may start at the same time
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


async def _connect(path: FilePath) -> aiosqlite.Connection:
    connecting = aiosqlite.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, cached_statements=_STATEMENTS)
    connecting._thread.daemon = True  # noqa: SLF001 else a process that dies without `close` never ends
    return await connecting


def _prepare(connection: sqlite3.Connection) -> int:
    """Make the writer's connection ready and the schema current; returns this worker's id."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError("unsupported", f"SQLite {sqlite3.sqlite_version} is too old; {wanted} is needed")
    _use_wal(connection)
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    migrate(connection, read_steps())
    connection.execute("BEGIN IMMEDIATE")
    worker = workers.register(connection)
    connection.execute("COMMIT")
    return worker


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. Where several workers start at once SQLite refuses without waiting."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_WAL_RETRY)
        else:
            if mode != "wal":
                raise StoreError("unsupported", f"the file system has no write-ahead logging (mode {mode})")
            return


def _only_read(connection: sqlite3.Connection) -> int:
    connection.execute("PRAGMA query_only = ON")
    return 0
