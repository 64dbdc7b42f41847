"""SQLite files, opened as a worker and as an operator."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from store.sqlite import SqliteStore
from tests.store.talk import Talk


@contextlib.contextmanager
def sql(file: Path) -> Iterator[sqlite3.Connection]:
    """The file as an operator opens it."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


@contextlib.asynccontextmanager
async def opened(file: Path) -> AsyncIterator[Talk]:
    """A worker's store, and a client that talks to it."""
    store = SqliteStore(file)
    await store.open()
    try:
        yield Talk(store)
    finally:
        await store.close()
