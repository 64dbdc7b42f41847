"""The gateway of the crash suite: a process that is started, killed with SIGKILL, and started again on its store."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from tests.e2e.crash_nursery import LOG

STORE = "palimpsest.db"
START_LIMIT = 60.0
"""Seconds; the machine may be busy with other things."""
ROOT = Path(__file__).parents[2]


@dataclass
class KillableGateway:
    """A gateway on a fixed port, its store in `folder`."""

    folder: Path
    port: int
    nursery: subprocess.Popen[str]
    pid: int = 0
    rival: sqlite3.Connection | None = None
    """Another process on the same store."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / STORE

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.pid = int(self._tell(f"serve {self.port}"))
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            if self._is_ready():
                self._dismiss_rival()
                return
            time.sleep(0.01)
        raise TimeoutError(f"no gateway within {START_LIMIT} s:\n{self.log()}")

    def _is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_LIMIT)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except ConnectionError:
            return False
        finally:
            connection.close()

    def stall(self) -> None:
        """Take the store's write lock, as another worker may at any time: nothing can be committed until `bury`."""
        self.rival = sqlite3.connect(self.store, timeout=START_LIMIT, isolation_level=None)
        self.rival.execute("BEGIN IMMEDIATE")

    def _dismiss_rival(self) -> None:
        """Only now: the last to close a store tidies it up, and would do the next gateway's recovery for it."""
        if self.rival is not None:
            self.rival.close()
            self.rival = None

    def strike(self) -> None:
        """`kill -9`, at this very moment. `bury` has to follow."""
        os.kill(self.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Wait until the killed process is gone."""
        assert self._reap() == -signal.SIGKILL, "the gateway had ended by itself"
        if self.rival is not None:
            self.rival.execute("ROLLBACK")

    def stop(self) -> None:
        """SIGTERM, as an operator stops it."""
        os.kill(self.pid, signal.SIGTERM)
        self._reap()

    def _reap(self) -> int:
        return int(self._tell("reap"))

    def _tell(self, command: str) -> str:
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(command + "\n")
        self.nursery.stdin.flush()
        return self.nursery.stdout.readline()

    def snapshot(self, into: Path) -> Path:
        """A copy of what the killed process has left on the disk, as it lies there."""
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        for suffix in ("", "-wal"):
            source = self.store.with_name(STORE + suffix)
            if source.exists():
                shutil.copyfile(source, into / source.name)
        return into / STORE

    def log(self) -> str:
        """What it wrote on its standard output and error, in all its lives."""
        path = self.folder / LOG
        return path.read_text() if path.exists() else ""


def free_port() -> int:
    """A port that is free now; the gateway needs the same one again after each restart."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def killable_gateway(folder: Path, **variables: str) -> Iterator[KillableGateway]:
    """A gateway that is not started yet; `variables` are its environment's `PALIMPSEST_*`."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PALIMPSEST_STORE_URL": f"sqlite:///{folder / STORE}",
        "PALIMPSEST_SECRET": "a secret for tests only",
        **variables,
    }
    nursery = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.crash_nursery"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with nursery:
        yield KillableGateway(folder, free_port(), nursery)
        assert nursery.stdin is not None
        nursery.stdin.close()
