"""From a URL to a store."""

from pathlib import Path

import pytest

from store.errors import StoreError
from store.open import open_store
from store.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [("sqlite:///palimpsest.db", "palimpsest.db"), ("sqlite:////data/palimpsest.db", "/data/palimpsest.db")],
)
def test_url_names_the_file(url: str, path: str):
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path == Path(path)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///file:x?mode=memory", "needs a file"),
        ("postgresql://host/db", "not supported yet"),
        ("mysql://host/db", "expected sqlite"),
        ("palimpsest.db", "expected sqlite"),
    ],
)
def test_url_that_cannot_be_used_is_refused_clearly(url: str, words: str):
    with pytest.raises(StoreError, match=words) as caught:
        open_store(url)
    assert caught.value.reason == "unsupported"
