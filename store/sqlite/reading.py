"""Reading what was recorded: sessions, branches, the log, exact bytes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from store import entries
from store.codec import clean_text, load_json, unpack
from store.errors import NotFoundError
from store.rows import BranchRow, LogEntry, RouteState, SessionRow, StoredRequest

_SESSIONS = """
SELECT s.id, t.name, s.name, s.created_at, s.last_request_at, s.next_n - 1,
    (SELECT count(*) FROM branch b WHERE b.session = s.id AND b.superseded = 0), s.messages
FROM session s JOIN tenant t ON t.id = s.tenant
"""
_HISTORY = """
WITH RECURSIVE up (parent, body, seq) AS (
    SELECT parent, body, seq FROM node WHERE id = ?
    UNION ALL SELECT n.parent, n.body, n.seq FROM up JOIN node n ON n.id = up.parent
) SELECT b.codec, b.data FROM up JOIN body b ON b.id = up.body ORDER BY up.seq
"""
_LOG = """
SELECT l.n, l.kind, l.at, l.data, n.name, n.seq, n.role, n.tokens
FROM log l LEFT JOIN node n ON n.id = l.node WHERE l.session = ? AND l.n > ? ORDER BY l.n LIMIT ?
"""
_BODY = "SELECT b.codec, b.data FROM body b JOIN tenant t ON t.id = b.tenant WHERE t.name = ? AND b.sha256 = ?"
_REQUEST = """
SELECT t.name, s.name, l.at, l.data, l.node FROM log l JOIN session s ON s.id = l.session
JOIN tenant t ON t.id = s.tenant
WHERE l.session = ? AND l.n = ? AND l.kind = 'request'
"""
_ANSWERS = (
    "SELECT data FROM log WHERE session = ? AND n > ? AND kind = 'response' AND substr(data, 1, ?) = ? ORDER BY n"
)
"""By the beginning of their text, which `entries.response_data` fixes: SQLite reads stricter JSON than is stored."""


def sessions(connection: sqlite3.Connection, tenant: str | None, limit: int, before: float | None) -> list[SessionRow]:
    """Sessions, newest request first."""
    sql = _SESSIONS + (
        "WHERE (:tenant IS NULL OR t.name = :tenant) AND (:before IS NULL OR s.last_request_at < :before) "
        "ORDER BY s.last_request_at DESC, s.id DESC LIMIT :limit"
    )
    values = {"tenant": None if tenant is None else clean_text(tenant), "before": before, "limit": limit}
    return [SessionRow(*row) for row in connection.execute(sql, values).fetchall()]


def find_session(connection: sqlite3.Connection, tenant: str | None, session: str) -> SessionRow | None:
    """A session by its public id; of several tenants' the newest."""
    sql = _SESSIONS + (
        "WHERE s.name = :session AND (:tenant IS NULL OR t.name = :tenant) ORDER BY s.last_request_at DESC LIMIT 1"
    )
    values = {"tenant": None if tenant is None else clean_text(tenant), "session": clean_text(session)}
    row = connection.execute(sql, values).fetchone()
    return SessionRow(*row) if row else None


def branches(connection: sqlite3.Connection, session: int) -> list[BranchRow]:
    """The session's branches, newest first. The head of a branch without history is empty."""
    sql = (
        "SELECT b.id, coalesce(n.name, x''), b.head_seq, b.updated_at FROM branch b LEFT JOIN node n ON n.id = b.head "
        "WHERE b.session = ? AND b.superseded = 0 ORDER BY b.updated_at DESC, b.id DESC"
    )
    return [BranchRow(*row) for row in connection.execute(sql, (session,)).fetchall()]


def log(connection: sqlite3.Connection, session: int, after: int, limit: int) -> list[LogEntry]:
    """The session's log in order."""
    return [_entry(*row) for row in connection.execute(_LOG, (session, after, limit)).fetchall()]


def _entry(
    n: int, kind: str, at: float, text: str, node: bytes | None, seq: int | None, role: str | None, tokens: int | None
) -> LogEntry:
    data: dict[str, Any] = load_json(text)
    if kind == entries.MESSAGE:
        data = {"role": role, "tokens": tokens}
    return LogEntry(n, kind, at, data, node, seq)


def history(connection: sqlite3.Connection, tenant: str, head: bytes) -> list[bytes]:
    """The exact bytes of the messages up to a node, first to last. It looks through all the tenant's nodes for it."""
    if not head:
        return []
    sql = "SELECT n.id FROM node n JOIN tenant t ON t.id = n.tenant WHERE t.name = ? AND n.name = ? LIMIT 1"
    row = connection.execute(sql, (clean_text(tenant), head)).fetchone()
    if row is None:
        raise NotFoundError(f"no node {head.hex()} of this tenant")
    return _history(connection, row[0])


def _history(connection: sqlite3.Connection, head: int | None) -> list[bytes]:
    return [unpack(codec, data) for codec, data in connection.execute(_HISTORY, (head,)).fetchall()]


def body(connection: sqlite3.Connection, tenant: str, sha256: bytes) -> bytes:
    """A stored byte string."""
    row = connection.execute(_BODY, (clean_text(tenant), sha256)).fetchone()
    if row is None:
        raise NotFoundError(f"no body {sha256.hex()} of this tenant")
    return unpack(*row)


def request(connection: sqlite3.Connection, session: int, n: int) -> StoredRequest:
    """A recorded request, whole."""
    row = connection.execute(_REQUEST, (session, n)).fetchone()
    if row is None:
        raise NotFoundError(f"entry {n} is no request of session {session}")
    tenant, name, at, text, head = row
    data: dict[str, Any] = load_json(text)
    sent = _sent_later(connection, session, n)
    return StoredRequest(
        tenant=tenant,
        session=name,
        n=n,
        route=data["route"],
        at=at,
        preamble=_bodies(connection, tenant, data["preamble"]),
        history=_history(connection, head),
        frame=body(connection, tenant, bytes.fromhex(data["frame"])),
        sent=data["sent"] if sent is None else sent,
    )


def _sent_later(connection: sqlite3.Connection, session: int, n: int) -> dict[str, Any] | None:
    """How the answered body followed from the client's, if that was decided after the request was recorded."""
    begins = entries.response_begins(n)
    rows = connection.execute(_ANSWERS, (session, n, len(begins), begins)).fetchall()
    said = [load_json(text).get("sent") for (text,) in rows]
    return next((sent for sent in reversed(said) if sent is not None), None)


def _bodies(connection: sqlite3.Connection, tenant: str, names: Iterable[str]) -> list[bytes]:
    return [body(connection, tenant, bytes.fromhex(name)) for name in names]


def route_states(connection: sqlite3.Connection) -> list[RouteState]:
    """Everything learned about routes."""
    rows = connection.execute("SELECT name, data FROM route ORDER BY name").fetchall()
    return [RouteState(name, load_json(data)) for name, data in rows]
