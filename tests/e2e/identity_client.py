"""Clients that send exactly what an identity case says, and see what the gateway, the store and the provider made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from store.open import open_store
from store.protocol import Store
from store.rows import LogEntry, SessionRow
from tests.e2e.conversations import TOOLS
from tests.e2e.crash_traffic import fold_stream, without_nulls
from tests.e2e.harness import MODEL, Stack

Json = dict[str, Any]
_marks = count(1)


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(text: str | list[Json]) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: tuple[str, str]) -> Json:
    """An assistant message; each call is an id and its arguments as sent."""
    made = [
        {"id": name, "type": "function", "function": {"name": "look_up", "arguments": text}} for name, text in calls
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})


def result(call: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call, "content": text}


def words(name: str, number: int) -> str:
    """Text that stands nowhere else."""
    return " ".join(f"{name}{at}" for at in range(number))


@dataclass(frozen=True)
class Reply:
    """One answer, and where the gateway says that its request belongs."""

    mark: str
    status: int
    body: bytes
    messages: list[Json]
    """Assistant messages, one for each choice, as far as they arrived."""
    session: str
    request_id: str
    context: str

    @property
    def message(self) -> Json:
        return self.messages[0]

    @property
    def checkpoint(self) -> str | None:
        """The id of the checkpoint that the request was sent with."""
        return self.context.partition("checkpoint=")[2].partition(";")[0] or None


@dataclass(frozen=True)
class Recorded:
    """Where the store says that a request belongs."""

    session: SessionRow
    entry: LogEntry

    @property
    def lineage(self) -> str:
        return str(self.entry.data["lineage"])

    @property
    def branch(self) -> int:
        return int(self.entry.data["branch"])


@dataclass
class World:
    """The stack, and the store beside the gateway."""

    stack: Stack
    store: Store
    http: httpx.AsyncClient

    def caller(self, key: str) -> Caller:
        return Caller(self, key)

    def received(self) -> list[Json]:
        return self.stack.seen(summaries=True)

    def summaries(self, key: str) -> int:
        """Summary requests that the provider got with this credential."""
        return sum(
            entry["summary"] and entry["headers"]["authorization"] == f"Bearer {key}" for entry in self.received()
        )

    async def recorded(self, reply: Reply) -> Recorded:
        """The `request` entry that the store holds of it."""
        for session in await self.store.sessions(None, limit=10_000):
            if session.session == reply.session:
                for entry in await self.entries(session):
                    if entry.data.get("request_id") == reply.request_id:
                        return Recorded(session, entry)
        raise AssertionError(f"no session {reply.session} holds request {reply.request_id}")

    async def entries(self, session: SessionRow, *kinds: str) -> list[LogEntry]:
        """A session's log, or the entries of some kinds in it."""
        entries = await self.store.log(session.key, limit=10_000)
        return [entry for entry in entries if not kinds or entry.kind in kinds]

    async def history(self, recorded: Recorded) -> list[Json]:
        """The messages of a recorded request, after its preamble."""
        stored = await self.store.request(recorded.session.key, recorded.entry.n)
        return [json.loads(body) for body in stored.history]

    async def settled(self, reply: Reply, responses: int) -> None:
        """Wait until that many `response` entries stand in the reply's session."""
        session = (await self.recorded(reply)).session
        for _ in range(200):
            if len(await self.entries(session, "response")) >= responses:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"no {responses} responses in session {reply.session}")


@dataclass
class Caller:
    """One tenant's client."""

    world: World
    key: str
    marks: list[str] = field(default_factory=list)

    async def ask(
        self,
        *messages: Json,
        session: str | None = None,
        retry: int | None = None,
        stream: bool = False,
        fault: str | None = None,
        timeout: float | None = None,
        **members: Any,
    ) -> Reply:
        """Send the list. `timeout` (seconds without a byte): what has arrived until then is the answer."""
        mark = f"mark-{next(_marks)}"
        self.marks.append(mark)
        headers = {"authorization": f"Bearer {self.key}", "x-test-mark": mark, "content-type": "application/json"}
        more = {"x-palimpsest-session": session, "x-sim-fault": fault}
        more["x-stainless-retry-count"] = None if retry is None else str(retry)
        headers |= {name: value for name, value in more.items() if value is not None}
        body = {"model": MODEL, "messages": messages, "tools": TOOLS, **members} | ({"stream": True} if stream else {})
        url = f"{self.world.stack.gateway}/v1/chat/completions"
        data = b""
        async with self.world.http.stream(
            "POST", url, headers=headers, content=json.dumps(body), timeout=timeout or 60
        ) as response:
            try:
                async for part in response.aiter_raw():
                    data += part
            except (httpx.ReadTimeout, httpx.RemoteProtocolError):
                assert fault, "the answer broke off"
        return Reply(
            mark=mark,
            status=response.status_code,
            body=data,
            messages=_messages(response.status_code, data, stream=stream),
            session=response.headers.get("x-palimpsest-session", ""),
            request_id=response.headers["x-palimpsest-request"],
            context=response.headers["x-palimpsest-context"],
        )

    def upstream(self, reply: Reply) -> list[Json]:
        """The messages that the provider received for a request."""
        (entry,) = [entry for entry in self.world.received() if entry["headers"].get("x-test-mark") == reply.mark]
        messages: list[Json] = json.loads(entry["body"])["messages"]
        return messages

    async def talk(
        self, opening: list[Json], *, turns: int, size: int = 130, **options: Any
    ) -> tuple[list[Json], Reply]:
        """Go on for some turns of `size` words; the list after the last answer, and that answer."""
        messages, reply = list(opening), None
        for turn in range(turns):
            messages.append(user(f"{self.key} turn {turn}: {words(f'{self.key[-2:]}{turn}x', size)}"))
            reply = await self.ask(*messages, **options)
            messages.append(reply.message)
        assert reply is not None
        return messages, reply


def _messages(status: int, data: bytes, *, stream: bool) -> list[Json]:
    if status != 200:
        return []
    if stream:
        return [fold_stream(data)]
    return [without_nulls(choice["message"]) for choice in json.loads(data)["choices"]]


@asynccontextmanager
async def world_of(stack: Stack) -> AsyncIterator[World]:
    """The world of one test."""
    store = open_store(stack.settings.store.url)
    await store.open()
    try:
        async with httpx.AsyncClient(verify=False) as http:
            yield World(stack, store, http)
    finally:
        await store.close()


def changed(message: Mapping[str, Any], **members: Any) -> Json:
    """A message with other members."""
    return {**message, **members}
