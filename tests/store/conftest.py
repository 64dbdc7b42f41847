"""Stores of every back end, each on its own fresh ground."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.open import open_store
from store.protocol import Store
from tests.store.talk import Talk

BACK_ENDS = ("sqlite",)


@pytest.fixture(params=BACK_ENDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where one test's history is kept; two stores opened on it are two workers."""
    return {"sqlite": f"sqlite:///{tmp_path}/history.db"}[request.param]


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = open_store(store_url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def other(store_url: str, store: Store) -> AsyncIterator[Store]:
    """A second worker on the same history."""
    opened = open_store(store_url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def talk(store: Store) -> Talk:
    return Talk(store)
