"""A session's row and its log: numbering and appending."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from store.codec import clean_text, dump_json
from store.errors import NotFoundError
from store.rows import Entry
from store.sqlite.tree import put_session_bodies

ROWS_AT_ONCE = 8
_INSERTS = [
    "INSERT INTO log (session, n, kind, at, node, data) VALUES " + ", ".join(["(?, ?, ?, ?, ?, ?)"] * count)  # noqa: S608 - question marks only
    for count in range(ROWS_AT_ONCE + 1)
]
"""One statement for several rows: most of what a row costs is the call."""
_NODE = """
WITH RECURSIVE up (id, parent, name) AS (
    SELECT n.id, n.parent, n.name FROM branch b JOIN node n ON n.id = b.head WHERE b.session = ?
    UNION SELECT n.id, n.parent, n.name FROM up JOIN node n ON n.id = up.parent
) SELECT id FROM up WHERE name = ? LIMIT 1
"""
LogRow = tuple[str, int | None, str]
"""Kind, node id, JSON text."""


def find_session(connection: sqlite3.Connection, tenant: int, name: str) -> int | None:
    """A session's key by its public id."""
    sql = "SELECT id FROM session WHERE tenant = ? AND name = ?"
    row = connection.execute(sql, (tenant, clean_text(name))).fetchone()
    return row[0] if row else None


def new_session(connection: sqlite3.Connection, tenant: int, name: str, at: float) -> int:
    """A new session's key."""
    sql = "INSERT INTO session (tenant, name, created_at, last_request_at) VALUES (?, ?, ?, ?)"
    key = connection.execute(sql, (tenant, clean_text(name), at, at)).lastrowid
    assert key is not None
    return key


def reserve(connection: sqlite3.Connection, tenant: str, session: int, count: int) -> tuple[int, int]:
    """Take `count` numbers of a session's log; returns the tenant's id and the first number.

    Raises NotFoundError if the session was deleted, or is another tenant's (R3.1).
    """
    sql = (
        "UPDATE session SET next_n = next_n + ? WHERE id = ? AND tenant = (SELECT id FROM tenant WHERE name = ?) "
        "RETURNING tenant, next_n"
    )
    row = connection.execute(sql, (count, session, clean_text(tenant))).fetchone()
    if row is None:
        raise NotFoundError(f"no session {session} of this tenant")
    return row[0], row[1] - count


def insert_rows(connection: sqlite3.Connection, session: int, at: float, first: int, rows: Sequence[LogRow]) -> None:
    """Write entries under numbers that were reserved."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        values: list[object] = []
        for n, (kind, node, data) in enumerate(part, first + start):
            values += (session, n, kind, at, node, data)
        connection.execute(_INSERTS[len(part)], values)


def append_entries(
    connection: sqlite3.Connection, tenant: str, session: int, at: float, entries: Sequence[Entry]
) -> list[int]:
    """Append entries, with the bodies that they speak of; returns their numbers."""
    owner, first = reserve(connection, tenant, session, len(entries))
    rows: list[LogRow] = []
    for entry in entries:
        put_session_bodies(connection, owner, session, entry.bodies)
        node = None if entry.node is None else _node(connection, session, entry.node)
        rows.append((entry.kind, node, dump_json(dict(entry.data))))
    insert_rows(connection, session, at, first, rows)
    return list(range(first, first + len(rows)))


def _node(connection: sqlite3.Connection, session: int, name: bytes) -> int:
    """The node of that name on one of the session's paths."""
    row = connection.execute(_NODE, (session, name)).fetchone()
    if row is None:
        raise NotFoundError(f"no node {name.hex()} in session {session}")
    node: int = row[0]
    return node
