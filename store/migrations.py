"""Numbered schema steps, each in one transaction, with a ledger of those that were applied."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from store.errors import StoreError

SCHEMA = Path(__file__).parent / "schema"
_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_LEDGER = (
    "CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at REAL NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One schema step: its number, its name, and its SQL."""

    number: int
    name: str
    sql: str


def read_steps(directory: Path = SCHEMA) -> list[Step]:
    """The steps of a directory, in order. Raises StoreError if their numbers are not 1, 2, 3, ..."""
    found = [(match, path) for path in sorted(directory.glob("*.sql")) if (match := _FILE_NAME.fullmatch(path.name))]
    steps = [Step(int(match[1]), match[2], path.read_text(encoding="utf-8")) for match, path in found]
    if [step.number for step in steps] != list(range(1, len(steps) + 1)):
        raise StoreError("failed", f"the schema steps in {directory} are not numbered 1, 2, 3, ...")
    return steps


def migrate(connection: sqlite3.Connection, steps: Sequence[Step]) -> int:
    """Apply the steps that the ledger does not name; returns how many. Several processes may do so at once.

    The connection must leave transactions to its user (`isolation_level=None`). Raises StoreError if the file was
    written by a newer version.
    """
    applied = 0
    connection.execute(_LEDGER)
    for step in steps:
        connection.execute("BEGIN IMMEDIATE")
        try:
            applied += _apply(connection, step)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    newest = connection.execute("SELECT coalesce(max(number), 0) FROM migration").fetchone()[0]
    if newest > len(steps):
        raise StoreError(
            "unsupported", f"the store was written by a newer version (schema {newest}, known {len(steps)})"
        )
    return applied


def _apply(connection: sqlite3.Connection, step: Step) -> bool:
    if connection.execute("SELECT 1 FROM migration WHERE number = ?", (step.number,)).fetchone():
        return False
    for statement in statements(step.sql):
        connection.execute(statement)
    connection.execute("INSERT INTO migration VALUES (?, ?, ?)", (step.number, step.name, time.time()))
    return True


def statements(script: str) -> Iterator[str]:
    """The statements of a script. `executescript` would commit before it runs, and so undo the transaction."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        raise StoreError("failed", f"a schema step ends inside a statement: {pending.strip()[:60]}")
