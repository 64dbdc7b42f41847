"""One run of wrk against one server, and what it cost that server."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import cpu_seconds, tool
from tests.bench.processes import Contender, stop
from tests.bench.workload import Case

SCRIPT = Path(__file__).with_name("requests.lua")
CONNECTIONS = 32
SEED_TIMEOUT = 120
WARM_REQUESTS = 30
PATIENT = 64
MIN_THINK = 0.1
"""Seconds; with more connections than this needs, a low rate would measure cold connections."""
_MARK = "BENCH "
_ERRORS = ("connect", "read", "write", "timeout", "status")


class LoadError(Exception):
    """A run that measured nothing: wrk failed, or requests did."""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw. Latencies are seconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    errors: int

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what wrk saw, and the server's CPU seconds meanwhile."""

    load: Load
    cpu: float

    @property
    def cpu_per_thousand(self) -> float:
        """CPU seconds of the server for 1,000 requests."""
        return 1000 * self.cpu / self.load.requests if self.load.requests else 0.0


@dataclass(frozen=True, slots=True)
class Added:
    """What a server adds to the latency of requests that do not compete."""

    case: Case
    direct: Load
    through: Load

    @property
    def p50(self) -> float:
        """Seconds."""
        return self.through.p50 - self.direct.p50

    @property
    def p99(self) -> float:
        """Seconds."""
        return self.through.p99 - self.direct.p99


def parse_load(output: str) -> Load:
    """The figures in the output of wrk with this package's script. Raises LoadError."""
    line = next((line for line in output.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        raise LoadError(f"wrk gave no figures: {output.strip()[-500:]}")
    values = json.loads(line.removeprefix(_MARK))
    return Load(
        requests=values["requests"],
        seconds=values["microseconds"] / 1e6,
        p50=values["p50"] / 1e6,
        p99=values["p99"] / 1e6,
        errors=sum(values[name] for name in _ERRORS),
    )


def command_of(
    url: str, case: Case, tag: str, seconds: float, connections: int = CONNECTIONS, **more: object
) -> list[str]:
    """The command that sends a case."""
    options = ["-t1", f"-c{connections}", f"-d{max(round(seconds), 1)}", "--timeout", "30s", "--latency"]
    return [tool("wrk"), *options, "-s", str(SCRIPT), url, "--", *case.arguments(tag, **more)]


def measure(contender: Contender, case: Case, tag: str, seconds: float) -> Run:
    """Send a case for some seconds, as fast as answers come. Raises LoadError."""
    if case.seeded and contender.store is not None:
        seed(contender.url, case, tag)
    before = cpu_seconds(contender.pid)
    load = run(command_of(contender.url, case, tag, seconds))
    return Run(load, cpu_seconds(contender.pid) - before)


def warm(contender: Contender, cases: Sequence[Case]) -> None:
    """Let the server load what it loads at its first requests, and check that it answers. Raises LoadError."""
    body = b'{"model":"gpt-4.1-mini","messages":[{"role":"user","content":"Good morning."}]}'
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    request = urllib.request.Request(f"{contender.url}/v1/chat/completions", body, headers)
    for _ in range(WARM_REQUESTS):
        with urllib.request.urlopen(request, timeout=SEED_TIMEOUT) as answer:
            context = answer.headers.get("x-palimpsest-context", "verbatim")
            if context != "verbatim":
                raise LoadError(f"the path that is measured is the verbatim one, but this is {context!r}")
    for case in cases:
        measure(contender, case, "warm", 1)


def added_latency(contender: Contender, upstream: str, case: Case, rate: float, seconds: float) -> Added:
    """The same unhurried requests to the upstream itself and through the server. Raises LoadError.

    Each of `PATIENT` connections thinks for a random time before each request, so that requests come independently of
    answers, at about `rate` a second.
    """
    connections = min(PATIENT, max(round(rate * MIN_THINK), 1))
    think = max(round(1000 * connections / rate), 1)
    if case.seeded:
        seed(contender.url, case, "calm")
    direct, through = (
        run(command_of(url, case, "calm", seconds, connections, think=think)) for url in (upstream, contender.url)
    )
    return Added(case, direct, through)


def run(command: Sequence[str]) -> Load:
    """Run wrk. Raises LoadError if it fails, or any request did."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise LoadError(f"wrk failed: {ended.stderr.strip()[-500:]}{ended.stdout.strip()[-500:]}")
    load = parse_load(ended.stdout)
    if load.errors or not load.requests:
        raise LoadError(f"{load.errors} of {load.requests} requests failed")
    return load


def seed(url: str, case: Case, tag: str) -> None:
    """Let the server record the beginnings of a case's conversations. Raises LoadError."""
    command = command_of(url, case, tag, SEED_TIMEOUT, seed=case.conversations)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        # wrk runs for its whole time, so it is ended as soon as all are answered.
        if not any(line.startswith(b"seeded") for line in process.stdout):
            raise LoadError("the conversations could not be seeded")
    finally:
        stop(process)
