"""Where the event loop's CPU time goes: `palimpsest serve` under a sampler that hardly slows it.

Run as `python -m tests.bench.profiled FILE [serve options are taken from the environment]`. At its end it writes to FILE,
for each function, its share of the loop's CPU time: alone, and with what it called. A timer of the process' CPU time
interrupts the main thread; each sample weighs what the main thread itself has used since the last one, so that other
threads' time is not charged to it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import typer

from gateway.cli.serve import serve

INTERVAL = 0.001
SHOWN = 80
_PACKAGES = ("site-packages/", "python3.11/", f"{Path(__file__).parents[2]}{os.sep}")


class Sampler:
    """Collects weighed stacks of the main thread."""

    def __init__(self) -> None:
        self.alone: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()
        self._used = time.thread_time()

    def sample(self, _signal: int, frame: FrameType | None) -> None:
        """Signal handler."""
        now = time.thread_time()
        weight, self._used = round((now - self._used) * 1e6), now
        names = []
        while frame is not None:
            code = frame.f_code
            names.append(f"{_short(code.co_filename)}:{code.co_firstlineno} {code.co_name}")
            frame = frame.f_back
        if names:
            self.alone[names[0]] += weight
            self.whole.update(dict.fromkeys(names, weight))

    def forget(self) -> None:
        """Begin anew."""
        self.alone.clear()
        self.whole.clear()

    def text(self) -> str:
        """Both tables, largest first, in percent."""
        total = max(sum(self.alone.values()), 1)
        parts = [f"{total / 1e6:.1f} CPU seconds of the main thread"]
        for title, counts in (("alone", self.alone), ("with what it called", self.whole)):
            rows = [f"{100 * count / total:6.2f} %  {name}" for name, count in counts.most_common(SHOWN)]
            parts += ["", title, *rows]
        return "\n".join(parts) + "\n"


def _short(filename: str) -> str:
    for package in _PACKAGES:
        head, found, tail = filename.rpartition(package)
        if found:
            return tail if head == "" or package != _PACKAGES[-1] else filename
    return filename


def main() -> None:
    """Serve until SIGINT or SIGTERM; SIGUSR1 forgets what was sampled so far (after the warm-up)."""
    sampler = Sampler()
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.signal(signal.SIGUSR1, lambda *_: sampler.forget())
    # The server raises the signal again at its end, which would be the end before the figures are written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
    try:
        serve(host=None, port=None, config=None)
    except (KeyboardInterrupt, SystemExit, typer.Exit):
        return
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        Path(sys.argv[1]).write_text(sampler.text())


if __name__ == "__main__":
    main()
