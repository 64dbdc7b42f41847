"""`python -m tests.bench`: the gateway beside a bare pass-through, interleaved, on one core each in turn."""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.bench.canned import canned_upstream
from tests.bench.load import Added, Load, LoadError, Run, added_latency, command_of, measure, run, warm
from tests.bench.machine import NotPossibleError, need_tools, peak_megabytes, two_cores
from tests.bench.processes import Contender, bare, palimpsest
from tests.bench.report import Report, Series, save, show
from tests.bench.workload import CASES, HUGE, LARGE, SMALL, STREAMS, Case

Job = tuple[Contender, Case]
HUGE_RATE = 10.0
"""Requests a second of the 800 kB case: one at a time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench. 0: figures are there, good or bad; 1: a run failed; 2: this machine cannot run it."""
    options = _options(arguments)
    # Without a terminal there is no width to keep to.
    console = Console(width=None if sys.stdout.isatty() else 130)
    try:
        cores = two_cores()
        need_tools()
        # What is measured is started on the other core.
        os.sched_setaffinity(0, {cores.load})
        with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as name:
            folder = Path(name)
            with (
                canned_upstream(folder / "upstream") as upstream,
                bare(upstream, cores.gateway) as plain,
                palimpsest(upstream, cores.gateway, folder / "gateway") as gateway,
            ):
                report = _measured(options, console, upstream, plain, gateway)
    except NotPossibleError as error:
        console.print(f"The bench cannot run here: {error}")
        return 2
    except LoadError as error:
        console.print(f"The bench failed: {error}")
        return 1
    show(report, console)
    console.print(f"All figures: {save(report)}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="length of one run (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender on each case (default: 5)")
    parser.add_argument("--streams", action="store_true", help="also with streamed answers")
    parser.add_argument("--no-latency", action="store_true", help="without the latency at half of the peak load")
    return parser.parse_args(arguments)


def _measured(
    options: argparse.Namespace, console: Console, upstream: str, plain: Contender, gateway: Contender
) -> Report:
    load_average = os.getloadavg()[0]
    seconds = options.seconds
    cases = [case.prepared_for(seconds) for case in (*CASES, *(STREAMS if options.streams else ()))]
    canned = {case.name: run(command_of(upstream, case, "up", 1)) for case in cases}
    console.print("Warming up ...")
    jobs = [(plain, case) for case in cases if not case.repeated] + [(gateway, case) for case in cases]
    for contender in (plain, gateway):
        # Few conversations, since none of a second's requests need be spared.
        warm(contender, [replace(case, conversations=64) for other, case in jobs if other is contender])
    series = _rounds(jobs, options.rounds, seconds, console)
    added = () if options.no_latency else _latencies(gateway, upstream, series, seconds, canned)
    assert gateway.store is not None
    return Report(
        seconds=seconds,
        rounds=options.rounds,
        canned=canned,
        series=series,
        added=added,
        peak={contender.name: peak_megabytes(contender.pid) for contender in (plain, gateway)},
        recorded=recorded(gateway.store),
        load_average=load_average,
    )


def _rounds(jobs: Sequence[Job], rounds: int, seconds: float, console: Console) -> tuple[Series, ...]:
    """All jobs, round by round; each round begins with another."""
    runs: defaultdict[int, list[Run]] = defaultdict(list)
    for number in range(rounds):
        order = [(number + offset) % len(jobs) for offset in range(len(jobs))]
        for index in order:
            contender, case = jobs[index]
            one = measure(contender, case, f"r{number}j{index}", seconds)
            runs[index].append(one)
            console.print(
                f"round {number + 1}/{rounds}  {contender.name:17} {case.name:16} {one.load.rate:8,.0f} requests/s"
                f"  {one.cpu_per_thousand:.3f} CPU s/1,000"
            )
    return tuple(Series(contender.name, case, tuple(runs[index])) for index, (contender, case) in enumerate(jobs))


def _latencies(
    gateway: Contender, upstream: str, series: Sequence[Series], seconds: float, canned: dict[str, Load]
) -> tuple[Added, ...]:
    """At half of the gateway's own peak, and of a huge request alone (R16.3)."""
    found = []
    for case in (SMALL, LARGE):
        peak = next(one.rate for one in series if one.contender == gateway.name and one.case.name == case.name)
        half = min(peak, canned[case.name].rate) / 2
        found.append(added_latency(gateway, upstream, case.prepared_for(seconds, half), half, seconds))
    found.append(added_latency(gateway, upstream, HUGE, HUGE_RATE, seconds))
    return tuple(found)


def recorded(store: Path) -> dict[str, int]:
    """The requests that are in a store, by how they were placed: what was measured did record.

    Raises LoadError if anything was compacted, as the verbatim path is what is measured.
    """
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        sql = "SELECT data ->> '$.lineage', count(*) FROM log WHERE kind = 'request' GROUP BY 1 ORDER BY 2 DESC"
        if connection.execute("SELECT 1 FROM log WHERE kind LIKE 'compaction%' LIMIT 1").fetchone():
            raise LoadError("the gateway tried to compact what it was to pass on verbatim")
        return dict(connection.execute(sql).fetchall())
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
