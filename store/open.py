"""From a store's URL to the store."""

from __future__ import annotations

from pathlib import Path

from store.errors import StoreError
from store.protocol import Store
from store.sqlite import SqliteStore

SQLITE = "sqlite:///"


def open_store(url: str) -> Store:
    """The store that a URL names, not yet opened: `await store.open()`.

    `sqlite:///file.db` is relative to the working directory, `sqlite:////var/lib/file.db` absolute. Raises StoreError
    (`unsupported`) for anything else.
    """
    if url.startswith(("postgresql://", "postgres://")):
        raise StoreError("unsupported", "PostgreSQL is not supported yet: use sqlite:///path")
    if not url.startswith(SQLITE):
        raise StoreError("unsupported", f"store URL {url!r}: expected sqlite:///path or sqlite:////absolute/path")
    path = url.removeprefix(SQLITE)
    if not path or path == ":memory:" or path.startswith("file:"):
        raise StoreError("unsupported", f"store URL {url!r}: the history needs a file that workers can share")
    return SqliteStore(Path(path))
