"""An upstream of one's own on a raw socket, for what the simulated provider cannot show, and a gateway before it."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from gateway.app import create_app
from gateway.settings import Settings, load_settings
from gateway.simulator import ThreadedServer
from store.open import open_store

PATIENCE = 10.0
"""Seconds after which a test gives up: a wait that never comes to an end is a failure, not a hang."""

REPLY = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
)


@dataclass
class Call:
    """One request as it came over the socket, and the means to answer it byte by byte."""

    connection: socket.socket
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection_number: int = 0
    keep: bool = True
    """Whether the connection is kept for another request."""

    def header(self, name: str) -> str | None:
        """The value of a header; None if it did not come."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.connection.sendall(data)

    def head(self, *lines: bytes, status: bytes = b"200 OK") -> None:
        """The status line and these header lines."""
        self.send(b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", b""]))

    def begin_stream(self, *lines: bytes) -> None:
        """The head of an event stream."""
        self.head(b"Content-Type: text/event-stream", b"Transfer-Encoding: chunked", *lines)

    def chunk(self, data: bytes) -> None:
        """A part of a chunked body, written at once."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        """The end of a chunked body."""
        self.send(b"0\r\n\r\n")

    def answer(self, body: bytes = REPLY, *lines: bytes, status: bytes = b"200 OK") -> None:
        """A whole answer; JSON unless a header line says otherwise."""
        kind = (
            ()
            if any(line.lower().startswith(b"content-type") for line in lines)
            else (b"Content-Type: application/json",)
        )
        self.head(*kind, b"Content-Length: %d" % len(body), *lines, status=status)
        self.send(body)

    def hang_up(self) -> None:
        """Close the connection, whatever was promised."""
        self.keep = False
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def left(self, seconds: float = PATIENCE) -> bool:
        """Whether the other side closes the connection within the time."""
        deadline = time.monotonic() + seconds
        while (rest := deadline - time.monotonic()) > 0:
            if select.select([self.connection], [], [], rest)[0]:
                try:
                    if not self.connection.recv(65_536):
                        return True
                except ConnectionError:
                    return True
        return False


Handler = Callable[[Call], None]


@dataclass
class Upstream:
    """A server that hands every request to `handler`, each connection in a thread of its own.

    Requests for the model list, which the gateway makes beside chats, are answered with 404 and not noted.
    """

    handler: Handler
    calls: list[Call] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(PATIENCE)
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(PATIENCE)
        if not any(error):
            assert self.errors == []

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        reader = connection.makefile("rb")
        try:
            while (call := read_call(reader, connection, number)) is not None:
                if call.method == "GET" and call.target.endswith("/models"):
                    call.answer(b'{"error":{"message":"none"}}', status=b"404 Not Found")
                    continue
                self.calls.append(call)
                self.handler(call)
                if not call.keep:
                    return
        except OSError:
            return
        except AssertionError as error:
            self.errors.append(error)
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            reader.close()
            connection.close()


def read_call(reader: Any, connection: socket.socket, number: int) -> Call | None:
    """The next request of a connection; None where there is no more."""
    start = reader.readline()
    if not start:
        return None
    method, target, _ = start.decode("latin-1").split()
    headers = []
    while (line := reader.readline().decode("latin-1").rstrip("\r\n")) != "":
        name, _, value = line.partition(":")
        headers.append((name, value.strip()))
    named = {name.lower(): value for name, value in headers}
    if "chunked" in named.get("transfer-encoding", ""):
        body = b""
        while size := int(reader.readline(), 16):
            body += reader.read(size)
            reader.readline()
        reader.readline()
    else:
        body = reader.read(int(named.get("content-length", 0)))
    return Call(connection, method, target, headers, body, number)


@contextmanager
def fronting(url: str, folder: Path, environ: dict[str, str] | None = None, **tables: Any) -> Iterator[Front]:
    """A gateway in front of the upstream at `url`. `upstream` holds more settings of that upstream."""
    upstream = {"name": "raw", "base_url": f"{url}/v1", **tables.pop("upstream", {})}
    store = {"url": f"sqlite:///{folder / 'palimpsest.db'}"}
    # With a window that is known no model list is asked for.
    given = {"store": store, "log": {"level": "error"}, "upstreams": [upstream], "context_window": 10_000_000} | tables
    settings = load_settings(environ or {}, secret="a secret for tests only", **given)
    with ThreadedServer(create_app(settings)) as server:
        yield Front(server.url, settings)


@dataclass(frozen=True)
class Front:
    """A running gateway."""

    url: str
    settings: Settings

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


@contextmanager
def before(handler: Handler, folder: Path, **options: Any) -> Iterator[tuple[Upstream, Front]]:
    """An upstream with this handler and a gateway in front of it."""
    with Upstream(handler) as upstream, fronting(upstream.url, folder, **options) as front:
        yield upstream, front


def entries(settings: Settings, kind: str) -> list[dict[str, Any]]:
    """What the log of all sessions says in entries of this kind, oldest session first."""

    async def read() -> list[dict[str, Any]]:
        store = open_store(settings.store.url)
        await store.open()
        try:
            sessions = sorted(await store.sessions(None), key=lambda session: session.created_at)
            logs = [await store.log(session.key) for session in sessions]
            return [dict(entry.data) for log in logs for entry in log if entry.kind == kind]
        finally:
            await store.close()

    return asyncio.run(read())


def eventually(read: Callable[[], Any], what: Callable[[Any], bool], seconds: float = PATIENCE) -> Any:
    """The value of `read` once `what` holds of it; the last one if that does not happen in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = read()
        if what(value) or time.monotonic() > deadline:
            return value
        time.sleep(0.02)


def chat(content: str = "Hello", **members: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": content}], **members}


def delta(text: str, **members: Any) -> bytes:
    """One stream chunk as an event."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return (
        b"data: "
        + orjson.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **members})
        + b"\n\n"
    )


def stopped() -> bytes:
    """The chunk that finishes the choice."""
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return b"data: " + orjson.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'


def plain_stream(events: Sequence[bytes]) -> Handler:
    """Answers every request with these events, each sent by itself."""

    def handler(call: Call) -> None:
        call.begin_stream()
        for event in events:
            call.chunk(event)
        call.end()

    return handler
