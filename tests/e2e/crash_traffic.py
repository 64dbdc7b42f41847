"""Clients of the crash suite: threads that keep conversations going across kills, and remember what they hold.

A client whose connection breaks sends the same bytes again with `x-stainless-retry-count`, as the SDKs do, once the
gateway is back.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.conversations import TOOLS
from tests.e2e.harness import MODEL

MARK = "x-crash-attempt"
"""Names a client's attempt; the provider sees it, so that what it received can be told apart."""
PATIENCE = 60.0
Json = dict[str, Any]


@dataclass(slots=True)
class Attempt:
    """One sending of one request, and what came back."""

    mark: str
    conversation: str
    stream: bool
    body: bytes
    request_id: str = ""
    """Empty as long as nothing of the answer, not even its headers, has arrived."""
    session: str = ""
    received: bytes = b""
    message: Json | None = None
    """The answer, if the client holds it whole."""


@dataclass(slots=True)
class Conversation:
    """What one client said and heard in one conversation, and where the gateway said that it was."""

    name: str
    key: str
    session: str | None
    """The client's own id, if it sends one."""
    messages: list[Json]
    sessions: set[str] = field(default_factory=set)
    bodies: list[bytes] = field(default_factory=list)


class Gate:
    """Clients that lost the gateway wait here until it is back; and what happens to them may be what ends it."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._waiting = 0
        self._open = False
        self._changed = threading.Condition()
        self._fuse: tuple[str, int] = ("", 0)
        self._strike: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        return self._open

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def strike(self, blow: Callable[[], None]) -> None:
        """Shut, and deal the blow."""
        with self._changed:
            if self._open:
                self._open = False
                blow()

    def arm(self, event: str, count: int, blow: Callable[[], None]) -> None:
        """Strike the moment that something happens to a client for the `count`-th time from now on."""
        with self._changed:
            self._fuse, self._strike = (event, count), blow

    def happened(self, event: str) -> None:
        """For a client: `begun` (an answer's headers are there) or `whole` (an answer is). Strikes from its own
        thread, since the next moment may be too late."""
        with self._changed:
            armed, left = self._fuse
            if event == armed:
                self._fuse = (armed, left - 1)
                if left == 1 and self._open:
                    self._open = False
                    self._strike()

    def wait(self) -> None:
        """For a client: until the gateway answers."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            opened = self._changed.wait_for(lambda: self._open, PATIENCE)
            self._waiting -= 1
        assert opened, "the gateway did not come back"

    def leave(self) -> None:
        """For a client that ends."""
        with self._changed:
            self._clients -= 1
            self._changed.notify_all()

    def await_all(self) -> None:
        """For the one who killed the gateway: until every client has noticed."""
        with self._changed:
            noticed = self._changed.wait_for(lambda: self._waiting == self._clients, PATIENCE)
        assert noticed, "a client did not notice that the gateway is gone"


@dataclass(frozen=True, slots=True)
class Manner:
    """How a client talks."""

    key: str
    named: bool = False
    """Sends a session id."""
    streams: float = 0.5
    """Share of requests that are streamed."""
    tools: bool = False
    resumes: bool = False
    """Goes on from a stream that broke, instead of asking again."""
    separators: tuple[str, str] = (",", ":")


class TrafficClient(threading.Thread):
    """One client: conversation after conversation until it is told to stop."""

    turns_each = 30

    def __init__(self, url: str, gate: Gate, manner: Manner, seed: int) -> None:
        super().__init__(name=f"client-{seed}", daemon=True)
        self.attempts: list[Attempt] = []
        self.conversations: list[Conversation] = []
        self.error: BaseException | None = None
        self._url = f"{url}/v1/chat/completions"
        self._gate = gate
        self._manner = manner
        self._seed = seed
        self._random = random.Random(f"client {seed}")
        self._turns_left = -1
        """How many turns it still takes; below 0: any number."""

    def stop(self, after: int) -> None:
        """Let it finish its turn, and take some more."""
        self._turns_left = after

    def run(self) -> None:
        try:
            with httpx.Client(timeout=PATIENCE) as self._http:
                self._gate.wait()
                while self._turns_left:
                    self._converse()
        except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to
            self.error = error  # told by whoever looks after the clients
        finally:
            self._gate.leave()

    def _converse(self) -> None:
        number = len(self.conversations)
        name = f"{self._seed}-{number}"
        system = {"role": "system", "content": f"You keep notes for {name}. Straße, 東京."}
        session = f"crash-{name}" if self._manner.named else None
        talk = Conversation(name, self._manner.key, session, [system])
        self.conversations.append(talk)
        for turn in range(self.turns_each):
            if self._turns_left:
                self._turn(talk, turn)
                self._turns_left -= self._turns_left > 0

    def _turn(self, talk: Conversation, turn: int) -> None:
        words = " ".join(f"w{self._random.randrange(10**4)}" for _ in range(self._random.randint(20, 90)))
        calls = self._random.randint(0, 3) if self._manner.tools else 0
        asked = "".join(f' [[call:look_up {{"key": "k{turn}.{n}"}}]]' for n in range(calls))
        talk.messages.append({"role": "user", "content": f"Turn {turn} of {talk.name}: note {words}.{asked}"})
        while True:
            message = self._ask(talk)
            talk.messages.append(message)
            if not message.get("tool_calls"):
                return
            for call in message["tool_calls"]:
                rows = "\n".join(f"row {self._random.randrange(10**6)}" for _ in range(self._random.randint(2, 20)))
                talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": rows})

    def _ask(self, talk: Conversation) -> Json:
        """The assistant message, after as many attempts as it takes."""
        stream = self._random.random() < self._manner.streams
        body = {"model": MODEL, "messages": talk.messages} | ({"stream": True} if stream else {})
        if self._manner.tools:
            body["tools"] = TOOLS
        data = json.dumps(body, ensure_ascii=False, separators=self._manner.separators).encode()
        talk.bodies.append(data)
        for retry in range(1000):
            attempt = Attempt(f"{talk.name}/{len(talk.bodies)}/{retry}", talk.name, stream, data)
            self.attempts.append(attempt)
            try:
                self._send(talk, attempt, retry)
            except httpx.TransportError:
                assert not self._gate.is_open, f"{attempt.mark}: the connection broke, and nobody killed the gateway"
                self._gate.wait()
            if attempt.message is not None:
                return attempt.message
            cut = fold_stream(attempt.received) if stream else {}
            if self._manner.resumes and cut.get("content") and "tool_calls" not in cut:
                return cut
        raise AssertionError("no answer after 1000 attempts")

    def _send(self, talk: Conversation, attempt: Attempt, retry: int) -> None:
        headers = {"authorization": f"Bearer {talk.key}", "content-type": "application/json", MARK: attempt.mark}
        headers["x-stainless-retry-count"] = str(retry)
        if talk.session:
            headers["x-palimpsest-session"] = talk.session
        if attempt.stream:
            headers["x-sim-fault"] = f"slow:{self._random.randint(0, 4)}"
        with self._http.stream("POST", self._url, headers=headers, content=attempt.body) as response:
            attempt.session = response.headers.get("x-palimpsest-session", "")
            attempt.request_id = response.headers["x-palimpsest-request"]
            self._gate.happened("begun")
            talk.sessions.add(attempt.session)
            for data in response.iter_raw():
                attempt.received += data
                if attempt.stream and b"data: [DONE]\n\n" in attempt.received:
                    self._gate.happened("whole")
                    attempt.message = fold_stream(attempt.received)
            assert response.status_code == 200, attempt.received
            if not attempt.stream:
                self._gate.happened("whole")
                attempt.message = without_nulls(json.loads(attempt.received)["choices"][0]["message"])


def fold_stream(data: bytes) -> Json:
    """The assistant message that the whole events of a stream make."""
    message: Json = {"role": "assistant", "content": None}
    calls: dict[int, Json] = {}
    for event in _whole_events(data):
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            if delta.get("content") is not None:
                message["content"] = (message["content"] or "") + delta["content"]
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                call["id"] = part.get("id") or call["id"]
                for key, text in part["function"].items():
                    call["function"][key] += text
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return without_nulls(message)


def _whole_events(data: bytes) -> Iterable[Json]:
    for event in data.split(b"\n\n")[:-1]:
        if event.startswith(b"data: ") and event != b"data: [DONE]":
            yield json.loads(event.removeprefix(b"data: "))


def without_nulls(message: Json) -> Json:
    """A message without its empty members; `content` always stays."""
    return {key: value for key, value in message.items() if value is not None or key == "content"}
