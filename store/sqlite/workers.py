"""Which processes have the store open: a request is in flight only as long as its worker lives."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from pathlib import Path

_START_TIME_FIELD = 19
"""Of `/proc/<pid>/stat`, counted after the command's name."""


def register(connection: sqlite3.Connection) -> int:
    """Enter this process, and strike out those of this machine that are gone, which ends their flights."""
    host, pid = socket.gethostname(), os.getpid()
    rows = connection.execute("SELECT id, pid, birth FROM worker WHERE host = ?", (host,)).fetchall()
    gone = [(key,) for key, other, birth in rows if not is_alive(other, birth)]
    connection.executemany("DELETE FROM worker WHERE id = ?", gone)
    sql = "INSERT INTO worker (host, pid, birth, started) VALUES (?, ?, ?, ?)"
    key = connection.execute(sql, (host, pid, birth_of(pid), time.time())).lastrowid
    assert key is not None
    return key


def resign(connection: sqlite3.Connection, worker: int) -> None:
    """Strike out a worker that ends."""
    connection.execute("DELETE FROM worker WHERE id = ?", (worker,))


UNBORN = "ended"


def is_alive(pid: int, birth: str) -> bool:
    """Whether the process with that pid is still the one that was born then: pids are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, and another user's
        return birth_of(pid) == birth
    return birth_of(pid) == birth


def birth_of(pid: int) -> str:
    """When a process was started, in a form to compare; empty where the system does not tell.

    A process that has ended and waits to be noticed by its parent was never born.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()
    return UNBORN if fields[0] == b"Z" else fields[_START_TIME_FIELD].decode()
