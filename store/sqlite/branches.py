"""Branch rows: what the decision on a request's lineage is made from, and moving a branch on."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any

from compaction.canonical import read_message
from compaction.types import Path
from store.codec import load_json
from store.entries import load_key
from store.lineage import Decision, Echo, Place, Situation, Tip, decide, is_settled
from store.rows import RequestRecord
from store.sqlite.tree import Known

MAX_TIPS = 64
"""Of many branches with one tip the newest are looked at, and those whose reply is the echo."""
MAX_HOLDERS = 32
FLIGHT_LIFETIME = 3600.0
"""Seconds after which a request that never ended is not waited for: its worker's machine may be gone."""

_TIP = """
SELECT b.id, b.session, s.name, b.head_seq, w.id IS NOT NULL AND b.updated_at > :fresh, b.delivered, b.replies
FROM node n JOIN branch b ON b.head = n.id JOIN session s ON s.id = b.session LEFT JOIN worker w ON w.id = b.worker
WHERE n.tenant = :tenant AND n.digest = :digest AND b.superseded = 0
"""
_NEWEST = _TIP + f"ORDER BY b.id DESC LIMIT {MAX_TIPS}"
_OF_SESSION = _TIP + f"AND b.session = :session ORDER BY b.id DESC LIMIT {MAX_TIPS}"
_WITH_REPLY = _TIP + f"AND b.reply_loose = :loose ORDER BY b.id DESC LIMIT {MAX_TIPS}"


@dataclass(frozen=True, slots=True)
class _Asking:
    """Who asks, and for what."""

    connection: sqlite3.Connection
    tenant: int
    record: RequestRecord
    known: Known
    named: int | None

    @property
    def path(self) -> Path:
        return self.record.path


def decide_lineage(
    connection: sqlite3.Connection, tenant: int, record: RequestRecord, known: Known, named: int | None
) -> Decision:
    """Where the request belongs (R3.6), from as few rows as the case needs."""
    asking = _Asking(connection, tenant, record, known, named)
    situation = Situation(
        length=len(record.path),
        known=known.digest_seq,
        retry_count=record.retry_count,
        explicit=record.session is not None,
        named=named,
    )
    if known.digest_seq > 0:
        tips, echo = _tips(asking, known.digest_seq)
        situation = replace(situation, tips=tips, echo=echo)
    decision = decide(situation)
    return decision if is_settled(decision) else decide(_looked_around(asking, situation))


def _looked_around(asking: _Asking, situation: Situation) -> Situation:
    """The situation with what only forks, rewinds and twins depend on."""
    answer = _last_answer(asking.path, situation.known)
    waiting, echo = _tips(asking, answer - 1) if answer > 1 else ((), None)
    return replace(
        situation, waiting=waiting, waiting_echo=echo, holder=_holder(asking, situation), origin=_origin(asking)
    )


def _last_answer(path: Path, known: int) -> int:
    return next((seq for seq in range(known, 0, -1) if path.at(seq).role == "assistant"), 0)


def _tips(asking: _Asking, seq: int) -> tuple[tuple[Tip, ...], Echo | None]:
    """The branches that end at `seq`, newest first, and the echo that may follow there."""
    path = asking.path
    echo = None
    if seq + 1 < len(path) and path.at(seq + 1).role == "assistant":  # the last message would be a prefill (R3.8)
        echo = Echo(path.at(seq + 1).canon, path.at(seq + 1).loose)
    tips = _read_tips(asking, path.digests[seq], echo)
    if echo is not None and any(key.text for tip in tips for key in tip.replies):
        echo = replace(echo, text=_text(asking.record.bodies[seq]))
    return tips, echo


def _read_tips(asking: _Asking, digest: bytes, echo: Echo | None) -> tuple[Tip, ...]:
    values = {
        "tenant": asking.tenant,
        "digest": digest,
        "fresh": asking.record.at - FLIGHT_LIFETIME,
        "session": asking.named,
        "loose": echo.loose if echo else None,
    }
    rows = asking.connection.execute(_NEWEST, values).fetchall()
    if len(rows) == MAX_TIPS:
        rows += asking.connection.execute(_OF_SESSION, values).fetchall()
        rows += asking.connection.execute(_WITH_REPLY, values).fetchall()
        rows = sorted(set(rows), reverse=True)
    return tuple(_tip(*row) for row in rows)


def _tip(branch: int, session: int, name: str, head_seq: int, in_flight: int, delivered: int, replies: str) -> Tip:
    keys = tuple(map(load_key, load_json(replies))) if replies != "[]" else ()
    return Tip(branch, session, name, head_seq, bool(in_flight), bool(delivered), keys)


def _text(body: bytes) -> str:
    """The text of an echo, joined as that of the reply's key was."""
    try:
        message: Any = load_json(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return ""
    return "\n".join(read_message(message, body).texts)


def _holder(asking: _Asking, situation: Situation) -> Place | None:
    """The newest branch of the named session that passes through what is known."""
    if asking.named is None:
        return None
    sql = (
        "SELECT id, head FROM branch WHERE session = ? AND superseded = 0 AND head_seq > ? "
        "ORDER BY updated_at DESC, id DESC LIMIT ?"
    )
    digest = asking.path.digests[situation.known]
    for branch, head in asking.connection.execute(sql, (asking.named, situation.known, MAX_HOLDERS)).fetchall():
        if _digest_above(asking.connection, head, situation.known) == digest:
            return Place(None, branch)
    return None


def _digest_above(connection: sqlite3.Connection, node: int, seq: int) -> bytes:
    """The digest at `seq` on the path to a deeper node."""
    sql = """
    WITH RECURSIVE up (id, parent, seq, digest) AS (
        SELECT id, parent, seq, digest FROM node WHERE id = ?
        UNION ALL SELECT n.id, n.parent, n.seq, n.digest FROM up JOIN node n ON n.id = up.parent WHERE up.seq > ?
    ) SELECT digest FROM up WHERE seq = ?
    """
    found: bytes = connection.execute(sql, (node, seq, seq)).fetchone()[0]
    return found


def _origin(asking: _Asking) -> Place | None:
    """The session that sent the deepest known message first, if it still exists."""
    sql = (
        "SELECT s.name FROM node n JOIN session s ON s.id = n.session "
        "WHERE n.tenant = ? AND n.digest = ? ORDER BY n.id DESC LIMIT 1"
    )
    digest = asking.path.digests[asking.known.digest_seq]
    row = asking.connection.execute(sql, (asking.tenant, digest)).fetchone()
    return Place(row[0]) if row else None
