"""Checkpoints and boundaries: what may be applied to a path is found by the digests on it (R3.4)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compaction.checkpoint import to_json
from compaction.types import Checkpoint, Path
from store import entries
from store.codec import clean_text, load_json
from store.errors import NotFoundError
from store.protocol import CheckpointReader
from store.rows import Boundary, Commit, ContextRows, RouteState
from store.sqlite.log import insert_rows, reserve
from store.sqlite.tree import find_tenant

_CHUNKS = (64, 256, 1024)
"""Digests asked for at once, from the end of the path back: a checkpoint mostly lies near the end."""

_ROWS = """
SELECT checkpoint_id, data FROM checkpoint WHERE tenant = ? AND source_digest IN ({})
ORDER BY through_seq DESC, created_at DESC, checkpoint_id DESC
"""
_COMPLETED = """
SELECT l.at, l.n, l.data FROM node n JOIN log l ON l.node = n.id AND l.kind = 'compaction_completed'
WHERE n.tenant = ? AND n.digest IN ({})
"""
_BOUNDARIES = """
SELECT route, digest, through_seq, checkpoint_id, input_tokens, output_tokens, payload_bytes
FROM boundary WHERE tenant = ? AND digest IN ({}) AND route = ? ORDER BY through_seq DESC
"""


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoint in force on a path, and the rows that were passed over for it."""

    checkpoint: Checkpoint | None
    invalid: tuple[str, ...] = ()


def _chunks(path: Path) -> Iterator[tuple[str, list[bytes | None]]]:
    """The path's digests, newest first, in chunks: placeholders and values. Sizes are fixed, so that statements are."""
    after = len(path) + 1
    sizes = iter(_CHUNKS)
    size = next(sizes)
    while after > 1:
        first = max(1, after - size)
        digests: list[bytes | None] = list(path.digests[first:after])
        yield ",".join("?" * size), digests + [None] * (size - len(digests))
        after, size = first, next(sizes, size)


def find_current(connection: sqlite3.Connection, tenant: int, path: Path, read: CheckpointReader) -> Found:
    """The valid checkpoint that covers most; of equals the newest (R7.6)."""
    if connection.execute("SELECT 1 FROM checkpoint WHERE tenant = ? LIMIT 1", (tenant,)).fetchone() is None:
        return Found(None)
    invalid: list[str] = []
    for places, digests in _chunks(path):
        for checkpoint_id, data in connection.execute(_ROWS.format(places), (tenant, *digests)).fetchall():
            checkpoint = read(data)
            if checkpoint is not None:
                return Found(checkpoint, tuple(invalid))
            invalid.append(checkpoint_id)
    return Found(None, tuple(invalid))


def read_context(
    connection: sqlite3.Connection, tenant: str, path: Path, route: str, read: CheckpointReader
) -> ContextRows:
    """What must be known of a path before its request is sent."""
    owner = find_tenant(connection, tenant)
    found = Found(None) if owner is None else find_current(connection, owner, path, read)
    name = clean_text(route)
    row = connection.execute("SELECT data FROM route WHERE name = ?", (name,)).fetchone()
    return ContextRows(found.checkpoint, found.invalid, RouteState(name, load_json(row[0])) if row else None)


def commit_checkpoint(
    connection: sqlite3.Connection,
    tenant: str,
    session: int,
    checkpoint: Checkpoint,
    path: Path,
    read: CheckpointReader,
    at: float,
) -> Commit:
    """Write a checkpoint and its log entry, if the one that it was built on is still in force (R9.2, R9.3)."""
    owner = find_tenant(connection, tenant)
    current = None if owner is None else find_current(connection, owner, path, read).checkpoint
    if (current.checkpoint_id if current else None) != checkpoint.previous_checkpoint_id:
        return Commit(committed=False, winner=current)
    owner, n = reserve(connection, tenant, session, 1)
    node = _covered_node(connection, owner, checkpoint, path)
    data = to_json(checkpoint)
    put_checkpoint(connection, owner, checkpoint, data)
    insert_rows(connection, session, at, n, [(entries.COMPLETED, node, data)])
    return Commit(committed=True)


def _covered_node(connection: sqlite3.Connection, tenant: int, checkpoint: Checkpoint, path: Path) -> int:
    """The last node that the checkpoint stands for; its entry is found again by it."""
    through = checkpoint.through_seq
    if not 1 <= through <= len(path) or path.digests[through].hex() != checkpoint.source_digest:
        raise NotFoundError("the checkpoint was made from messages that are not on the path")
    sql = "SELECT id FROM node WHERE tenant = ? AND digest = ? ORDER BY name = ? DESC LIMIT 1"
    row = connection.execute(sql, (tenant, path.digests[through], path.nodes[through])).fetchone()
    if row is None:
        raise NotFoundError("the messages that the checkpoint was made from are not recorded")
    node: int = row[0]
    return node


def put_checkpoint(connection: sqlite3.Connection, tenant: int, checkpoint: Checkpoint, data: str) -> None:
    """Write a row; one of the same id is replaced, since it may be damaged."""
    sql = (
        "INSERT OR REPLACE INTO checkpoint (tenant, source_digest, through_seq, checkpoint_id, created_at, data) "
        "VALUES (?, ?, ?, ?, ?, ?)"
    )
    digest = bytes.fromhex(checkpoint.source_digest)
    values = (tenant, digest, checkpoint.through_seq, checkpoint.checkpoint_id, checkpoint.created_at, data)
    connection.execute(sql, values)


def completed_checkpoints(connection: sqlite3.Connection, tenant: str, path: Path) -> list[str]:
    """What the log says was committed on the path, newest first (R7.6)."""
    owner = find_tenant(connection, tenant)
    found: list[tuple[float, int, str]] = []
    if owner is not None:
        for places, digests in _chunks(path):
            found += connection.execute(_COMPLETED.format(places), (owner, *digests)).fetchall()
    return [data for _, _, data in sorted(found, reverse=True)]


def repair_checkpoint(
    connection: sqlite3.Connection, tenant: str, drop: Sequence[str], replacement: Checkpoint | None
) -> None:
    """Drop rows, and write one that was rebuilt from the log."""
    owner = find_tenant(connection, tenant)
    if owner is None:
        raise NotFoundError("no such tenant")
    sql = "DELETE FROM checkpoint WHERE tenant = ? AND checkpoint_id = ?"
    connection.executemany(sql, [(owner, checkpoint_id) for checkpoint_id in drop])
    if replacement is not None:
        put_checkpoint(connection, owner, replacement, to_json(replacement))


def boundaries(connection: sqlite3.Connection, tenant: str, path: Path, route: str) -> list[Boundary]:
    """What the route accepted on the path, largest first (R10.5)."""
    owner = find_tenant(connection, tenant)
    found: list[Boundary] = []
    if owner is not None:
        for places, digests in _chunks(path):
            rows = connection.execute(_BOUNDARIES.format(places), (owner, *digests, clean_text(route))).fetchall()
            found += [Boundary(*row) for row in rows]
    return found
