"""A worker is alive as long as the process that entered it, not any process of that pid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.sqlite import workers
from tests.store.files import opened, sql
from tests.store.talk import user

U = user("a")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def test_this_process_is_alive():
    assert workers.is_alive(os.getpid(), workers.birth_of(os.getpid()))


def test_pid_of_another_birth_is_gone():
    assert not workers.is_alive(os.getpid(), "12345 earlier")


def test_process_that_ended_is_gone():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    birth = workers.birth_of(ended.pid)
    ended.wait()
    assert not workers.is_alive(ended.pid, birth)


def test_process_of_another_user_is_judged_by_its_birth(monkeypatch: pytest.MonkeyPatch):
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(workers.os, "kill", refuse)
    assert workers.is_alive(os.getpid(), workers.birth_of(os.getpid()))
    assert not workers.is_alive(os.getpid(), "earlier")


def test_birth_is_unknown_where_the_system_does_not_tell():
    assert workers.birth_of(2**30) == ""


CRASHING = """
import asyncio, os, sys
from pathlib import Path
from store.sqlite import SqliteStore
from tests.store.talk import Talk, user

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    await Talk(store).ask(user("a"))
    os._exit(9)

asyncio.run(main())
"""


async def test_flight_of_a_worker_that_was_killed_is_over(file: Path):
    """R3.8: after a crash the client's equal request is a retry, not another conversation."""
    crashed = subprocess.run([sys.executable, "-c", CRASHING, str(file)], check=False, cwd=Path.cwd())
    assert crashed.returncode == 9
    async with opened(file) as talk:
        again = await talk.ask(U)
        assert again.lineage == "retried"
        with sql(file) as connection:
            assert connection.execute("SELECT pid FROM worker").fetchall() == [(os.getpid(),)]


async def test_flight_of_a_worker_that_closed_is_over(file: Path):
    async with opened(file) as talk:
        await talk.ask(U)
    async with opened(file) as talk:
        assert (await talk.ask(U)).lineage == "retried"


async def test_flight_of_a_living_worker_is_not(file: Path):
    async with opened(file) as talk, opened(file) as other:
        await talk.ask(U)
        other.now = talk.now + 10
        assert (await other.ask(U)).lineage == "twin"


async def test_flight_that_never_ends_is_not_waited_for(file: Path):
    """Its worker's machine may be gone for good."""
    async with opened(file) as talk:
        await talk.ask(U)
        talk.now += 7200
        assert (await talk.ask(U)).lineage == "retried"
