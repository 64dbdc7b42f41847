"""The machine under the bench: cores, CPU seconds and memory of a process, and the native tools that it needs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PACKAGES = {"wrk": "wrk", "nginx": "nginx-light"}
"""Commands, and the Debian packages that have them."""
_UTIME, _STIME = 11, 12
"""Fields of `/proc/<pid>/stat`, counted after the command's name."""


class NotPossibleError(Exception):
    """The bench cannot run on this machine. The message is for people."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where: what is measured has a core of its own."""

    gateway: int
    load: int


def two_cores() -> Cores:
    """The first two cores that this process may use. Raises NotPossibleError."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise NotPossibleError("the bench needs two cores: one for the gateway, one for the load")
    return Cores(*usable[:2])


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes started inside run on that core alone; so does this one meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def parse_cpu(stat: str, ticks: int = TICKS) -> float:
    """User and system seconds from the text of a `stat` file, threads that have ended included."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) / ticks


def parse_peak(status: str) -> float:
    """The largest resident size so far, in MB, from the text of `/proc/<pid>/status`."""
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and all its threads."""
    return parse_cpu(Path(f"/proc/{pid}/stat").read_text("ascii", "replace"))


def peak_megabytes(pid: int) -> float:
    """The largest resident size of a process so far, in MB."""
    return parse_peak(Path(f"/proc/{pid}/status").read_text("ascii", "replace"))


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def need_tools() -> None:
    """Make sure that wrk and nginx are there; as root on Debian they are installed. Raises NotPossibleError."""
    missing = [command for command in PACKAGES if _find(command) is None]
    if not missing:
        return
    packages = [PACKAGES[command] for command in missing]
    wanted = f"{' and '.join(missing)} not found: apt-get install {' '.join(packages)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotPossibleError(wanted)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        command = ["apt-get", *arguments]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environ).returncode != 0:
            raise NotPossibleError(f"{wanted} (tried, and it failed)")
    if any(_find(command) is None for command in missing):
        raise NotPossibleError(wanted)


def tool(command: str) -> str:
    """The path of a native tool. Raises NotPossibleError."""
    path = _find(command)
    if path is None:
        raise NotPossibleError(f"{command} not found")
    return path


def _find(command: str) -> str | None:
    # Daemons live in /usr/sbin, which not everybody has on PATH.
    return shutil.which(command) or shutil.which(command, path="/usr/sbin:/usr/local/sbin")
