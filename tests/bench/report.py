"""From runs to figures: medians, ratios, a table for people and JSON for the record."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.load import Added, Load, Run
from tests.bench.workload import HUGE, Case, compared_with

FOLDER = Path(__file__).parents[2] / "bench-results"
MIN_THROUGHPUT, MAX_CPU, MAX_ADDED_P99, MAX_ADDED_HUGE, MIN_CANNED = 0.5, 2.9, 0.005, 0.010, 3.0
"""R16.3: shares of the bare pass-through's figures, seconds, and how much faster the upstream must be."""
BUSY = 0.9
"""A closed loop keeps the server's core busy; a server that got less of it shared it with somebody."""


@dataclass(frozen=True, slots=True)
class Series:
    """All runs of one contender on one case."""

    contender: str
    case: Case
    runs: tuple[Run, ...]

    @property
    def rate(self) -> float:
        """Median of requests a second."""
        return median(run.load.rate for run in self.runs)

    @property
    def cpu(self) -> float:
        """Median of CPU seconds for 1,000 requests."""
        return median(run.cpu_per_thousand for run in self.runs)

    @property
    def core(self) -> float:
        """Median share of the core that the server had."""
        return median(run.cpu / run.load.seconds for run in self.runs)

    def latency(self, name: str) -> float:
        """Median of a percentile, in milliseconds."""
        values: list[float] = [getattr(run.load, name) for run in self.runs]
        return 1000 * median(values)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run of the bench found."""

    seconds: float
    rounds: int
    canned: dict[str, Load]
    """The upstream alone, by case."""
    series: tuple[Series, ...]
    added: tuple[Added, ...]
    peak: dict[str, float]
    """Largest resident size by contender, in MB."""
    recorded: dict[str, int]
    """Requests in the store, by lineage."""
    load_average: float

    def bare(self, case: Case) -> Series:
        """The bare pass-through's runs that a case is held against."""
        wanted = compared_with(case).name
        return next(one for one in self.series if one.contender.startswith("bare") and one.case.name == wanted)


def ratios(report: Report, one: Series) -> tuple[float, float]:
    """Throughput and CPU per request as shares of the bare pass-through's, from medians."""
    bare = report.bare(one.case)
    return one.rate / bare.rate, one.cpu / bare.cpu


def show(report: Report, console: Console) -> None:
    """Print the figures, and what they say of the targets."""
    console.print(_table(report))
    for added in report.added:
        console.print(
            f"Added latency, {added.case.name}, at {added.through.rate:,.0f} requests/s: "
            f"p50 {1000 * added.p50:.2f} ms, p99 {1000 * added.p99:.2f} ms "
            f"(through {1000 * added.through.p99:.2f}, direct {1000 * added.direct.p99:.2f})"
        )
    kinds = ", ".join(f"{count:,} {lineage}" for lineage, count in report.recorded.items())
    console.print(f"In the store: {sum(report.recorded.values()):,} requests ({kinds}).")
    for line in verdicts(report):
        console.print(line)


def _table(report: Report) -> Table:
    title = f"median of {report.rounds} runs of {report.seconds:g} s (lowest to highest); one core, 32 connections"
    table = Table(title=title)
    for heading in (
        "case",
        "server",
        "requests/s",
        "of bare",
        "p50 ms",
        "p99 ms",
        "CPU s/1,000",
        "x bare",
        "core",
        "MB",
    ):
        table.add_column(heading, justify="left" if heading in {"case", "server"} else "right")
    for one in sorted(report.series, key=lambda one: (one.case.name, one.contender)):
        rates = [run.load.rate for run in one.runs]
        throughput, cpu = ratios(report, one)
        table.add_row(
            one.case.name,
            one.contender,
            f"{one.rate:,.0f} ({min(rates):,.0f}-{max(rates):,.0f})",
            f"{throughput:.0%}",
            f"{one.latency('p50'):.1f}",
            f"{one.latency('p99'):.1f}",
            f"{one.cpu:.3f}",
            f"{cpu:.2f}",
            f"{one.core:.0%}",
            f"{report.peak[one.contender]:,.0f}",
        )
    return table


def verdicts(report: Report) -> list[str]:
    """One line for each target that is missed, and for what makes the figures doubtful; one good line if there is none."""
    found = []
    for one in report.series:
        throughput, cpu = ratios(report, one)
        if throughput < MIN_THROUGHPUT:
            found.append(
                f"below target: {one.case.name}: {throughput:.0%} of bare, wanted {MIN_THROUGHPUT:.0%} (R16.3)"
            )
        if cpu > MAX_CPU:
            found.append(f"below target: {one.case.name}: {cpu:.2f} times bare's CPU, wanted at most {MAX_CPU}")
        if one.core < BUSY:
            found.append(f"doubtful: {one.contender}, {one.case.name}: it had only {one.core:.0%} of its core")
    for added in report.added:
        alone = added.case == HUGE
        value, limit = (added.p50, MAX_ADDED_HUGE) if alone else (added.p99, MAX_ADDED_P99)
        if value > limit:
            found.append(
                f"below target: {added.case.name}: adds {1000 * value:.1f} ms, wanted {1000 * limit:g} (R16.3)"
            )
    for name, load in report.canned.items():
        bare = next((one for one in report.series if one.contender.startswith("bare") and one.case.name == name), None)
        if bare is not None and load.rate < MIN_CANNED * bare.rate:
            found.append(
                f"doubtful: {name}: load and upstream do {load.rate / bare.rate:.1f} times bare, wanted 3 times"
            )
    return found or ["All targets are met."]


def save(report: Report) -> Path:
    """Write everything as JSON, under the time of day."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    data = {
        "machine": {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()},
        "report": asdict(report),
        "summary": _summary(report.series, report),
        "verdicts": verdicts(report),
    }
    path.write_text(json.dumps(data, indent=1))
    return path


def _summary(series: Sequence[Series], report: Report) -> list[dict[str, object]]:
    rows = []
    for one in series:
        throughput, cpu = ratios(report, one)
        rows.append(
            {
                "case": one.case.name,
                "contender": one.contender,
                "requests_per_second": round(one.rate, 1),
                "p50_ms": round(one.latency("p50"), 3),
                "p99_ms": round(one.latency("p99"), 3),
                "cpu_seconds_per_1000": round(one.cpu, 4),
                "throughput_of_bare": round(throughput, 3),
                "cpu_of_bare": round(cpu, 3),
                "core_share": round(one.core, 3),
            }
        )
    return rows
