"""Where the gateway's time goes: `palimpsest serve` with cProfile in every thread.

Run as `python -m tests.bench.profiled FILE`; at its end it writes `FILE` (the event loop) and `FILE.threads` (the store's
threads and all others) for `pstats`. Profiled code runs two to three times slower: compare shares, not seconds.
"""

from __future__ import annotations

import cProfile
import pstats
import signal
import sys
import threading
from types import FrameType
from typing import Any

import typer

from gateway.cli.serve import serve


def main() -> None:
    """Serve by the environment's settings until SIGINT or SIGTERM."""
    target = sys.argv[1]
    profiles: list[cProfile.Profile] = []

    def begin(_frame: FrameType, _event: str, _arg: Any) -> None:
        profile = cProfile.Profile()
        profiles.append(profile)
        # Takes the place of this function in the new thread.
        profile.enable()

    # The server raises the signal again at its end, which would be the end before the figures are written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.setprofile(begin)
    own = cProfile.Profile()
    own.enable()
    try:
        serve(host=None, port=None, config=None)
    except (KeyboardInterrupt, SystemExit, typer.Exit):
        return
    finally:
        own.disable()
        threading.setprofile(None)
        own.dump_stats(target)
        if profiles:
            pstats.Stats(*profiles).dump_stats(f"{target}.threads")


if __name__ == "__main__":
    main()
