"""Windows of models by their names."""

import threading
from pathlib import Path

import pytest

from gateway.models import CACHED_MODELS, ModelWindows, find_config_dir


@pytest.fixture(scope="module")
def windows() -> ModelWindows:
    return ModelWindows.shipped()


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o", 128_000),
        ("GPT-4o", 128_000),
        ("gpt-4o-2024-08-06", 128_000),
        ("openai/gpt-4o", 128_000),
        ("openrouter/openai/gpt-4o", 128_000),
        ("gpt-4o:free", 128_000),
        ("ft:gpt-4o-mini-2024-07-18:org::id", 128_000),
        ("gpt-4", 8192),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", 200_000),
        ("gemini-2.5-pro", 1_048_576),
        ("models/gemini-2.5-pro", 1_048_576),
        ("meta-llama/llama-3.3-70b-instruct", 131_072),
    ],
)
def test_a_name_is_found_as_people_write_it(windows: ModelWindows, model: str, window: int):  # R5.1
    assert windows.window_of(model) == window


@pytest.mark.parametrize("model", ["sim-model", "", "my-own-finetune", "openai/no-such-model", "///", "a" * 10_000])
def test_an_unknown_name_has_no_window(windows: ModelWindows, model: str):  # R5.1
    assert windows.window_of(model) is None
    assert windows.window_of(model) is None


def test_the_maker_of_a_model_counts_more_than_who_hosts_it(windows: ModelWindows):
    """One host caps gpt-4.1 at 128,000 tokens."""
    assert windows.window_of("gpt-4.1") == 1_000_000
    assert windows.window_of("openai/gpt-4.1") == 1_000_000


def test_the_provider_that_is_asked_counts_most(windows: ModelWindows):
    assert windows.window_of("gpt-4.1", "https://api.githubcopilot.com") == 128_000
    assert windows.window_of("gpt-4.1", "https://api.openai.com/v1") == 1_000_000


def test_our_own_table_comes_first_and_needs_no_package_data():  # R5.1
    windows = ModelWindows({"gpt-4o*": 7, "gpt-*": 8})
    assert (windows.window_of("openai/gpt-4o-mini"), windows.window_of("gpt-5")) == (7, 8)
    assert not windows.ready


def test_warming_may_happen_in_several_threads():
    windows = ModelWindows({})
    threads = [threading.Thread(target=windows.warm) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert windows.ready


def test_names_cannot_fill_the_memory():  # R16.2
    windows = ModelWindows({"x-*": 1})
    for number in range(3 * CACHED_MODELS):
        windows.window_of(f"x-{number}")
    assert len(windows._found) <= 2 * CACHED_MODELS


def test_the_configuration_is_found_in_a_checkout_and_in_a_wheel(tmp_path: Path):
    assert (find_config_dir() / "gateway.toml").is_file()
    package = tmp_path / "gateway"
    package.mkdir()
    assert find_config_dir(package) == tmp_path / "config"
    (package / "_config").mkdir()
    assert find_config_dir(package) == package / "_config"


def test_the_shipped_table_holds_windows():
    for pattern, window in ModelWindows.shipped()._overrides.items():
        assert pattern == pattern.lower()
        assert 1000 < window < 10_000_000
