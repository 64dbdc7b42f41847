"""Numbered schema steps with a ledger, each in one transaction."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import StoreError
from store.migrations import Step, migrate, read_steps, statements


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db", isolation_level=None)) as opened:
        yield opened


ONE = Step(1, "one", "CREATE TABLE a (x);\nCREATE TRIGGER t BEFORE DELETE ON a BEGIN\n SELECT 1; SELECT 2;\nEND;\n")
TWO = Step(2, "two", "INSERT INTO a VALUES (7);")


def ledger(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    return connection.execute("SELECT number, name FROM migration").fetchall()


def test_steps_are_applied_once_and_written_down(connection: sqlite3.Connection):
    assert migrate(connection, [ONE]) == 1
    assert migrate(connection, [ONE, TWO]) == 1
    assert migrate(connection, [ONE, TWO]) == 0
    assert ledger(connection) == [(1, "one"), (2, "two")]
    assert connection.execute("SELECT x FROM a").fetchall() == [(7,)]


def test_step_that_fails_leaves_nothing(connection: sqlite3.Connection):
    bad = Step(2, "bad", "CREATE TABLE b (x);\nINSERT INTO missing VALUES (1);")
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [ONE, bad])
    assert ledger(connection) == [(1, "one")]
    assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'b'").fetchall() == []
    assert migrate(connection, [ONE, TWO]) == 1


def test_step_that_ends_its_own_transaction_is_an_error(connection: sqlite3.Connection):
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [Step(1, "rash", "COMMIT;")])


def test_file_of_a_newer_version_is_refused(connection: sqlite3.Connection):
    migrate(connection, [ONE, TWO])
    with pytest.raises(StoreError, match="newer version") as caught:
        migrate(connection, [ONE])
    assert caught.value.reason == "unsupported"


def test_shipped_steps_apply(connection: sqlite3.Connection):
    steps = read_steps()
    assert migrate(connection, steps) == len(steps) >= 1
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_numbers_without_gaps(tmp_path: Path):
    (tmp_path / "0001_a.sql").write_text("SELECT 1;")
    (tmp_path / "notes.sql").write_text("not a step")
    assert read_steps(tmp_path) == [Step(1, "a", "SELECT 1;")]
    (tmp_path / "0003_c.sql").write_text("SELECT 1;")
    with pytest.raises(StoreError, match="numbered"):
        read_steps(tmp_path)


def test_script_that_ends_inside_a_statement_is_an_error():
    assert list(statements("SELECT 1;\n\n")) == ["SELECT 1;\n"]
    with pytest.raises(StoreError, match="inside a statement"):
        list(statements("SELECT 1;\nSELECT"))
