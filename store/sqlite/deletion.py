"""Deleting a session, and only what nothing else uses (R3.6, R4.3)."""

from __future__ import annotations

import re
import sqlite3

from store.errors import NotFoundError

_IN_USE = "SELECT EXISTS (SELECT 1 FROM node WHERE parent = :node) OR EXISTS (SELECT 1 FROM branch WHERE head = :node)"
_NAME = re.compile('"([0-9a-f]{64})"')
"""How a log's entry names a body."""
_UNUSED_BODY = """
DELETE FROM body WHERE id = :body AND NOT EXISTS (SELECT 1 FROM node WHERE body = :body)
AND NOT EXISTS (SELECT 1 FROM session_body WHERE body = :body)
"""
_UNUSED_CHECKPOINT = """
DELETE FROM checkpoint WHERE tenant = :tenant AND source_digest = :digest
AND NOT EXISTS (SELECT 1 FROM node WHERE tenant = :tenant AND digest = :digest)
"""


def delete_session(connection: sqlite3.Connection, session: int) -> None:
    """Remove a session whole. Nodes that a fork goes through stay, and so do the checkpoints made from them."""
    marked = connection.execute("UPDATE session SET deleting = 1 WHERE id = ? RETURNING tenant", (session,)).fetchone()
    if marked is None:
        raise NotFoundError(f"no session {session}")
    # Parents have smaller ids than their children: in this order no walk meets what an earlier one removed.
    sql = "SELECT DISTINCT head FROM branch WHERE session = ? AND head IS NOT NULL ORDER BY head"
    heads = _column(connection, sql, session)
    bodies = _release_bodies(connection, marked[0], session)
    for sql in (
        "DELETE FROM boundary WHERE branch IN (SELECT id FROM branch WHERE session = ?)",
        "DELETE FROM log WHERE session = ?",
        "DELETE FROM branch WHERE session = ?",
        "DELETE FROM session WHERE id = ?",
    ):
        connection.execute(sql, (session,))
    for head in heads:
        bodies |= _prune(connection, marked[0], head)
    connection.executemany(_UNUSED_BODY, [{"body": body} for body in sorted(bodies)])


def _release_bodies(connection: sqlite3.Connection, tenant: int, session: int) -> set[int]:
    """Take back the session's hold on the bodies that its log names; returns them."""
    sql = """
    DELETE FROM session_body WHERE session = :session
    AND body = (SELECT id FROM body WHERE tenant = :tenant AND sha256 = :name) RETURNING body
    """
    names = {
        name
        for (text,) in connection.execute("SELECT data FROM log WHERE session = ?", (session,))
        for name in _NAME.findall(text)
    }
    found = [
        connection.execute(sql, {"session": session, "tenant": tenant, "name": bytes.fromhex(name)}).fetchall()
        for name in sorted(names)
    ]
    return {body for rows in found for (body,) in rows}


def _prune(connection: sqlite3.Connection, tenant: int, head: int) -> set[int]:
    """Remove nodes from a head upwards as long as nothing needs them; returns the bodies that they had."""
    bodies: set[int] = set()
    node: int | None = head
    while node is not None and not connection.execute(_IN_USE, {"node": node}).fetchone()[0]:
        sql = "DELETE FROM node WHERE id = ? RETURNING parent, body, digest"
        node, body, digest = connection.execute(sql, (node,)).fetchone()
        bodies.add(body)
        connection.execute(_UNUSED_CHECKPOINT, {"tenant": tenant, "digest": digest})
    return bodies


def _column(connection: sqlite3.Connection, sql: str, session: int) -> list[int]:
    return [row[0] for row in connection.execute(sql, (session,)).fetchall()]
