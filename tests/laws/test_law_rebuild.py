"""Law 7: every recorded request can be rebuilt byte for byte, whatever else was recorded, re-spelled or deleted."""

import asyncio
import contextlib
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from store.open import open_store
from store.protocol import Store
from tests.laws.histories import exact_bytes, histories
from tests.store.talk import Talk, assistant, exact, user

ACTIONS = (
    "go on",
    "go on",
    "respell",
    "drop the reply",
    "edit",
    "rewind",
    "retry",
    "again",
    "respell",
    "delete",
    "cut",
)
SESSIONS = (None, None, "X", "Y")
TENANTS = ("P", "Q")


@dataclass(frozen=True)
class Act:
    """One thing that a client does, to one of the histories that exist."""

    action: str
    history: int
    at: int
    session: str | None
    tenant: str
    text: str


acts = st.builds(
    Act,
    action=st.sampled_from(ACTIONS),
    history=st.integers(0, 50),
    at=st.integers(0, 50),
    session=st.sampled_from(SESSIONS),
    tenant=st.sampled_from(TENANTS),
    text=st.sampled_from(["yes", "no", "x" * 3000]),
)


def respelled(body: bytes) -> bytes:
    """The same JSON value with other white space."""
    return b" " + body + b" "


def next_history(act: Act, histories_so_far: list[list[bytes]]) -> list[bytes]:
    """The messages that the client sends now."""
    old = histories_so_far[act.history % len(histories_so_far)]
    at = act.at % (len(old) + 1)
    match act.action:
        case "go on" | "cut":
            return [*old, exact(assistant(f"reply {act.text}")), exact(user(act.text))]
        case "drop the reply":
            return [*old, exact(user(act.text))]
        case "edit":
            return [*old[:at], exact(user(f"edited {act.text}"))]
        case "rewind":
            return old[: at + 1]
        case "respell":
            return [*old[:at], *map(respelled, old[at:]), exact(assistant(f"reply {act.text}")), exact(user(act.text))]
        case _:
            return list(old)


async def play(folder: Path, start: list[list[bytes]], script: list[Act]) -> None:
    url = f"sqlite:///{folder}/history.db"
    store = open_store(url)
    await store.open()
    talks = {tenant: Talk(store, tenant) for tenant in TENANTS}
    asked: dict[str, list[list[bytes]]] = {tenant: list(start) for tenant in TENANTS}
    for act in script:
        talk, known = talks[act.tenant], asked[act.tenant]
        if act.action == "delete":
            await delete_one(store, talk, act)
            continue
        known.append(next_history(act, known))
        recorded = await talk.ask(*known[-1], session=act.session, retry=int(act.action == "retry"))
        if act.action not in {"again", "retry"}:
            await talk.answer(recorded, assistant(f"reply {act.text}"), cut=act.action == "cut")
    await store.close()
    check_tables(folder / "history.db")
    reopened = open_store(url)
    await reopened.open()
    for talk in talks.values():
        talk.store = reopened
        await talk.assert_rebuilt()
    for session in await reopened.sessions(None):
        await reopened.delete_session(session.key)
    await reopened.close()
    check_empty(folder / "history.db")


async def delete_one(store: Store, talk: Talk, act: Act) -> None:
    """Delete a session; the requests of all others must survive it."""
    sessions = await store.sessions(talk.tenant)
    if not sessions:
        return
    gone = sessions[act.at % len(sessions)].key
    await store.delete_session(gone)
    talk.sent = [(recorded, record) for recorded, record in talk.sent if recorded.session_key != gone]


def rows(file: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute(sql).fetchall()


def check_tables(file: Path) -> None:
    """No row points nowhere, logs are numbered without gaps, no body lies unused."""
    assert rows(file, "PRAGMA integrity_check") == [("ok",)]
    assert rows(file, "PRAGMA foreign_key_check") == []
    gaps = "SELECT session FROM log GROUP BY session HAVING max(n) != count(*) OR min(n) != 1"
    assert rows(file, gaps) == []
    lost = "SELECT n FROM log WHERE node IS NOT NULL AND node NOT IN (SELECT id FROM node)"
    assert rows(file, lost) == []
    unused = "SELECT id FROM body WHERE id NOT IN (SELECT body FROM node UNION SELECT body FROM session_body)"
    assert rows(file, unused) == []


def check_empty(file: Path) -> None:
    """With the last session everything of it is gone (R4.3)."""
    for table in ("node", "body", "log", "branch", "session", "session_body", "checkpoint", "boundary"):
        assert rows(file, f"SELECT count(*) FROM {table}") == [(0,)], table


@settings(max_examples=10, deadline=None)
@given(start=st.lists(histories, min_size=1, max_size=2), script=st.lists(acts, min_size=1, max_size=14))
def test_every_recorded_request_is_rebuilt_byte_for_byte(start: list[list[dict[str, Any]]], script: list[Act]):
    """R4.1, R4.3, R3.6"""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), [list(map(exact_bytes, history)) for history in start], script))
