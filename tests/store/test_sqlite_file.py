"""The SQLite file: its modes and settings, its guards against change, and what its failures look like (R4.3-R4.5)."""

import asyncio
import contextlib
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.checkpoint import from_json
from store.errors import StoreError, store_error
from store.rows import Entry, UsageRow
from store.sqlite import SqliteStore
from store.sqlite import store as sqlite_store
from tests.store.files import opened, sql
from tests.store.talk import Talk, assistant, user

U, A, U2 = user("a"), assistant("b"), user("c")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_file_and_new_directories_belong_to_their_owner_alone(tmp_path: Path):
    """R4.5: 0600 and 0700, side files too; a directory that was there keeps its mode."""
    tmp_path.chmod(0o755)
    file = tmp_path / "a" / "b" / "history.db"
    async with opened(file) as talk:
        await talk.ask(U)
        assert {mode(path) for path in file.parent.iterdir()} == {0o600}
        assert {path.name for path in file.parent.iterdir()} == {"history.db", "history.db-wal", "history.db-shm"}
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b"), mode(tmp_path)) == (0o700, 0o700, 0o755)


async def test_writer_is_durable_and_checks_references(file: Path):
    """R4.5"""
    async with opened(file) as talk:
        settings = ("synchronous", "foreign_keys", "journal_mode", "busy_timeout", "recursive_triggers")

        def read(connection: sqlite3.Connection) -> list[object]:
            return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]

        assert await talk.store._open.write.do(read) == [2, 1, "wal", 5000, 1]


async def test_readers_cannot_write(file: Path):
    async with opened(file) as talk:
        for lane in (talk.store._open.hot, talk.store._open.cold):
            with pytest.raises(StoreError) as caught:
                await lane.do(lambda connection: connection.execute("DELETE FROM route"))
            assert caught.value.reason == "readonly"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE log SET data = '{}' WHERE n = 1",
        "DELETE FROM log WHERE n = 1",
        "DELETE FROM log",
        "UPDATE node SET role = 'system'",
        "UPDATE body SET data = x'00'",
    ],
)
async def test_what_is_written_cannot_be_changed(file: Path, change: str):
    """R4.1, R4.3: not even by hand."""
    async with opened(file) as talk:
        await talk.exchange(U, reply=A)
        with sql(file) as connection, pytest.raises(sqlite3.IntegrityError):
            connection.execute(change)
        await talk.assert_rebuilt()


async def test_replacing_an_entry_is_a_change_too(file: Path):
    async with opened(file) as talk:
        await talk.ask(U)
        change = "INSERT OR REPLACE INTO log SELECT session, n, kind, at, node, '[]' FROM log WHERE n = 1"
        with pytest.raises(StoreError, match="append-only"):
            await talk.store._open.write.do(lambda connection: connection.execute(change))


async def test_an_item_that_fails_takes_only_itself(file: Path):
    """R4.5: many requests, one transaction; R4.4: nothing is half written."""
    async with opened(file) as talk:
        good = talk.record(user("good"))
        bad = talk.record(user("bad"), user("lost"))
        broken = replace(bad, bodies=[bad.bodies[0], 7])
        last = talk.record(user("last"))
        store = talk.store
        outcomes = await asyncio.gather(
            *(store.record_request(record) for record in (good, broken, last)), return_exceptions=True
        )
        assert isinstance(outcomes[1], StoreError)
        assert outcomes[1].reason == "failed"
        assert [row.messages for row in await store.sessions(None)] == [1, 1]
        with sql(file) as connection:
            assert connection.execute("SELECT count(*) FROM node").fetchone() == (2,)


async def test_cancelled_caller_leaves_nothing_half_written(file: Path):
    async with opened(file) as talk:
        task = asyncio.create_task(talk.ask(U))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        second = await talk.ask(user("second"))
        rows = await talk.store.sessions(None)
        assert [row.messages for row in rows] == [1, 1]
        assert second.session_key in {row.key for row in rows}


async def test_closing_finishes_what_is_queued(file: Path):
    async with opened(file) as talk:
        asked = [asyncio.create_task(talk.ask(user(str(n)))) for n in range(300)]
        await asyncio.sleep(0)
        await talk.store.close()
        assert len({recorded.session_key for recorded in await asyncio.gather(*asked)}) == 300
    async with opened(file) as talk:
        assert len(await talk.store.sessions(None, limit=1000)) == 300


