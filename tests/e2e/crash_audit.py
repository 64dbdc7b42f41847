"""What the crash suite holds the store against: every check of a store's file after a kill.

The store is read through `store.open`, on a copy of what the killed process left, so that the gateway's own
recovery is not done for it. Work is only done for what is new since the last look.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from compaction.checkpoint import from_json
from gateway.compiled import Sent
from gateway.conversation import ConversationReader
from gateway.rebuild import client_body, upstream_body
from gateway.simulator.received import Received
from gateway.tokens import TokenCounter
from gateway.wire import read_chat_request
from store.codec import unpack
from store.open import open_store
from store.protocol import Store
from store.rows import LogEntry, SessionRow
from tests.e2e.crash_traffic import MARK, Attempt, Conversation, without_nulls

Place = tuple[int, int]
"""A session's key, and a number in its log."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an upstream body can be made from."""

    place: Place
    checkpoint_id: str | None
    noted: bool
    """The request's or the response's entry says how it was made; else it follows from the log's checkpoints."""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Audit:
    """The looks at one store, kill after kill. `failures` is what a test asserts to be empty."""

    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rows: dict[Place, tuple[Any, ...]] = field(default_factory=dict)
    bodies_checked: int = 0
    requests: dict[str, Place] = field(default_factory=dict)
    """By the request's id."""
    answered: dict[Place, list[LogEntry]] = field(default_factory=lambda: defaultdict(list))
    by_client_body: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    upstream: dict[str, Origin] = field(default_factory=dict)
    """By SHA-256 of the body that the provider was sent."""
    checkpoints: dict[str, int] = field(default_factory=dict)
    """`through_seq` of everything that was ever completed."""
    summaries: set[str] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)
    """The last entry looked at, by session."""
    settled: set[str | int] = field(default_factory=set)
    """Marks of attempts and numbers of upstream bodies that were checked: they cannot change any more."""
    reader: ConversationReader = field(default_factory=lambda: ConversationReader(TokenCounter()))

    def expect(self, true: object, what: str) -> None:
        self.counts["checks"] += 1
        if not true:
            self.failures.append(what)

    # --- the file ---

    def look(self, path: Path, attempts: Sequence[Attempt], received: Sequence[Received], *, final: bool) -> None:
        """Check a store's file against what clients hold and what the provider was sent up to now."""
        with closing(sqlite3.connect(path)) as connection:
            self._file(connection)
            self._log(connection)
            self._checkpoint_rows(connection)
            self._bodies(connection)
        asyncio.run(self._through_store(path, attempts, received, final=final))

    def _file(self, connection: sqlite3.Connection) -> None:
        self.expect(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "integrity_check")
        self.expect(connection.execute("PRAGMA foreign_key_check").fetchall() == [], "foreign_key_check")

    def _log(self, connection: sqlite3.Connection) -> None:
        """R4.1: numbered 1, 2, 3 ...; nothing of it ever changes or goes."""
        sql = "SELECT s.id, s.next_n, min(l.n), max(l.n), count(*) FROM session s JOIN log l ON l.session = s.id GROUP BY s.id"
        for session, following, first, last, count in connection.execute(sql):
            self.expect((first, last, following) == (1, count, count + 1), f"session {session}: numbers have a gap")
        empty = "SELECT count(*) FROM session s WHERE NOT EXISTS (SELECT 1 FROM log WHERE session = s.id)"
        self.expect(connection.execute(empty).fetchone() == (0,), "a session without a log")
        sql = "SELECT session, n, kind, at, node, data FROM log"
        rows = {(session, n): tuple(row) for session, n, *row in connection.execute(sql)}
        for place, row in self.rows.items():
            self.expect(rows.get(place) == row, f"entry {place} has changed or is gone")
        self.rows = rows
        for (session, n), (kind, _, _, data) in ((place, row) for place, row in rows.items() if row[0] == "response"):
            asked = rows.get((session, json.loads(data)["request_n"]), ("nothing",))
            self.expect(
                asked[0] == "request" and json.loads(data)["request_n"] < n, f"{kind} {session}/{n} to no request"
            )

    def _checkpoint_rows(self, connection: sqlite3.Connection) -> None:
        """R9.3: the row and its event are one transaction."""
        rows = sorted(data for (data,) in connection.execute("SELECT data FROM checkpoint"))
        events = sorted(row[3] for row in self.rows.values() if row[0] == "compaction_completed")
        self.expect(rows == events, "checkpoint rows differ from their events")
        for data in events:
            made = json.loads(data)
            self.checkpoints[made["checkpoint_id"]] = made["through_seq"]

    def _bodies(self, connection: sqlite3.Connection) -> None:
        sql = "SELECT id, sha256, size, codec, data FROM body WHERE id > ? ORDER BY id"
        for key, name, size, codec, data in connection.execute(sql, (self.bodies_checked,)):
            whole = unpack(codec, data)
            self.expect(hashlib.sha256(whole).digest() == name and len(whole) == size, f"body {key} is not what it was")
            self.bodies_checked = key

    # --- the history ---

    async def _through_store(
        self, path: Path, attempts: Sequence[Attempt], received: Sequence[Received], *, final: bool
    ) -> None:
        store = open_store(f"sqlite:///{path}")
        await store.open()
        try:
            sent = {sha(attempt.body) for attempt in attempts}
            for session in await store.sessions(None, limit=1_000_000):
                await self._new_entries(store, session, sent)
            by_mark = {attempt.mark: attempt for attempt in attempts}
            for mark in by_mark.keys() - self.settled:
                await self._answer(store, by_mark[mark])
                self.settled.add(mark)
            for entry in received:
                if entry.n not in self.settled and await self._received(store, entry, by_mark, final=final):
                    self.settled.add(entry.n)
        finally:
            await store.close()

    async def _new_entries(self, store: Store, session: SessionRow, sent: set[str]) -> None:
        while entries := await store.log(session.key, self.seen.get(session.key, 0)):
            for entry in entries:
                self.seen[session.key] = entry.n
                place = (session.key, entry.n)
                if entry.kind == "request":
                    await self._request(store, place, entry, sent)
                elif entry.kind == "response":
                    asked = (session.key, entry.data["request_n"])
                    self.answered[asked].append(entry)
                    if "sent" in entry.data:
                        await self._note(store, asked, Sent.from_log(entry.data["sent"]), noted=True)
                elif entry.data.get("stage") == "dispatch":
                    asked = (session.key, entry.data["request_n"])
                    await self._note(store, asked, Sent.from_log(entry.data["sent"]), noted=True)
                elif entry.kind == "compaction_diagnostic" and "request" in entry.data:
                    body = await store.body(session.tenant, bytes.fromhex(entry.data["request"]))
                    self.summaries.add(sha(body))

    async def _request(self, store: Store, place: Place, entry: LogEntry, sent: set[str]) -> None:
        """Law 7: it can be rebuilt, and it is what a client sent."""
        stored = await store.request(*place)
        body = client_body(stored)
        self.expect(sha(body) in sent, f"request {place} is nothing that a client sent")
        request = read_chat_request(body)
        assert request is not None
        path = (await self.reader.read(stored.tenant, request, request.model, None)).path
        self.expect(entry.node == path.nodes[-1] and entry.seq == len(path), f"request {place} has another head")
        self.requests[entry.data["request_id"]] = place
        self.by_client_body[sha(body)].append(place)
        await self._note(store, place, Sent.from_log(entry.data["sent"]), noted=True)

    async def _note(self, store: Store, place: Place, sent: Sent, *, noted: bool) -> None:
        body = await upstream_body(store, self.reader, await store.request(*place), sent)
        if noted or sha(body) not in self.upstream:
            self.upstream[sha(body)] = Origin(place, sent.checkpoint_id, noted)

    async def _answer(self, store: Store, attempt: Attempt) -> None:
        """R4.2: whoever holds a byte has a request that is stored; whoever holds the whole, an answer that is."""
        if not attempt.request_id:
            return
        place = self.requests.get(attempt.request_id)
        self.expect(place, f"{attempt.mark}: the client holds part of an answer to a request that is not stored")
        if attempt.message is None or place is None:
            return
        self.counts["whole answers"] += 1
        tenant = (await store.request(*place)).tenant
        for entry in self.answered[place]:
            choices = [json.loads(await store.body(tenant, bytes.fromhex(name))) for name in entry.data["choices"]]
            whole = entry.data["status"] == 200 and not entry.data["interrupted"] and entry.data["error"] is None
            if whole and [without_nulls(choice) for choice in choices] == [attempt.message]:
                return
        self.expect(False, f"{attempt.mark}: the client holds an answer whole that is not stored whole")

    async def _received(self, store: Store, entry: Received, by_mark: dict[str, Attempt], *, final: bool) -> bool:
        """Every body that the provider received can be rebuilt from the store. False: this cannot be said yet."""
        name = sha(entry.body)
        if entry.summary:
            self.counts["summaries"] += 1
            self.expect(name in self.summaries, f"summary request {entry.n} is not in the log")
            return True
        attempt = by_mark[entry.headers[MARK]]
        if not attempt.request_id and not final:
            return False  # killed before anything was answered: the client's retry must record it
        place = self.requests.get(attempt.request_id)
        if place is None or not self.answered[place]:
            await self._follow(store, attempt)
        self.counts["upstream bodies"] += 1
        self.expect(name in self.upstream, f"{attempt.mark}: upstream body {entry.n} cannot be rebuilt")
        if origin := self.upstream.get(name):
            self.counts["noted" if origin.noted else "derived"] += 1
            self.expect(sha(attempt.body) in self.by_client_body, f"{attempt.mark}: the client's body is not stored")
        self.counts["upstream bodies of unanswered attempts"] += not attempt.request_id
        return True

    async def _follow(self, store: Store, attempt: Attempt) -> None:
        """Where the gateway was killed before it could note what it had sent: all that the log's checkpoints allow."""
        for place in self.by_client_body[sha(attempt.body)]:
            stored = await store.request(*place)
            (noted,) = await store.log(place[0], place[1] - 1, 1)
            sent = Sent.from_log(noted.data["sent"])
            request = read_chat_request(attempt.body)
            assert request is not None
            path = (await self.reader.read(stored.tenant, request, request.model, None)).path
            texts = await store.completed_checkpoints(stored.tenant, path)
            for checkpoint in filter(None, map(from_json, texts)):
                await self._note(store, place, replace(sent, checkpoint_id=checkpoint.checkpoint_id), noted=False)
            await self._note(store, place, replace(sent, checkpoint_id=None), noted=False)

    # --- across kills ---

    def prefixes(self, received: Iterable[Received], generations: Sequence[int]) -> None:
        """R12.3: between two compactions a projection only grows at its end, across restarts too.

        `generations` are the numbers of what the provider had received at each kill.
        """
        talks: dict[str, list[Received]] = defaultdict(list)
        for entry in received:
            if not entry.summary:
                talks[entry.headers[MARK].partition("/")[0]].append(entry)
        for name, entries in talks.items():
            for before, after in pairwise(entries):
                self._prefix(name, before, after)
                if any(before.n <= kill < after.n for kill in generations):
                    same = self._checkpoint_of(before) == self._checkpoint_of(after) is not None
                    self.counts["same checkpoint across a kill"] += same

    def _prefix(self, name: str, before: Received, after: Received) -> None:
        old, new = self._checkpoint_of(before), self._checkpoint_of(after)
        if old != new:
            grown = self.checkpoints.get(new or "", 0) > self.checkpoints.get(old or "", 0)
            self.expect(grown, f"{name}: the projection of {after.n} went back from checkpoint {old} to {new}")
            return
        first, second = read_chat_request(before.body), read_chat_request(after.body)
        assert first is not None
        assert second is not None
        kept = second.messages[: len(first.messages)]
        self.expect(kept == first.messages, f"{name}: {after.n} does not begin with the bytes of {before.n}")

    def _checkpoint_of(self, entry: Received) -> str | None:
        origin = self.upstream.get(sha(entry.body))
        return origin.checkpoint_id if origin else None

    async def conversations(self, path: Path, talks: Sequence[Conversation]) -> None:
        """R3.6, R3.8: a conversation stays one branch of one session, and no retry adds a message to it."""
        store = open_store(f"sqlite:///{path}")
        await store.open()
        try:
            for talk in talks:
                if talk.bodies:
                    await self._conversation(store, talk)
        finally:
            await store.close()

    async def _conversation(self, store: Store, talk: Conversation) -> None:
        self.expect(len(talk.sessions) == 1, f"{talk.name} is spread over {talk.sessions}")
        (session,) = {await store.find_session(None, name) for name in list(talk.sessions)[:1]}
        self.expect(session is not None and talk.session in {None, session.session}, f"{talk.name}: {session}")
        if session is None:
            return
        branches = await store.branches(session.key)
        self.expect(len(branches) == 1, f"{talk.name} has {len(branches)} branches")
        history = [json.loads(body) for body in await store.history(session.tenant, branches[0].head)]
        asked = json.loads(talk.bodies[-1])["messages"][1:]
        self.expect(history == asked, f"{talk.name}: its branch is not its history")
        messages = [entry for entry in self._entries(session.key) if entry[0] == "message"]
        self.expect(len(messages) == len(asked), f"{talk.name}: {len(messages)} entries for {len(asked)} messages")

    def _entries(self, session: int) -> list[tuple[Any, ...]]:
        return [row for place, row in self.rows.items() if place[0] == session]
