"""A process that has the whole gateway imported, and becomes a gateway as often as it is told to.

Reading the modules takes seconds of CPU; 200 restarts would take minutes. Each gateway is a forked process of its own
that runs `palimpsest serve` from the first line on, so nothing but the modules is shared with the one before.

    serve PORT    fork a gateway; answers its pid
    reap          wait for its end; answers how it ended (minus the signal that killed it)

When the standard input ends, a gateway that still runs is killed.
"""

from __future__ import annotations

import os
import signal
import sys

from gateway.cli import build
from gateway.cli.serve import serve
from gateway.tokens import TokenCounter

LOG = "gateway.log"


def become_gateway(port: str) -> None:
    """Run the command, its output in a file of the working directory."""
    log = os.open(LOG, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    arguments = [serve.__name__, "--port", port]
    build(arguments)(arguments)


def main() -> None:
    TokenCounter().warm()
    pid = 0
    while line := sys.stdin.readline():
        command, _, port = line.strip().partition(" ")
        if command == "serve":
            pid = os.fork()
            if pid == 0:
                become_gateway(port)
                os._exit(0)
            print(pid, flush=True)
        else:
            _, status = os.waitpid(pid, 0)
            pid = 0
            print(os.waitstatus_to_exitcode(status), flush=True)
    if pid:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
