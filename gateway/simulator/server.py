"""Any ASGI app on a real socket, in a thread of its own: for tests, `doctor` and the demo."""

import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """Says when it is ready, so that nobody has to poll."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit:
            # The app's lifespan failed. In a thread there is no process to end: `start` raises instead.
            self.should_exit = True
            return
        self.ready.set()


class ThreadedServer:
    """A context manager: the app answers on `url` while inside, with its own thread and event loop.

    `grace` is how long (seconds) open requests may go on at the end before they are cancelled. `host` and `port` say
    where to listen; port 0 takes a free one. Raises RuntimeError if the app does not start.
    """

    def __init__(self, app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0, grace: float = 1.0) -> None:
        self._socket = socket.create_server((host, port), backlog=512)
        bound = self._socket.getsockname()
        self.host, self.port = str(bound[0]), int(bound[1])
        self.url = f"http://{self.host}:{self.port}"
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(round(grace), 1),
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name=f"server-{self.port}", daemon=True)

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._server.ready.set()

    def start(self) -> Self:
        """Starts and waits until the app answers."""
        self._thread.start()
        self._server.ready.wait()
        if not self._server.started:
            self._thread.join()
            raise RuntimeError(f"the app on {self.url} did not start")
        return self

    def stop(self) -> None:
        """Stops and waits for the end. Twice is as good as once."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
