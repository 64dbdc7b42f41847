"""A session's row and its log: numbering and appending."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from store.codec import clean_text, dump_json
from store.errors import NotFoundError
from store.rows import Entry
from store.sqlite.tree import find_node, find_tenant, put_session_bodies

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


def tenant_of(connection: sqlite3.Connection, tenant: str, session: int) -> int:
    """The tenant's id, if the session is that tenant's (R3.1). Raises NotFoundError: it is not, or was deleted."""
    found = find_tenant(connection, tenant)
    sql = "SELECT 1 FROM session WHERE id = ? AND tenant = ?"
    if found is None or connection.execute(sql, (session, found)).fetchone() is None:
        raise NotFoundError(f"no session {session} of this tenant")
    return found


def reserve(connection: sqlite3.Connection, session: int, count: int) -> int:
    """Take `count` numbers of the log of a session that exists; returns the first."""
    sql = "UPDATE session SET next_n = next_n + ? WHERE id = ? RETURNING next_n"
    after: int = connection.execute(sql, (count, session)).fetchone()[0]
    return after - count


def insert_rows(connection: sqlite3.Connection, session: int, at: float, first: int, rows: Sequence[LogRow]) -> None:
    """Write entries under numbers that were reserved."""
    sql = "INSERT INTO log (session, n, kind, at, node, data) VALUES (?, ?, ?, ?, ?, ?)"
    connection.executemany(
        sql, [(session, n, kind, at, node, data) for n, (kind, node, data) in enumerate(rows, first)]
    )


def append_rows(connection: sqlite3.Connection, session: int, at: float, rows: Sequence[LogRow]) -> int:
    """Append to the log of a session that exists; returns the first entry's number."""
    first = reserve(connection, session, len(rows))
    insert_rows(connection, session, at, first, rows)
    return first


def append_entries(
    connection: sqlite3.Connection, tenant: str, session: int, at: float, entries: Sequence[Entry]
) -> list[int]:
    """Append entries, with the bodies that they speak of; returns their numbers."""
    owner = tenant_of(connection, tenant, session)
    rows: list[LogRow] = []
    for entry in entries:
        put_session_bodies(connection, owner, session, entry.bodies)
        node = None if entry.node is None else _node(connection, owner, entry.node)
        rows.append((entry.kind, node, dump_json(dict(entry.data))))
    first = append_rows(connection, session, at, rows)
    return list(range(first, first + len(rows)))


def _node(connection: sqlite3.Connection, tenant: int, name: bytes) -> int:
    node = find_node(connection, tenant, name)
    if node is None:
        raise NotFoundError(f"no node {name.hex()} of this tenant")
    return node
