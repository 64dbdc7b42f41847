"""What the simulated provider received, for tests: exact bytes, in order, bounded."""

import base64
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Received:
    """One request. `n` counts from 1 and is never reused; `outcome` says how its answer ended."""

    n: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    summary: bool = False
    input_tokens: int = 0
    problem: str = ""
    outcome: str = "open"

    def as_json(self) -> dict[str, Any]:
        """The entry as `/sim/requests` shows it."""
        return {
            "n": self.n,
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body_base64": base64.b64encode(self.body).decode(),
            "status": self.status,
            "summary": self.summary,
            "input_tokens": self.input_tokens,
            "problem": self.problem,
            "outcome": self.outcome,
        }


class ReceivedLog:
    """The last requests: at most `entries`, and at most `size` bytes of bodies."""

    def __init__(self, entries: int, size: int) -> None:
        self._entries, self._size = entries, size
        self._kept: deque[Received] = deque()
        self._bytes = 0
        self.count = 0

    def add(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Received:
        """Records a request and returns its entry, to be completed when it is answered."""
        self.count += 1
        entry = Received(self.count, method, path, headers, body)
        self._kept.append(entry)
        self._bytes += len(body)
        while len(self._kept) > self._entries or (self._bytes > self._size and len(self._kept) > 1):
            self._bytes -= len(self._kept.popleft().body)
        return entry

    def after(self, n: int, limit: int | None = None) -> list[Received]:
        """The kept entries with a higher number, oldest first, at most `limit`."""
        found = [entry for entry in self._kept if entry.n > n]
        return found[:limit]

    def clear(self) -> None:
        """Forgets all entries; numbers go on."""
        self._kept.clear()
        self._bytes = 0

    def stats(self) -> dict[str, Any]:
        """Counts over what is kept, by status and kind, and how many were ever received."""
        chats = [entry for entry in self._kept if entry.path.partition("?")[0].endswith("/chat/completions")]
        return {
            "received": self.count,
            "kept": len(self._kept),
            "by_status": Counter(str(entry.status) for entry in self._kept),
            "by_kind": {
                "chat": sum(not entry.summary for entry in chats),
                "summary": sum(entry.summary for entry in chats),
                "other": len(self._kept) - len(chats),
            },
            "by_outcome": Counter(entry.outcome for entry in self._kept),
            "overflows": sum(entry.problem == "overflow" for entry in self._kept),
        }
