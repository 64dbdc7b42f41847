"""The bench's pure helpers; the bench itself is run by `make bench`."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.bench.canned import config
from tests.bench.growth import size_of
from tests.bench.load import Load, LoadError, Run, parse_load
from tests.bench.machine import cpu_seconds, on_core, parse_cpu, parse_peak, peak_megabytes
from tests.bench.report import Report, Series, ratios, verdicts
from tests.bench.workload import CASES, HUGE, LARGE, SMALL, answer_length, compared_with, filler

OUTPUT = """Running 5s test @ http://127.0.0.1:1
  2 threads and 32 connections

BENCH {"requests":5000,"microseconds":5000000,"p50":6000,"p99":20000,"connect":0,"read":1,"write":0,"timeout":2,"status":3}
"""


def series(name: str, rate: int, cpu: float, seconds: float = 5.0, case=SMALL) -> Series:
    load = Load(requests=round(rate * seconds), seconds=seconds, p50=0.006, p99=0.02, errors=0)
    return Series(name, case, (Run(load, cpu),))


def report(*given: Series, canned: float = 10_000) -> Report:
    upstream = {SMALL.name: Load(round(canned), 1.0, 0.001, 0.002, 0)}
    return Report(5, 1, upstream, given, (), {"bare": 1, "palimpsest": 2}, {"new": 1}, 0.0)


def test_the_figures_of_wrk_are_read_in_seconds():
    """Errors of all kinds are one number."""
    assert parse_load(OUTPUT) == Load(requests=5000, seconds=5.0, p50=0.006, p99=0.02, errors=6)
    assert parse_load(OUTPUT).rate == 1000


def test_output_without_figures_is_an_error_that_shows_it():
    with pytest.raises(LoadError, match="unable to connect"):
        parse_load("unable to connect to 127.0.0.1:1")


def test_cpu_seconds_are_user_and_system_time_whatever_the_command_is_called():
    """The name of a command may hold blanks and parentheses."""
    stat = "42 (a) b (c)) S " + " ".join(str(number) for number in range(4, 53))
    assert parse_cpu(stat, ticks=100) == (14 + 15) / 100


def test_cpu_seconds_of_this_process_grow_as_it_works():
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - before < 0.03:
        sum(range(10_000))
    assert cpu_seconds(os.getpid()) <= sum(os.times()[:2]) + 0.05


def test_peak_memory_is_read_in_megabytes():
    assert parse_peak("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n") == 2.0
    assert peak_megabytes(os.getpid()) > 1


def test_a_core_is_given_back():
    before = os.sched_getaffinity(0)
    core = min(before)
    with on_core(core):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before


def test_sizes_are_what_their_names_say():
    """Mean bytes of a request and number of messages, as R16.3 has them."""
    assert SMALL.messages == 6
    assert LARGE.messages == 101
    assert HUGE.messages == 400
    for case, wanted in ((SMALL, 600), (LARGE, 55_000), (HUGE, 800_000)):
        asked = len('{"role":"user","content":"Question Sr1j1.1234-101: "},') + case.text
        answered = len('{"role":"assistant","content":"Answer Sr1j1.1234-101. "},') + answer_length(case.mark)
        frame = len('{"model":"","messages":[{"role":"system","content":""}],"temperature":0.2}') + 50
        history = case.messages - 1
        size = frame + (history + 1) / 2 * asked + (history - 1) / 2 * answered
        assert size == pytest.approx(wanted, rel=0.05)


def test_the_texts_of_load_and_upstream_are_the_same():
    """An echo equals what was answered, so that a conversation continues (R3.7)."""
    for case in CASES:
        answer = filler(answer_length(case.mark))
        assert f"answer={answer}" in case.arguments("tag")
        assert f'"{answer}"' in config(1)


def test_a_seeded_case_has_conversations_enough_for_its_time():
    prepared = LARGE.prepared_for(10)
    assert prepared.conversations * prepared.stages >= 10 * 2000
    assert SMALL.prepared_for(10) == SMALL


def test_a_repeated_case_is_held_against_the_growing_one_of_its_size():
    assert [compared_with(case).name for case in CASES] == [SMALL.name, LARGE.name, SMALL.name, LARGE.name]


def test_ratios_are_those_of_medians_to_the_bare_pass_through():
    mine = series("palimpsest", 500, 5.0)
    assert ratios(report(series("bare", 1000, 5.0), mine), mine) == (0.5, 2.0)


def test_what_misses_a_target_or_is_doubtful_is_said():
    """R16.3: half of the throughput; the CPU share; a core of its own; an upstream that is no bottleneck."""
    bare = series("bare", 1000, 5.0)
    assert verdicts(report(bare, series("palimpsest", 500, 5.0))) == ["All targets are met."]
    assert "49% of bare" in verdicts(report(bare, series("palimpsest", 490, 5.0)))[0]
    assert "3.00 times" in verdicts(report(bare, series("palimpsest", 300, 4.5)))[1]
    assert "60% of its core" in verdicts(report(series("bare", 1000, 3.0), series("palimpsest", 900, 5.0)))[0]
    assert "2.0 times bare" in verdicts(report(bare, series("palimpsest", 500, 5.0), canned=2000))[0]


def test_series_take_the_median_run():
    runs = tuple(Run(Load(requests, 1.0, 0.001, 0.002, 0), 1.0) for requests in (100, 900, 200))
    assert replace(series("bare", 1, 1.0), runs=runs).rate == 200


def test_written_bytes_are_those_of_a_statement_s_parameters():
    assert size_of((b"abc", "dé", 7, 1.5, None)) == 3 + 3 + 8 + 8
    assert size_of({"a": b"abc", "b": None}) == 3
