"""A session may be as long as it likes: what a turn costs depends on what is new in it (R4.2, R16.2)."""

from __future__ import annotations

import pytest

from tests.bench.growth import LIMIT
from tests.e2e.growth import side_by_side


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_thousandth_turn_costs_as_much_as_the_hundredth(tmp_path):
    """At window 8,192: time of store, context and projection, rows and bytes written, turns 991-1,010 to 91-110."""
    growth = side_by_side(tmp_path)
    print(growth)
    assert growth.ratios["rows"] <= LIMIT, growth
    assert growth.ratios["bytes"] <= LIMIT, growth
    assert growth.ratios["seconds"] <= LIMIT, growth
