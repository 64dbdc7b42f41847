"""Recording: one request, and its answer, each as part of one transaction (R4.2)."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from store import entries
from store.codec import clean_text, dump_json, load_json
from store.errors import NotFoundError
from store.lineage import Decision
from store.rows import Boundary, Recorded, ReplyRecord, RequestRecord, RouteState, UsageRow
from store.sqlite.branches import decide_lineage
from store.sqlite.log import LogRow, find_session, insert_rows, new_session, reserve
from store.sqlite.tree import find_known, find_node, put_nodes, put_session_bodies, put_tenant

_OLD_BRANCH = (
    "SELECT b.head, b.head_seq, b.head_digest, b.preamble, b.frame, b.request_n, n.name "
    "FROM branch b LEFT JOIN node n ON n.id = b.head WHERE b.id = ?"
)
_NEW_BRANCH = (
    "INSERT INTO branch "
    "(session, tenant, head, head_digest, head_seq, request_n, worker, preamble, frame, updated_at) "
    "VALUES (:session, :tenant, :head, :digest, :seq, :n, :worker, :preamble, :frame, :at)"
)
# An equal request keeps what its earlier answers are recognised by: the client may echo any of them.
_MOVED_BRANCH = """
UPDATE branch SET
    replies = iif(head_digest = :digest, replies, '[]'), reply_loose = iif(head_digest = :digest, reply_loose, NULL),
    head = :head, head_digest = :digest, head_seq = :seq, request_n = :n, worker = :worker, delivered = 0,
    preamble = :preamble, frame = :frame, updated_at = :at
WHERE id = :branch
"""
_SUPERSEDED = (
    "INSERT INTO branch "
    "(session, tenant, head, head_digest, head_seq, superseded, request_n, preamble, frame, updated_at) "
    "VALUES (?, ?, ?, ?, ?, 1, ?, x'', x'', ?)"
)
_BOUNDARY = """
INSERT INTO boundary VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (branch, route) DO UPDATE SET
    digest = excluded.digest, through_seq = excluded.through_seq, checkpoint_id = excluded.checkpoint_id,
    input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens, payload_bytes = excluded.payload_bytes
WHERE excluded.through_seq > through_seq OR excluded.checkpoint_id IS NOT checkpoint_id
"""
_USAGE = """
INSERT INTO usage VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?) ON CONFLICT (tenant, day, route, kind) DO UPDATE SET
    answers = answers + 1, prompt = prompt + excluded.prompt, completion = completion + excluded.completion,
    cached = cached + excluded.cached, reasoning = reasoning + excluded.reasoning
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a request goes, once that is decided and its nodes are written."""

    tenant: int
    session: int
    branch: int | None
    nodes: Mapping[int, int]
    """Ids of the nodes just written, by seq."""
    head: int | None
    preamble: bytes
    frame: bytes


@dataclass(frozen=True, slots=True)
class _Old:
    """A branch before it moves."""

    head: int | None
    head_seq: int
    head_digest: bytes
    preamble: bytes
    frame: bytes
    request_n: int
    head_name: bytes | None


def record_request(connection: sqlite3.Connection, worker: int, record: RequestRecord) -> Recorded:
    """Decide where the request belongs, and write what is new in it."""
    path = record.path
    tenant = put_tenant(connection, record.tenant)
    named = find_session(connection, tenant, record.session) if record.session is not None else None
    known = find_known(connection, tenant, path)
    decision = decide_lineage(connection, tenant, record, known, named)
    session = decision.session
    if session is None:
        session = new_session(connection, tenant, record.session or record.fresh_session, record.at)
    old = _old_branch(connection, decision.branch)
    nodes = put_nodes(connection, tenant, session, path, record.bodies, known)
    head = nodes.get(len(path), known.node)
    preamble, frame = _put_around(connection, tenant, session, record, old)
    place = _Place(tenant, session, decision.branch, nodes, head, b"".join(preamble), frame)

    rows: list[LogRow] = [(note.kind, None, dump_json(note.data)) for note in decision.notes]
    if place.preamble != (old.preamble if old else b""):
        rows.append((entries.PREAMBLE, None, dump_json({"messages": [name.hex() for name in preamble]})))
    rows.extend(_message_rows(connection, record, decision, place))
    first, name = _touch_session(connection, record, decision, session, len(rows) + 1)
    n = first + len(rows)
    branch = _move_branch(connection, worker, record, place, old, n)
    data = entries.request_data(record, preamble=preamble, frame=frame, branch=branch, lineage=decision.lineage)
    insert_rows(connection, session, record.at, first, [*rows, (entries.REQUEST, head, dump_json(data))])
    return Recorded(session, name, branch, n, len(path) - decision.shared, decision.lineage.value)


def _old_branch(connection: sqlite3.Connection, branch: int | None) -> _Old | None:
    return None if branch is None else _Old(*connection.execute(_OLD_BRANCH, (branch,)).fetchone())


def _put_around(
    connection: sqlite3.Connection, tenant: int, session: int, record: RequestRecord, old: _Old | None
) -> tuple[list[bytes], bytes]:
    """Store preamble and frame, which mostly are those of the branch's last request; returns their SHA-256."""
    preamble = [hashlib.sha256(body).digest() for body in record.preamble]
    frame = hashlib.sha256(record.frame).digest()
    if old is None or old.preamble != b"".join(preamble):
        put_session_bodies(connection, tenant, session, record.preamble)
    if old is None or old.frame != frame:
        put_session_bodies(connection, tenant, session, (record.frame,))
    return preamble, frame


