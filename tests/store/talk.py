"""A client's side of the store: requests and answers written down shortly, every byte and path real."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from compaction.canonical import build_path, read_message
from compaction.types import Path
from store.protocol import Store
from store.rows import Boundary, Recorded, ReplyKey, ReplyRecord, RequestRecord, UsageRow

ROUTE = "up/model"
FRAME = b'\x01{"model":"m","messages":[]}'


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def assistant(text: str | None, *calls: tuple[str, str], **more: Any) -> dict[str, Any]:
    """An assistant message; each call is an id and its arguments as sent."""
    message: dict[str, Any] = {"role": "assistant", "content": text, **more}
    if calls:
        message["tool_calls"] = [
            {"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def result(call: str, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def exact(message: dict[str, Any] | bytes) -> bytes:
    """A message's bytes; bytes stand for themselves, where the spelling matters."""
    return message if isinstance(message, bytes) else json.dumps(message).encode()


def path_of(tenant: str, bodies: Sequence[bytes]) -> Path:
    return build_path(tenant, [read_message(json.loads(body), body).message(len(body) // 4 + 4) for body in bodies])


def key_of(reply: dict[str, Any], *, interrupted: bool = False) -> ReplyKey:
    """As the gateway makes it."""
    reading = read_message(reply, b"")
    return ReplyKey(reading.canon, reading.loose, "\n".join(reading.texts) if interrupted else "")


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class Talk:
    """One tenant's requests to a store, a second apart."""

    def __init__(self, store: Store, tenant: str = "tenant") -> None:
        self.store = store
        self.tenant = tenant
        self.now = 1_800_000_000.0
        self.sent: list[tuple[Recorded, RequestRecord]] = []
        """Everything asked, for a comparison with what the store rebuilds."""

    def record(
        self,
        *messages: dict[str, Any] | bytes,
        session: str | None = None,
        retry: int = 0,
        preamble: Sequence[dict[str, Any]] = (),
        frame: bytes = FRAME,
        sent: Mapping[str, Any] | None = None,
    ) -> RequestRecord:
        self.now += 1
        bodies = [exact(message) for message in messages]
        return RequestRecord(
            tenant=self.tenant,
            session=session,
            fresh_session=f"fresh-{self.tenant}-{self.now:.0f}",
            request_id=f"req-{self.now:.0f}",
            route=ROUTE,
            path=path_of(self.tenant, bodies),
            bodies=bodies,
            preamble=[exact(message) for message in preamble],
            frame=frame,
            at=self.now,
            retry_count=retry,
            sent=sent or {},
        )

    async def ask(self, *messages: dict[str, Any] | bytes, **options: Any) -> Recorded:
        """Record a request; its messages are the history after the preamble."""
        record = self.record(*messages, **options)
        recorded = await self.store.record_request(record)
        self.sent.append((recorded, record))
        return recorded

    async def answer(
        self,
        recorded: Recorded,
        *choices: dict[str, Any],
        cut: bool = False,
        status: int = 200,
        error: str | None = None,
        boundary: Boundary | None = None,
        spent: UsageRow | None = None,
        sent: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the answer; `cut`: the choices are what was delivered of it."""
        self.now += 1
        bodies = [exact(choice) for choice in choices]
        record = ReplyRecord(
            tenant=self.tenant,
            recorded=recorded,
            at=self.now,
            status=status,
            choices=bodies,
            keys=[key_of(choice, interrupted=cut) for choice in choices],
            finish_reason=None if cut or error else "stop",
            usage=usage,
            delivered_bytes=sum(map(len, bodies)),
            interrupted=cut,
            error=error,
            boundary=boundary,
            spent=spent,
            sent=sent,
        )
        await self.store.record_reply(record)

    async def exchange(self, *messages: dict[str, Any] | bytes, reply: dict[str, Any], **options: Any) -> Recorded:
        """A request and its whole answer."""
        recorded = await self.ask(*messages, **options)
        await self.answer(recorded, reply)
        return recorded

    async def assert_rebuilt(self) -> None:
        """Every request ever sent comes back byte for byte (law 7)."""
        for recorded, record in self.sent:
            stored = await self.store.request(recorded.session_key, recorded.request_n)
            assert list(stored.history) == list(record.bodies)
            assert list(stored.preamble) == list(record.preamble)
            assert stored.frame == record.frame
            assert (stored.tenant, stored.session) == (self.tenant, recorded.session)

    async def kinds(self, recorded: Recorded) -> list[str]:
        """The kinds of a session's log entries, in order."""
        return [entry.kind for entry in await self.store.log(recorded.session_key)]

    async def notes(self, recorded: Recorded, kind: str) -> list[Mapping[str, Any]]:
        """What the entries of one kind in a session's log say."""
        return [entry.data for entry in await self.store.log(recorded.session_key) if entry.kind == kind]
