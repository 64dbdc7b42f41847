"""The context window of a model by its name (R5.1): a table of our own, then the data of genai-prices."""

import importlib
import re
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gateway.cache import GenerationCache

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import Provider

CACHED_MODELS = 1024
_UNKNOWN = 0


def find_config_dir(package: Path = Path(__file__).parent) -> Path:
    """The folder of the shipped configuration: inside the package in a wheel, beside it in a checkout."""
    installed = package / "_config"
    return installed if installed.is_dir() else package.parent / "config"


class ModelWindows:
    """Looks windows up, and remembers what it found. May be used by several threads.

    The package's data takes most of a second to import, so it is read at first need, or by `warm` in a thread at
    start; it is never fetched. `overrides` are globs on lower-case names, the first that fits counts.
    """

    def __init__(self, overrides: Mapping[str, int]) -> None:
        self._overrides = overrides
        self._found: GenerationCache[tuple[str, str | None], int] = GenerationCache(CACHED_MODELS)
        self._lock = threading.Lock()
        self._data: DataSnapshot | None = None

    @classmethod
    def shipped(cls) -> "ModelWindows":
        """With the overrides of `config/models.toml`."""
        table = tomllib.loads((find_config_dir() / "models.toml").read_text("utf-8"))
        return cls(cast("dict[str, int]", table["windows"]))

    @property
    def ready(self) -> bool:
        """Whether the package's data is in memory; before, `window_of` may take a second."""
        return self._data is not None

    def warm(self) -> None:
        """Read the package's data. Call it in a thread."""
        with self._lock:
            if self._data is None:
                # Not a plain import: it would make every start of the command line wait for it.
                self._data = importlib.import_module("genai_prices.data_snapshot").get_snapshot()

    def window_of(self, model: str, base_url: str | None = None) -> int | None:
        """The model's context window in tokens; None if it is not known.

        First that knows it: our own table; the provider whose API `base_url` is; the provider that the name's prefix
        names ("openai/gpt-4o"); the provider that makes models of such names. A model that only others host has the
        window that most of them give it, the smaller of equals. Not the smallest of all: one host's odd cap would
        shrink the model everywhere and for good, while a figure that is too large is put right by the first overflow.
        """
        key = (model, base_url)
        known = self._found.get(key)
        if known is None:
            known = self._look_up(model, base_url) or _UNKNOWN
            self._found.put(key, known)
        return known or None

    def _look_up(self, model: str, base_url: str | None) -> int | None:
        names = list(_spellings(model))
        for name in names:
            for pattern, window in self._overrides.items():
                if fnmatchcase(name, pattern):
                    return window
        self.warm()
        assert self._data is not None
        providers = [*_likely_providers(self._data, names, base_url)]
        likely = (_window(provider, name) for provider in providers for name in names)
        return next(filter(None, likely), None) or _most_common(self._data, names)


def _spellings(model: str) -> Iterator[str]:
    """The name as asked, then without the marks of relays: a leading `ft:`, a trailing `:free`, prefixes by `/`."""
    name = model.strip().lower().removeprefix("ft:")
    for whole in dict.fromkeys((name, name.partition(":")[0])):
        parts = whole.split("/")
        yield from ("/".join(parts[start:]) for start in range(len(parts)))


def _likely_providers(data: "DataSnapshot", names: list[str], base_url: str | None) -> Iterator["Provider"]:
    if base_url:
        yield from (p for p in data.providers if re.match(p.api_pattern, base_url))
    prefixes = {name.partition("/")[0] for name in names if "/" in name}
    yield from (p for p in data.providers if p.id in prefixes)
    for name in names:
        yield from (p for p in data.providers if p.model_match is not None and p.model_match.is_match(name))


def _most_common(data: "DataSnapshot", names: list[str]) -> int | None:
    for name in names:
        windows = Counter(window for provider in data.providers if (window := _window(provider, name)))
        if windows:
            return min(windows, key=lambda window: (-windows[window], window))
    return None


def _window(provider: "Provider", name: str) -> int | None:
    model = provider.find_model(name)
    return model.context_window if model else None
