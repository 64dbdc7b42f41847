"""Windows as upstreams state them (R5.1)."""

import pytest

from gateway.model_lists import windows_of


@pytest.mark.parametrize(
    "entry",
    [
        {"context_length": 8192},
        {"max_model_len": "8192"},
        {"context_window": 8192},
        {"max_context_length": " 8192 "},
        {"meta": {"n_ctx": 8192}},
        {"context_length": None, "max_model_len": 0, "meta": {"n_ctx": "8192"}},
    ],
)
def test_every_field_is_read(entry):
    """R5.1: numbers or numeric strings."""
    assert windows_of({"data": [{"id": "m", **entry}]}) == {"m": 8192}


@pytest.mark.parametrize(
    "listing",
    [
        None,
        [],
        "x",
        {"data": None},
        {"data": [1, None, {"id": 7, "context_length": 8192}]},
        {"data": [{"id": "m", "context_length": value} for value in (True, -1, 0, 1.5, "1e3", "", [], {})]},
    ],
)
def test_anything_else_is_passed_over(listing):
    assert windows_of(listing) == {}


def test_the_first_entry_of_a_name_counts_and_other_forms_of_a_list_are_read():
    listing = [{"id": "a", "context_length": 1}, {"id": "a", "context_length": 2}, {"name": "b", "context_length": 3}]
    assert windows_of({"models": listing}) == windows_of(listing) == {"a": 1, "b": 3}
