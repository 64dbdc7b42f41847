"""A bounded cache that costs one dictionary look-up on the hot path."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class GenerationCache(Generic[K, V]):
    """Keeps between `limit` and twice `limit` of the most recently used entries (R16.2).

    Two generations instead of a linked list: a hit in the young one moves nothing, a hit in the old one moves the
    entry to the young one, and when the young one is full the old one is dropped whole.
    """

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value, or None."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Remember a value."""
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def __len__(self) -> int:
        """How many entries are held, those of both generations."""
        return len(self._young) + len(self._old)
