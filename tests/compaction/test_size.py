"""Estimates, budgets, calibration, and learned limits (SPEC 5, R10.4)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.canonical import read_message
from compaction.size import (
    AcceptedInput,
    Calibration,
    LearnedLimit,
    accepted,
    budget,
    calibrated,
    continued,
    effective_window,
    learn,
    looks_truncated,
    media_tokens,
    message_tokens,
)
from compaction.types import Budget, Policy

DAY = 24 * 3600


def reading(*parts):
    message = {"role": "user", "content": list(parts)}
    return read_message(message, json.dumps(message).encode())


def test_a_message_costs_its_text_and_four():
    """R5.3."""
    assert message_tokens(reading({"type": "text", "text": "hi"}), 7) == 11


def test_an_image_has_a_fixed_cost_whatever_its_size():
    """R5.3: 765 by default, also in a small window."""
    assert media_tokens([("image", 5_000_000)], 1000) == 765
    assert media_tokens([("image", 10), ("image", 0)], image_tokens=100) == 200


@pytest.mark.parametrize("kind", ["audio", "video", "file"])
def test_other_media_cost_by_their_bytes_and_at_most_a_quarter_of_the_window(kind):
    """R5.3."""
    assert media_tokens([(kind, 1600)]) == 100
    assert media_tokens([(kind, 1601)]) == 101
    assert media_tokens([(kind, 10**9), (kind, 16)], 8000) == 2001
    assert media_tokens([(kind, 10**6)], None, bytes_per_token=100) == 10_000


def test_the_parts_of_a_message_are_added_to_its_text():
    """R5.3."""
    data = "A" * 6400  # 4,800 bytes
    media = reading({"type": "file", "file": {"file_data": data}}, {"type": "image_url", "image_url": {"url": "u"}})
    assert message_tokens(media, 0) == 4 + 300 + 765
    assert message_tokens(media, 0, 400) == 4 + 100 + 765


@pytest.mark.parametrize(
    ("window", "output", "most", "expected"),
    [
        (100_000, 4_000, None, (4_000, 96_000)),
        (100_000, None, None, (16_384, 83_616)),
        (8_000, None, None, (2_000, 6_000)),
        (8_000, 100_000, None, (4_000, 4_000)),  # never above half the window
        (8_000, -1, None, (2_000, 6_000)),  # some back ends' word for "no limit"
        (8_000, 0, None, (2_000, 6_000)),
        (100_000, 4_000, 20_000, (4_000, 20_000)),
        (100_000, 4_000, 99_000, (4_000, 96_000)),
        (1, None, None, (0, 1)),
        (0, None, None, (0, 1)),  # never below 1
        (None, 4_000, 20_000, (0, 20_000)),
        (None, None, 0, (0, 1)),
    ],
)
def test_high_water_is_what_the_reserve_leaves(window, output, most, expected):
    """R5.2."""
    found = budget(window, output, most, Policy())
    assert (found.reserve, found.high) == expected
    assert found.window == window


def test_soft_and_low_water_are_shares_of_high_water():
    """R5.2, R6.2."""
    assert budget(2000, 1000, None, Policy()) == Budget(2000, 1000, high=1000, soft=800, low=600)
    assert budget(2000, 1000, None, Policy(soft=0.5, target=0.25)).soft == 500
    assert budget(2000, 1000, None, Policy(soft=0.5, target=0.25)).low == 250


def test_with_nothing_known_there_is_no_budget():
    """R5.1: nothing is compacted on a guess."""
    assert budget(None, 4_000, None, Policy()) == Budget(None, 0, None, None, None)


@given(st.integers(1, 10**7), st.none() | st.integers(-5, 10**7), st.none() | st.integers(1, 10**7))
def test_a_budget_is_never_absurd(window, output, most):
    """R5.2."""
    found = budget(window, output, most, Policy())
    assert 0 <= found.reserve <= window // 2
    assert 1 <= found.high <= window
    assert found.low <= found.soft <= found.high


# Calibration


def test_without_a_sample_the_estimate_stands():
    """R5.4."""
    assert Calibration().ratio == 1.0
    assert calibrated(1000, Calibration()) == 1000


def test_the_largest_of_the_last_eight_ratios_counts():
    """R5.4."""
    calibration = Calibration().with_sample(100, 200)
    for _ in range(7):
        calibration = calibration.with_sample(100, 120)
    assert calibration.ratio == 2.0
    assert calibrated(1001, calibration) == 2002
    calibration = calibration.with_sample(100, 110)
    assert calibration.ratio == 1.2
    assert len(calibration.ratios) == 8


@pytest.mark.parametrize(("reported", "ratio"), [(1, 0.5), (10_000, 3.0), (80, 0.8)])
def test_a_ratio_stays_within_bounds(reported, ratio):
    """R5.4."""
    assert Calibration().with_sample(100, reported).ratio == ratio


@pytest.mark.parametrize(("estimate", "reported"), [(0, 10), (10, 0), (-1, 10), (10, -1)])
def test_figures_that_are_not_positive_teach_nothing(estimate, reported):
    """R5.4."""
    known = Calibration((1.5,))
    assert known.with_sample(estimate, reported) == known


def test_an_estimate_is_rounded_up():
    """R5.4: strictly greater than high water must not be missed by a fraction."""
    assert calibrated(3, Calibration((1.1,))) == 4


def test_a_continued_request_adds_to_what_was_reported():
    """R5.4."""
    assert continued(5000, 100, Calibration((2.0,))) == 5200


@pytest.mark.parametrize(
    ("estimate", "reported", "expected"),
    [
        (10_000, 4_999, True),
        (10_000, 5_000, False),
        (10_000, 12_000, False),
        (4_097, 10, True),
        (4_096, 10, False),
        (10_000, 0, False),  # nothing was reported
    ],
)
def test_an_answer_that_saw_less_than_half_was_truncated(estimate, reported, expected):
    """R5.6."""
    assert looks_truncated(estimate, reported) is expected


# Learned limits


def learned(stated=None, estimate=0, known=None, taken=None, now=0.0):
    return learn(known, stated=stated, estimate=estimate, accepted_input=taken, now=now)


def test_the_limit_of_a_refusal_is_learned_for_a_day():
    """R10.4."""
    limit = learned(stated=8192, now=100.0)
    assert limit == LearnedLimit(8192, 100.0, 100.0 + DAY)
    assert effective_window(128_000, limit, 100.0 + DAY - 1) == 8192
    assert effective_window(128_000, limit, 100.0 + DAY) == 128_000  # the probe
    assert effective_window(None, limit, 101.0) == 8192
    assert effective_window(None, limit, 100.0 + DAY) is None


def test_the_learned_limit_wins_only_when_it_is_lower():
    """R5.1."""
    assert effective_window(4096, learned(stated=8192), 1.0) == 4096
    assert effective_window(4096, None, 1.0) == 4096
    assert effective_window(None, None, 1.0) is None


@pytest.mark.parametrize("stated", [None, 0, -5])
def test_where_no_limit_is_stated_a_share_of_what_was_refused_is_learned(stated):
    """R10.4."""
    assert learned(stated=stated, estimate=10_000).limit == 9500
    assert learned(stated=stated, estimate=0).limit == 1


def test_an_estimate_only_lowers_what_is_known():
    """R10.4."""
    known = learned(stated=8192, now=0.0)
    assert learned(estimate=20_000, known=known, now=5.0) == LearnedLimit(8192, 5.0, 5.0 + DAY)
    assert learned(estimate=4000, known=known, now=5.0).limit == 3800
    assert learned(estimate=20_000, known=known, now=DAY + 1.0).limit == 19_000


def test_the_providers_word_replaces_what_was_learned_before():
    """R10.4: one odd answer cannot shrink a route for ever."""
    known = learned(stated=1000)
    assert learned(stated=8192, known=known, now=5.0).limit == 8192


def test_a_stated_limit_below_what_was_lately_accepted_is_ignored():
    """R10.4."""
    known = learned(stated=50_000)
    taken = AcceptedInput(30_000, at=1000.0)
    assert learned(stated=8192, known=known, taken=taken, now=1000.0 + DAY - 1) is known
    assert learned(stated=8192, taken=taken, now=1001.0) is None
    assert learned(stated=8192, taken=taken, now=1000.0 + DAY).limit == 8192
    assert learned(stated=30_000, taken=taken, now=1001.0).limit == 30_000


def test_the_largest_input_of_a_day_is_kept():
    """R10.4."""
    first = accepted(None, 100, 0.0)
    assert first == AcceptedInput(100, 0.0)
    assert accepted(first, 50, 10.0) is first
    assert accepted(first, 100, 10.0) == AcceptedInput(100, 10.0)
    assert accepted(first, 200, 10.0) == AcceptedInput(200, 10.0)
    assert accepted(first, 50, float(DAY)) == AcceptedInput(50, float(DAY))