def _message_rows(
    connection: sqlite3.Connection, record: RequestRecord, decision: Decision, place: _Place
) -> Iterator[LogRow]:
    """The entries of what is new in the session's branch; role and tokens stand in the node."""
    for seq in range(decision.shared + 1, len(record.path) + 1):
        node = place.nodes.get(seq)
        if node is None:  # written before by another conversation
            node = find_node(connection, place.tenant, record.path, seq)
        yield entries.MESSAGE, node, "{}"


def _touch_session(
    connection: sqlite3.Connection, record: RequestRecord, decision: Decision, session: int, count: int
) -> tuple[int, str]:
    """Reserve numbers in the log; returns the first, and the session's public id."""
    sql = (
        "UPDATE session SET next_n = next_n + ?, messages = messages + ?, last_request_at = ? WHERE id = ? "
        "RETURNING next_n, name"
    )
    values = (count, len(record.path) - decision.shared, record.at, session)
    after, name = connection.execute(sql, values).fetchone()
    return after - count, name


def _move_branch(
    connection: sqlite3.Connection, worker: int, record: RequestRecord, place: _Place, old: _Old | None, n: int
) -> int:
    """Open a branch, or move it to the request's head; returns its number."""
    path = record.path
    values = {
        "branch": place.branch,
        "session": place.session,
        "tenant": place.tenant,
        "head": place.head,
        "digest": path.digests[-1],
        "seq": len(path),
        "n": n,
        "worker": worker,
        "preamble": place.preamble,
        "frame": place.frame,
        "at": record.at,
    }
    if old is None or place.branch is None:
        branch = connection.execute(_NEW_BRANCH, values).lastrowid
        assert branch is not None
        return branch
    if path.nodes[old.head_seq] != old.head_name:
        # Equal in meaning, other bytes: the old head keeps its nodes, which earlier requests are rebuilt from.
        kept = (place.session, place.tenant, old.head, old.head_digest, old.head_seq, old.request_n, record.at)
        connection.execute(_SUPERSEDED, kept)
    connection.execute(_MOVED_BRANCH, values)
    return place.branch


def record_reply(connection: sqlite3.Connection, record: ReplyRecord) -> None:
    """Write the answer, end the request's flight, and keep the boundary and the usage."""
    session = record.recorded.session_key
    accepted = entries.accepted_data(record)
    tenant, first = reserve(connection, record.tenant, session, 1 if accepted is None else 2)
    choices = put_session_bodies(connection, tenant, session, record.choices)
    rows: list[LogRow] = [(entries.RESPONSE, None, dump_json(entries.response_data(record, choices)))]
    if accepted is not None:
        rows.append((entries.ACCEPTED, None, dump_json(accepted)))
    insert_rows(connection, session, record.at, first, rows)
    _land(connection, record)
    if record.boundary is not None:
        _put_boundary(connection, tenant, record.recorded.branch, record.boundary)
    if record.spent is not None:
        add_usage(connection, tenant, record.spent)


def _land(connection: sqlite3.Connection, record: ReplyRecord) -> None:
    """End the flight if no later request took the branch over, and keep what an echo is recognised by (R3.7)."""
    branch = record.recorded.branch
    sql = "SELECT head, request_n, worker, delivered, replies FROM branch WHERE id = ? AND session = ?"
    row = connection.execute(sql, (branch, record.recorded.session_key)).fetchone()
    if row is None:
        raise NotFoundError(f"no branch {branch} in this session")
    head, newest, worker, delivered, replies = row
    if newest == record.recorded.request_n:
        worker, delivered = None, entries.was_delivered(record)
    elif head != _head_of(connection, record.recorded):
        return
    keys = entries.delivered_keys(record)
    if keys:
        dumped = [*map(entries.dump_key, keys), *load_json(replies)][: entries.MAX_REPLIES]
        replies = dump_json(dumped)
        sql = "UPDATE branch SET worker = ?, delivered = ?, replies = ?, reply_loose = ?, updated_at = ? WHERE id = ?"
        connection.execute(sql, (worker, delivered, replies, keys[0].loose, record.at, branch))
    else:
        sql = "UPDATE branch SET worker = ?, delivered = ?, updated_at = ? WHERE id = ?"
        connection.execute(sql, (worker, delivered, record.at, branch))


def _head_of(connection: sqlite3.Connection, recorded: Recorded) -> int | None:
    sql = "SELECT node FROM log WHERE session = ? AND n = ?"
    row = connection.execute(sql, (recorded.session_key, recorded.request_n)).fetchone()
    return row[0] if row else None


def _put_boundary(connection: sqlite3.Connection, tenant: int, branch: int, boundary: Boundary) -> None:
    values = (branch, clean_text(boundary.route), tenant, boundary.digest, boundary.through_seq)
    counts = (boundary.input_tokens, boundary.output_tokens, boundary.payload_bytes)
    connection.execute(_BOUNDARY, (*values, boundary.checkpoint_id, *counts))


def add_usage(connection: sqlite3.Connection, tenant: int, row: UsageRow) -> None:
    """Count an answer's tokens (R14.3)."""
    values = (tenant, row.day, clean_text(row.route), row.kind, row.prompt, row.completion, row.cached, row.reasoning)
    connection.execute(_USAGE, values)


def add_usage_of(connection: sqlite3.Connection, tenant: str, row: UsageRow) -> None:
    """Count tokens that belong to no reply."""
    add_usage(connection, put_tenant(connection, tenant), row)


def save_route(connection: sqlite3.Connection, state: RouteState) -> None:
    """Replace what is known of a route."""
    sql = "INSERT INTO route VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET data = excluded.data"
    connection.execute(sql, (clean_text(state.route), dump_json(dict(state.data))))
