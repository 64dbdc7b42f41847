"""A gateway in a process of its own, as `palimpsest serve` runs it, whose memory can be measured."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def serving(folder: Path, upstream: str) -> Iterator[tuple[str, int]]:
    """A gateway in a process of its own: its URL and its process id."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PALIMPSEST_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "PALIMPSEST_UPSTREAM": f"{upstream}/v1",
        "PALIMPSEST_STORE_URL": f"sqlite:///{folder / 'palimpsest.db'}",
    }
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the gateway ended"
            found = re.search(r"listens on (http://127\.0\.0\.1:\d+)", line)
        ready(found[1])
        yield found[1], process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


def ready(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the gateway is not ready")


def most_memory(pid: int) -> int:
    """The largest resident set of a process so far, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
