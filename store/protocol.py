"""What the gateway may ask of a store. Every call is one transaction, or one read of one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from compaction.types import Checkpoint, Path
from store.rows import (
    Boundary,
    BranchRow,
    Commit,
    ContextRows,
    Entry,
    LogEntry,
    Recorded,
    ReplyRecord,
    RequestRecord,
    RouteState,
    SessionRow,
    StoredRequest,
    UsageRow,
)

CheckpointReader = Callable[[str], Checkpoint | None]
"""Reads a stored checkpoint's JSON text and says whether it is valid on the path at hand (R7.3); None: it is not."""


class Store(Protocol):
    """The canonical history on disk. Calls raise `store.errors.StoreError` and nothing else."""

    async def open(self) -> None:
        """Open, migrate, and give up what workers that are gone had in flight."""
        ...

    async def close(self) -> None:
        """Finish what is queued, then close."""
        ...

    async def record_request(self, record: RequestRecord) -> Recorded:
        """Decide where the request belongs (R3.5-R3.8) and write what is new in it. Idempotent by node."""
        ...

    async def record_reply(self, record: ReplyRecord) -> None:
        """Write the `response` entry, the accepted boundary and the usage; ends the request's flight."""
        ...

    async def append(self, tenant: str, session_key: int, entries: Sequence[Entry]) -> Sequence[int]:
        """Append entries to a session's log; returns their numbers."""
        ...

    async def read_context(self, tenant: str, path: Path, route: str, read: CheckpointReader) -> ContextRows:
        """The valid checkpoint that covers most of the path (by `source_digest`, R3.4), and the route's state."""
        ...

    async def completed_checkpoints(self, tenant: str, path: Path) -> Sequence[str]:
        """JSON texts of `compaction_completed` entries whose source digest is on the path, newest first (R7.6)."""
        ...

    async def repair_checkpoint(self, tenant: str, drop: Sequence[str], replacement: Checkpoint | None) -> None:
        """Replace invalid checkpoint rows by one rebuilt from the log, or drop them (R7.6)."""
        ...

    async def commit_checkpoint(
        self, tenant: str, session_key: int, checkpoint: Checkpoint, path: Path, read: CheckpointReader
    ) -> Commit:
        """Write the row and its `compaction_completed` entry, if `previous_checkpoint_id` is still current (R9.2)."""
        ...

    async def boundaries(self, tenant: str, path: Path, route: str) -> Sequence[Boundary]:
        """What the route accepted on this path, largest first (R10.5)."""
        ...

    async def route_states(self) -> Sequence[RouteState]:
        """Everything learned about routes."""
        ...

    async def save_route(self, state: RouteState) -> None:
        """Replace what is known of a route."""
        ...

    async def add_usage(self, tenant: str, row: UsageRow) -> None:
        """Count tokens that belong to no reply (a summary)."""
        ...

    async def sessions(self, tenant: str | None, limit: int = 100, before: float | None = None) -> Sequence[SessionRow]:
        """Sessions, newest request first; of one tenant, or of all."""
        ...

    async def find_session(self, tenant: str | None, session: str) -> SessionRow | None:
        """One session by its public id."""
        ...

    async def branches(self, session_key: int) -> Sequence[BranchRow]:
        """The session's branches, newest first."""
        ...

    async def log(self, session_key: int, after: int = 0, limit: int = 1000) -> Sequence[LogEntry]:
        """The session's log in order."""
        ...

    async def history(self, tenant: str, head: bytes) -> Sequence[bytes]:
        """The exact bytes of the messages from the root to the node `head`."""
        ...

    async def request(self, session_key: int, n: int) -> StoredRequest:
        """A recorded request, whole."""
        ...

    async def body(self, tenant: str, sha256: bytes) -> bytes:
        """A stored byte string by its SHA-256."""
        ...

    async def delete_session(self, session_key: int) -> None:
        """Remove a session, and the nodes and bodies that no other session's request uses (R3.6, R4.3)."""
        ...
