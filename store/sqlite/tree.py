"""Bodies and nodes: what is known of a path, and writing what is new in it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from compaction.types import Path
from store.codec import clean_text, pack

_STEPS_FROM_THE_END = 4
"""Most requests add one to three messages; up to here each is looked up in turn."""


@dataclass(frozen=True, slots=True)
class Known:
    """How much of a path the store knows."""

    node: int | None
    """Id of the deepest node that is known by its exact bytes; None: not even the first."""
    node_seq: int
    digest_seq: int
    """The deepest seq whose digest is known; never below `node_seq`."""


def find_tenant(connection: sqlite3.Connection, name: str) -> int | None:
    """The tenant's id, if it was ever seen."""
    row = connection.execute("SELECT id FROM tenant WHERE name = ?", (clean_text(name),)).fetchone()
    return row[0] if row else None


def put_tenant(connection: sqlite3.Connection, name: str) -> int:
    """The tenant's id."""
    found = find_tenant(connection, name)
    if found is not None:
        return found
    return _inserted(connection.execute("INSERT INTO tenant (name) VALUES (?)", (clean_text(name),)))


def deepest(low: int, high: int, is_known: Callable[[int], bool]) -> int:
    """The largest seq in `low`..`high` that is known, where `low` is, and all before a known one are.

    Looks at the end first, then back in growing strides, then bisects: a request that adds two messages to a
    thousand costs three looks, never a walk from the root (R4.2).
    """
    unknown = high + 1
    stride = 1
    while unknown - 1 > low:
        at = max(unknown - stride, low + 1)
        if is_known(at):
            low = at
            break
        if high - at >= _STEPS_FROM_THE_END - 1:
            stride *= 2
        unknown = at
    while unknown - low > 1:
        middle = (low + unknown) // 2
        if is_known(middle):
            low = middle
        else:
            unknown = middle
    return low


def find_known(connection: sqlite3.Connection, tenant: int, path: Path) -> Known:
    """What the tenant's trees hold of a path."""
    nodes: dict[int, int] = {}

    def by_meaning(seq: int) -> bool:
        sql = "SELECT id, name FROM node WHERE tenant = ? AND digest = ?"
        known = False
        for node, name in connection.execute(sql, (tenant, path.digests[seq])):
            known = True
            if name == path.nodes[seq]:
                nodes[seq] = node
                break
        return known

    def by_bytes(seq: int) -> bool:
        return seq in nodes or (by_meaning(seq) and seq in nodes)

    digest_seq = deepest(0, len(path), by_meaning)
    # Equal names have equal digests, so that nothing deeper is known by its bytes.
    node_seq = deepest(0, digest_seq, by_bytes)
    return Known(nodes.get(node_seq), node_seq, digest_seq)


def find_node(connection: sqlite3.Connection, tenant: int, path: Path, seq: int) -> int | None:
    """Id of the node at `seq` of a path, by its exact bytes."""
    sql = "SELECT id FROM node WHERE tenant = ? AND digest = ? AND name = ?"
    row = connection.execute(sql, (tenant, path.digests[seq], path.nodes[seq])).fetchone()
    return row[0] if row else None


def put_body(connection: sqlite3.Connection, tenant: int, sha256: bytes, data: bytes) -> int:
    """Id of the body with these bytes, stored once per tenant (R4.2)."""
    codec, packed = pack(data)
    sql = "INSERT INTO body (tenant, sha256, size, codec, data) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    cursor = connection.execute(sql, (tenant, sha256, len(data), codec, packed))
    if cursor.rowcount:
        return _inserted(cursor)
    found: int = connection.execute("SELECT id FROM body WHERE tenant = ? AND sha256 = ?", (tenant, sha256)).fetchone()[
        0
    ]
    return found


def put_session_bodies(
    connection: sqlite3.Connection, tenant: int, session: int, bodies: Iterable[bytes]
) -> list[bytes]:
    """Store bodies that a session's log will speak of; returns their SHA-256."""
    names = []
    for data in bodies:
        name = hashlib.sha256(data).digest()
        body = put_body(connection, tenant, name, data)
        connection.execute("INSERT OR IGNORE INTO session_body VALUES (?, ?)", (session, body))
        names.append(name)
    return names


def put_nodes(
    connection: sqlite3.Connection, tenant: int, session: int, path: Path, bodies: Sequence[bytes], known: Known
) -> dict[int, int]:
    """Write the nodes of a path that are not known; returns the ids of those above the deepest known one, by seq."""
    written: dict[int, int] = {}
    parent = known.node
    sql = (
        "INSERT INTO node (tenant, parent, body, seq, name, digest, role, tokens, session) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    for seq in range(known.node_seq + 1, len(path) + 1):
        message = path.at(seq)
        body = put_body(connection, tenant, message.sha256, bodies[seq - 1])
        place = (tenant, parent, body, seq, path.nodes[seq], path.digests[seq])
        role = clean_text(message.role)
        parent = written[seq] = _inserted(connection.execute(sql, (*place, role, message.tokens, session)))
    return written


def _inserted(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid
