"""Starting and stopping what is measured: each contender is one process with one worker, alone on its core."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import NotPossibleError, free_port, on_core

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 30.0
STOP_TIMEOUT = 40.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A running server to be measured."""

    name: str
    url: str
    pid: int
    store: Path | None = None
    """Its SQLite file, if it records."""


def wait_for_port(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    """Wait until somebody listens. Raises NotPossibleError if the process ends first, or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    said = process.stderr.read().decode() if process.poll() is not None and process.stderr else "it does not listen"
    raise NotPossibleError(f"{name} did not start: {said}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that this one started, and wait for it."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextmanager
def bare(upstream: str, core: int) -> Iterator[Contender]:
    """The bare pass-through, running."""
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.bare", upstream, str(port)]
    with _running("bare pass-through", command, port, core, ROOT, {}) as contender:
        yield contender


@contextmanager
def palimpsest(upstream: str, core: int, folder: Path, command: Sequence[str] = ()) -> Iterator[Contender]:
    """The gateway as its own command starts it, with all defaults: history, checkpoints and logs go to files."""
    port = free_port()
    folder.mkdir()
    store = folder / "palimpsest.db"
    environ = {
        "PALIMPSEST_UPSTREAM": f"{upstream}/v1",
        "PALIMPSEST_STORE_URL": f"sqlite:///{store}",
        "PALIMPSEST_HOST": "127.0.0.1",
        "PALIMPSEST_PORT": str(port),
    }
    command = command or [str(Path(sys.executable).with_name("palimpsest")), "serve"]
    with _running("palimpsest", command, port, core, folder, environ, store) as contender:
        yield contender


@contextmanager
def _running(
    name: str,
    command: Sequence[str],
    port: int,
    core: int,
    folder: Path,
    environ: dict[str, str],
    store: Path | None = None,
) -> Iterator[Contender]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PALIMPSEST_")}
    with on_core(core):
        output = subprocess.DEVNULL if store is None else (folder / "log.jsonl").open("wb")
        process = subprocess.Popen(
            command, cwd=folder, env={**inherited, **environ}, stdout=output, stderr=subprocess.PIPE
        )
    try:
        wait_for_port(process, port, name)
        yield Contender(name, f"http://127.0.0.1:{port}", process.pid, store)
    finally:
        stop(process)
        if not isinstance(output, int):
            output.close()
