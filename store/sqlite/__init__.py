"""The canonical history in one SQLite file, shared by the workers of one machine (R4.5, R16.1)."""

from store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
