"""The command line, as a process of its own."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import structlog
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from typer.testing import CliRunner, Result

from gateway.cli import COMMANDS, build
from gateway.cli.serve import ListenError, listening, server_config
from gateway.settings import Settings

ROOT = Path(__file__).parent.parent.parent
MAIN = [sys.executable, "-W", "error", "-c", "from gateway.cli import main; main()"]


def environment(**variables: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PALIMPSEST_")}
    return {**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "TERM": "dumb", **variables}


def run(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [*MAIN, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def invoke(*arguments: str, **variables: str) -> Result:
    """The command in this process, for what ends before anything is served."""
    empty = {name: None for name in os.environ if name.startswith("PALIMPSEST_")}
    return CliRunner().invoke(build(arguments), arguments, env={**empty, **variables})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


@contextmanager
def serving(cwd: Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A gateway in a process of its own, its base URL, and what it said at the start."""
    process = subprocess.Popen(
        [*MAIN, "serve", "--port", "0"],
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stderr.readline()
            assert line, f"ended: {said}"
            said += line
        if "SIMULATED" in said:
            while "For a real provider" not in said:
                said += process.stderr.readline()
        yield process, found[0], said
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(url: str, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_help_lists_every_command_and_imports_none(tmp_path: Path):
    """`--help` must be quick: no server, no provider, no tokens."""
    code = (
        "import sys; from gateway.cli import build\n"
        "try: build(['--help'])(['--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', sorted({'uvicorn', 'openai', 'tiktoken', 'gateway.app', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert set(COMMANDS) <= set(re.findall(r"\w+", done.stdout))
    assert "LOADED []" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name: str):
    done = invoke(name, "--help")
    assert done.exit_code == 0, done.output
    assert "Usage" in done.stdout


def test_the_version_is_shown():
    assert re.fullmatch(r"palimpsest \d+\.\d+\.\d+\n", invoke("--version").stdout)


def test_an_unknown_command_is_an_error_for_people():
    done = invoke("sreve")
    assert done.exit_code == 2
    assert "sreve" in done.stderr


def test_bad_settings_are_told_at_once():  # R15.5
    done = invoke("serve", PALIMPSEST_PORT="abc", PALIMPSEST_UPSTEAM="x")
    assert done.exit_code == 2
    assert done.stderr.startswith("palimpsest: 2 problems in the settings:\n")
    assert "PALIMPSEST_UPSTREAM" in done.stderr


def test_a_settings_file_can_be_named_by_an_option(tmp_path: Path):
    (tmp_path / "a.toml").write_text("[server]\nprot = 1")
    done = invoke("serve", "--config", "a.toml")
    assert done.exit_code == 2
    assert "server.prot (a.toml): unknown key; did you mean server.port?" in done.stderr


@pytest.mark.slow
def test_a_port_in_use_is_told_with_what_to_do_and_no_traceback(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("serve", "--port", port, cwd=tmp_path, PALIMPSEST_UPSTREAM="http://127.0.0.1:9/v1")
    assert done.returncode == 2
    assert done.stderr.startswith(f"palimpsest: cannot listen on 127.0.0.1 port {port}: Address already in use")
    assert "PALIMPSEST_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_host_that_is_none_of_this_machine_is_told():
    with pytest.raises(ListenError, match="no-such-host"), listening("no-such-host.invalid", 0):
        pass


def test_both_families_of_addresses_can_be_listened_on():
    for host in ("127.0.0.1", "localhost"):
        with listening(host, 0) as listener:
            assert listener.getsockname()[1] > 0


@pytest.mark.slow
def test_without_an_upstream_it_runs_on_the_simulator_and_says_so(tmp_path: Path):  # R15.5
    with serving(tmp_path) as (process, url, said):
        assert "SIMULATED" in said
        body = re.search(r"-d '(.*)'", said)
        assert body, said
        status, answer = ask(url, "POST", "/v1/chat/completions", body[1], **{"content-type": "application/json"})
        assert (status, '"chat.completion"' in answer) == (200, True)
        assert ask(url, "GET", "/healthz")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in {0, -signal.SIGTERM}
    assert (tmp_path / "palimpsest.db").exists()


@pytest.mark.slow
def test_interrupting_it_is_no_error(tmp_path: Path):
    with serving(tmp_path, PALIMPSEST_UPSTREAM="http://127.0.0.1:9/v1") as (process, url, said):
        assert "forwards to http://127.0.0.1:9/v1" in said
        wait_until_alive(url)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_a_store_that_cannot_be_opened_ends_the_start_with_an_error(tmp_path: Path):
    (tmp_path / "palimpsest.db").mkdir()
    done = run("serve", "--port", "0", cwd=tmp_path, PALIMPSEST_UPSTREAM="http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert "palimpsest: could not start; the log says why" in done.stderr
    assert '"level":"error"' in done.stdout
    assert "palimpsest.db" in done.stdout or "database" in done.stdout


def wait_until_alive(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if ask(url, "GET", "/healthz")[0] == 200:
            return
    raise AssertionError("not alive")


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the request's headers, or the path of an upgrade."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    await PlainTextResponse(str(size))(scope, receive, send)


@pytest.fixture(scope="module")
def configured() -> Iterator[str]:
    """The server as `serve` configures it, on a small app."""
    server = uvicorn.Server(server_config(echo, Settings()))
    with listening("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_headers_of_64_kb_pass(configured: str):  # R15.6
    status, size = ask(configured, "GET", "/", **{"x-long": "a" * 60_000, "x-more": "b" * 3_000})
    assert (status, int(size) > 63_000) == (200, True)


def test_an_upgrade_is_an_ordinary_request_to_the_app(configured: str):  # R2.1
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "a"}
    assert ask(configured, "GET", "/v1/realtime", **upgrade)[0] == 200


def test_the_server_adds_a_date_and_does_not_name_itself(configured: str):
    connection = http.client.HTTPConnection(urlsplit(configured).netloc)
    connection.request("GET", "/")
    headers = connection.getresponse().headers
    connection.close()
    assert "date" in headers
    assert "server" not in headers


def test_idle_connections_are_kept_for_75_seconds():  # R15.6
    config = server_config(echo, Settings())
    assert config.timeout_keep_alive == 75
    assert config.timeout_graceful_shutdown == 30