async def test_closed_store_says_so(file: Path):
    async with opened(file) as talk:
        lanes = talk.store._open
    for call in (talk.ask(U), talk.store.log(1), lanes.write.do(lambda _: None)):
        with pytest.raises(StoreError) as caught:
            await call
        assert caught.value.reason == "closed"
    await talk.store.close()


async def test_locked_file_is_an_error_for_the_whole_batch_and_passes(file: Path, monkeypatch: pytest.MonkeyPatch):
    """R4.4: another process holds the file for longer than the busy timeout."""
    monkeypatch.setattr(sqlite_store, "BUSY_TIMEOUT", 0.05)
    async with opened(file) as talk:
        with sql(file) as connection:
            connection.execute("BEGIN IMMEDIATE")
            outcomes = await asyncio.gather(*(talk.ask(user(str(n))) for n in range(3)), return_exceptions=True)
            assert [outcome.reason for outcome in outcomes] == ["locked"] * 3
            assert list(await talk.store.sessions(None)) == []  # readers do not wait
        await talk.ask(U)
        await talk.assert_rebuilt()


async def test_full_disk_loses_nothing_that_was_written(file: Path):
    """R4.4: the batch fails, the file stays whole, and goes on when there is room."""
    async with opened(file) as talk:
        await talk.exchange(U, reply=A)
        limit = "PRAGMA max_page_count = 1"  # SQLite raises it to the pages in use
        await talk.store._open.write.do(lambda connection: connection.execute(limit).fetchall())
        with pytest.raises(StoreError) as caught:
            await talk.ask(user(os.urandom(20_000).hex()))
        assert caught.value.reason == "full"
        await talk.store._open.write.do(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchall())
        await talk.ask(U, A, U2)
        await talk.assert_rebuilt()


async def test_error_that_ends_the_transaction_fails_the_batch(file: Path):
    """SQLite may roll everything back on its own; then no item may be told that it was written."""
    async with opened(file) as talk:

        def end(connection: sqlite3.Connection) -> None:
            connection.execute("ROLLBACK")
            raise sqlite3.OperationalError("disk I/O error")

        write = talk.store._open.write
        outcomes = await asyncio.gather(talk.ask(U), write.do(end), talk.ask(U2), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 3
        assert list(await talk.store.sessions(None)) == []
        assert (await talk.ask(U)).lineage == "new"


async def test_commit_that_fails_leaves_no_transaction_open(file: Path):
    """A reference that points nowhere is found at the latest by the commit."""
    async with opened(file) as talk:

        def dangle(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA defer_foreign_keys = ON")
            connection.execute("INSERT INTO session_body VALUES (77, 88)")

        outcomes = await asyncio.gather(talk.ask(U), talk.store._open.write.do(dangle), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 2
        assert (await talk.ask(U)).lineage == "new"
        await talk.assert_rebuilt()


async def test_read_that_fails_takes_only_itself(file: Path):
    async with opened(file) as talk:
        cold = talk.store._open.cold

        def end(connection: sqlite3.Connection) -> None:
            connection.execute("COMMIT")

        good, bad = await asyncio.gather(cold.do(lambda _: 1), cold.do(lambda _: 1 / 0), return_exceptions=True)
        assert good == 1
        assert isinstance(bad, StoreError)
        ended = await asyncio.gather(cold.do(end), cold.do(lambda _: 1), return_exceptions=True)
        assert [type(outcome) for outcome in ended] == [StoreError] * 2
        assert await cold.do(lambda _: 2) == 2


async def test_lane_survives_a_hop_that_fails(file: Path):
    async with opened(file) as talk:
        lane = talk.store._open.cold
        batch, lane._batch = lane._batch, lambda _connection, _batch: 1 / 0
        with pytest.raises(StoreError):
            await lane.do(lambda _: 1)
        lane._batch = batch
        assert await lane.do(lambda _: 1) == 1


@pytest.mark.parametrize(
    ("content", "reason"), [(b"this is no database, but some text" * 100, "corrupt"), (None, "unavailable")]
)
async def test_what_is_no_store_is_not_opened(file: Path, content: bytes | None, reason: str):
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        await SqliteStore(file).open()
    assert caught.value.reason == reason
    assert content is None or file.read_bytes() == content


async def test_old_sqlite_is_named(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_store, "OLDEST_SQLITE", (99, 0, 0))
    with pytest.raises(StoreError, match=r"99\.0\.0 is needed"):
        await SqliteStore(file).open()


async def test_file_system_without_wal_is_named(monkeypatch: pytest.MonkeyPatch):
    """As on some network shares; an in-memory database has none either."""
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(StoreError, match="write-ahead"),
    ):
        sqlite_store._use_wal(connection)


async def test_wal_that_others_keep_from_being_switched_on_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch):
    with sql(file) as holder, sql(file) as connection:
        connection.execute("PRAGMA busy_timeout = 0")
        holder.execute("CREATE TABLE t (a)")
        holder.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite_store, "BUSY_TIMEOUT", 0.1)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite_store._use_wal(connection)
        monkeypatch.setattr(sqlite_store.time, "sleep", lambda _: holder.execute("COMMIT"))
        sqlite_store._use_wal(connection)


