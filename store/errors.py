"""What a store raises, and the one place where a driver's errors become it."""

from __future__ import annotations

import sqlite3

_REASONS = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_PERM: "readonly",
    sqlite3.SQLITE_CANTOPEN: "unavailable",
    sqlite3.SQLITE_IOERR: "unavailable",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
}
_PRIMARY_CODE = 0xFF


class StoreError(Exception):
    """The store could not do what it was asked; nothing was half written (R4.4).

    `reason` is one word for metrics: `locked`, `full`, `readonly`, `corrupt`, `unavailable`, `closed`, `missing`,
    `unsupported` or `failed`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFoundError(StoreError):
    """What was asked for is not in the store, or is another tenant's."""

    def __init__(self, message: str) -> None:
        super().__init__("missing", message)


def store_error(error: BaseException) -> StoreError:
    """The error that a caller sees for whatever went wrong inside. The original is its cause."""
    if isinstance(error, StoreError):
        return error
    mapped = StoreError(_reason(error), f"{type(error).__name__}: {error}")
    mapped.__cause__ = error
    return mapped


def _reason(error: BaseException) -> str:
    if isinstance(error, sqlite3.Error):
        code: int = getattr(error, "sqlite_errorcode", 0)  # errors of the Python module itself carry none
        return _REASONS.get(code & _PRIMARY_CODE, "failed")
    return "unavailable" if isinstance(error, OSError) else "failed"