async def test_workers_may_start_at_once(file: Path):
    stores = [SqliteStore(file) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(Talk(store, f"t{n}").ask(U) for n, store in enumerate(stores)))
    assert len(await stores[0].sessions(None)) == 8
    await asyncio.gather(*(store.close() for store in stores))


async def test_appended_entries_carry_the_time(file: Path):
    store = SqliteStore(file, clock=lambda: 42.0)
    await store.open()
    recorded = await Talk(store).ask(U)
    await store.append("tenant", recorded.session_key, [Entry("note", {})])
    assert (await store.log(recorded.session_key))[-1].at == 42.0
    await store.close()


async def test_usage_is_summed_by_day_route_and_kind(file: Path):
    """R14.3: of answers, and of summaries that belong to no reply."""
    async with opened(file) as talk:
        row = UsageRow("2026-12-01", "r", "chat", 10, 5, cached=3)
        await talk.answer(await talk.ask(U), A, spent=row)
        await talk.answer(await talk.ask(U2), A, spent=replace(row, reasoning=4))
        await talk.store.add_usage("tenant", replace(row, kind="compaction"))
        await talk.store.add_usage("new tenant", replace(row, day="2026-12-02"))
    with sql(file) as connection:
        query = (
            "SELECT t.name, day, kind, answers, prompt, completion, cached, reasoning "
            "FROM usage JOIN tenant t ON t.id = tenant ORDER BY 1, 2, 3"
        )
        assert connection.execute(query).fetchall() == [
            ("new tenant", "2026-12-02", "chat", 1, 10, 5, 3, 0),
            ("tenant", "2026-12-01", "chat", 2, 20, 10, 6, 4),
            ("tenant", "2026-12-01", "compaction", 1, 10, 5, 3, 0),
        ]


async def test_work_grows_with_what_is_new(file: Path):
    """R4.2: two messages more cost as many statements on a thousand as on ten."""
    async with opened(file) as talk:
        counts = []
        for length in (11, 1001):
            begun = [user(f"{length} {n}") if n % 2 == 0 else assistant(f"{length} {n}") for n in range(length)]
            reply, more = assistant(f"{length} b"), user(f"{length} c")
            await talk.exchange(*begun, reply=reply)
            seen: list[str] = []
            await talk.store._open.write.do(lambda c, seen=seen: c.set_trace_callback(seen.append))
            recorded = await talk.exchange(*begun, reply, more, reply=assistant(f"{length} d"))
            await talk.store._open.write.do(lambda c: c.set_trace_callback(None))
            assert (recorded.lineage, recorded.added) == ("continued", 2)
            counts.append(len(seen))
        assert counts[0] == counts[1] < 60


def test_errors_are_named_by_one_word():
    assert store_error(OSError("x")).reason == "unavailable"
    assert store_error(sqlite3.ProgrammingError("x")).reason == "failed"
    assert store_error(KeyError("x")).reason == "failed"
    assert isinstance(store_error(KeyError("x")).__cause__, KeyError)
    known = StoreError("full", "x")
    assert store_error(known) is known


async def test_checkpoint_row_that_was_damaged_is_passed_over(file: Path):
    """R7.6"""
    async with opened(file) as talk:
        await talk.ask(U, A, U2)
        path = talk.sent[0][1].path
        with sql(file) as connection:
            connection.execute(
                "INSERT INTO checkpoint (tenant, source_digest, through_seq, checkpoint_id, created_at, data) "
                "SELECT id, ?, 1, 'c1', '', '{' FROM tenant",
                (path.digests[1],),
            )
        found = await talk.store.read_context("tenant", path, "r", from_json)
        assert (found.checkpoint, list(found.invalid)) == (None, ["c1"])
