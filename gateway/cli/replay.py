"""`palimpsest replay`: recorded conversations through a gateway, and what became of each."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import orjson
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from gateway.app import create_app
from gateway.cli.conversations import Conversation, ConversationError, Json, read_conversations
from gateway.cli.simulate import dialect_named
from gateway.settings import Settings, SettingsError, load_settings
from gateway.simulator import SimulatorSettings, ThreadedServer, create_simulator
from gateway.telemetry import configure_logging
from gateway.tokens import TokenCounter

WINDOW = 8192
MODEL = "sim-small"
CONTEXT_HEADER = "x-palimpsest-context"
SESSION_HEADER = "x-palimpsest-session"
CHAT = "/chat/completions"
TIMEOUT = 300.0
HEADINGS = (
    "conversation",
    "requests",
    "refused",
    "history tokens",
    "sent tokens",
    "checkpoints",
    "prefix reused",
    "violations",
)


class _Frame(msgspec.Struct):
    """A request body, with the exact bytes of each message."""

    messages: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a replay. `received` holds the messages of each body that the simulator got for it."""

    answered: bool
    history: int
    sent: int
    checkpoint: str
    received: tuple[tuple[bytes, ...], ...]
    violated: bool
    problem: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A conversation's row."""

    name: str
    requests: int
    refused: int
    history: int
    sent: int
    checkpoints: int
    reused: float | None
    """The share of a request's message bytes that the next one began with; None if it cannot be known."""
    violations: int | None
    """None if nobody saw what the provider got."""
    problem: str


@dataclass(frozen=True, slots=True)
class Line:
    """Where requests go, and where to look up what came of them."""

    client: httpx.Client
    model: str
    simulator: str | None


def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded conversations, JSON or JSONL.")],
    window: Annotated[
        int | None,
        typer.Option(min=1, show_default=str(WINDOW), help="The provider's window, in tokens; real ones may tell it."),
    ] = None,
    dialect: Annotated[str, typer.Option(help="Kind of simulated provider; see simulate.")] = "openai",
    upstream: Annotated[str | None, typer.Option(help="Base URL of a real provider, instead of a simulated.")] = None,
    model: Annotated[str, typer.Option(help="Model to ask for.")] = MODEL,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many requests for each conversation.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key for --upstream.")] = None,
) -> None:
    """Send each recorded conversation again, answer by answer, and check that the gateway kept its promises."""
    console = Console()
    conversations = _read(files)
    simulator = SimulatorSettings(window=window or WINDOW, dialect=dialect_named(dialect), models=(model,))
    with tempfile.TemporaryDirectory(prefix="palimpsest-replay-") as folder, _provider(upstream, simulator) as provider:
        key = api_key if upstream else None
        settings = _settings(provider, Path(folder), window if upstream else None, key)
        with ThreadedServer(create_app(settings)) as gateway, _client(gateway.url, key) as client:
            line = Line(client, model, None if upstream else provider.removesuffix("/v1"))
            outcomes = _replay_all(line, conversations, limit, console)
    _show(console, outcomes)
    raise typer.Exit(1 if any(outcome.violations for outcome in outcomes) else 0)


def _read(files: Sequence[Path]) -> list[Conversation]:
    try:
        return [conversation for path in files for conversation in read_conversations(path)]
    except ConversationError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def _provider(upstream: str | None, simulator: SimulatorSettings) -> Iterator[str]:
    """The base URL of the provider, which runs while inside if it is a simulated one."""
    if upstream:
        yield upstream
        return
    with ThreadedServer(create_simulator(simulator)) as server:
        yield f"{server.url}/v1"


def _settings(provider: str, folder: Path, window: int | None, key: str | None) -> Settings:
    entry = {"name": "replayed", "base_url": provider} | ({} if key else {"auth": "none"})
    try:
        settings = load_settings(
            {},
            upstreams=[entry | ({"context_window": window} if window else {})],
            store={"url": f"sqlite:///{folder / 'palimpsest.db'}"},
            log={"level": "error"},
        )
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    configure_logging(settings.log)
    return settings


def _client(url: str, key: str | None) -> httpx.Client:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    return httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=TIMEOUT, trust_env=False)


def _replay_all(
    line: Line, conversations: Sequence[Conversation], limit: int | None, console: Console
) -> list[Outcome]:
    outcomes = []
    total = sum(len(conversation.points(limit)) for conversation in conversations)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Replaying", total=total)
        for number, conversation in enumerate(conversations, 1):
            steps = _steps(line, conversation, f"replay-{number}", limit, lambda: progress.advance(task))
            outcomes.append(_outcome(conversation.name, steps, watched=line.simulator is not None))
    return outcomes


def _steps(
    line: Line, conversation: Conversation, session: str, limit: int | None, advance: Callable[[], None]
) -> list[Step]:
    """One request for each recorded answer, with all that was recorded before it."""
    messages = [orjson.dumps(message) for message in conversation.messages]
    frame: Json = {"model": line.model} | ({"tools": conversation.tools} if conversation.tools else {})
    overhead, *counts = TokenCounter().count(
        [orjson.dumps(frame).decode(), *(message.decode() for message in messages)]
    )
    users = [n for n, message in enumerate(conversation.messages) if message["role"] == "user"]
    steps = []
    for point in conversation.points(limit):
        body = orjson.dumps(frame)[:-1] + b',"messages":[' + b",".join(messages[:point]) + b"]}"
        current = max((n for n in users if n < point), default=None)
        steps.append(
            _step(line, body, session, overhead + sum(counts[:point]), None if current is None else messages[current])
        )
        advance()
    return steps


def _step(line: Line, body: bytes, session: str, tokens: int, current: bytes | None) -> Step:
    """Send one request. `tokens` is its history's size, `current` the user message that it is about."""
    context, problem = "", ""
    try:
        answer = line.client.post(CHAT, content=body, headers={SESSION_HEADER: session})
    except httpx.HTTPError as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        context = answer.headers.get(CONTEXT_HEADER, "")
        problem = "" if answer.is_success else f"{answer.status_code}: {answer.text[:200]}"
    figures = dict(part.partition("=")[::2] for part in context.split("; "))
    history = int(figures.get("before", 0)) or tokens
    received = _received(line.simulator) if line.simulator else ()
    violated = current is not None and any(current not in messages for messages in received)
    if line.simulator and not problem and not received:
        problem, violated = "answered, but the provider got nothing", True
    sent = int(figures.get("after", history))
    return Step(not problem, history, sent, figures.get("checkpoint", ""), received, violated, problem)


def _received(simulator: str) -> tuple[tuple[bytes, ...], ...]:
    """The messages of each chat request since the last call, without those that asked for a summary."""
    entries = httpx.get(f"{simulator}/sim/requests", timeout=TIMEOUT, trust_env=False).json()
    httpx.delete(f"{simulator}/sim/requests", timeout=TIMEOUT, trust_env=False)
    bodies = [
        base64.b64decode(entry["body_base64"])
        for entry in entries
        if entry["path"].partition("?")[0].endswith(CHAT) and not entry["summary"]
    ]
    return tuple(tuple(map(bytes, msgspec.json.decode(body, type=_Frame).messages)) for body in bodies)


def _outcome(name: str, steps: Sequence[Step], *, watched: bool) -> Outcome:
    answered = [step for step in steps if step.answered]
    return Outcome(
        name=name,
        requests=len(steps),
        refused=len(steps) - len(answered),
        history=sum(step.history for step in answered),
        sent=sum(step.sent for step in answered),
        checkpoints=len({step.checkpoint for step in steps if step.checkpoint}),
        reused=_reused([b",".join(step.received[-1]) for step in answered if step.received]),
        violations=sum(step.violated for step in steps) if watched else None,
        problem=next((step.problem for step in steps if step.problem), ""),
    )


def _reused(bodies: Sequence[bytes]) -> float | None:
    """The share of all bodies but the last that the next one begins with."""
    whole = sum(map(len, bodies[:-1]))
    if not whole:
        return None
    return sum(_same(before, after) for before, after in pairwise(bodies)) / whole


def _same(before: bytes, after: bytes) -> int:
    """How many bytes both begin with."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before.startswith(after[:middle]) else (low, middle - 1)
    return low


def _show(console: Console, outcomes: Sequence[Outcome]) -> None:
    table = Table(title="Replayed conversations; tokens are sums over the answered requests")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right")
    for outcome in outcomes:
        figures = (outcome.requests, outcome.refused, outcome.history, outcome.sent, outcome.checkpoints)
        table.add_row(
            Text(outcome.name),
            *(f"{figure:,}" for figure in figures),
            "-" if outcome.reused is None else f"{outcome.reused:.1%}",
            "-" if outcome.violations is None else Text(str(outcome.violations), "bold red" * bool(outcome.violations)),
        )
    console.print(table)
    for outcome in outcomes:
        if outcome.problem:
            console.print(Text(f"{outcome.name}, first refused: {outcome.problem}", "yellow"))
    if any(outcome.violations for outcome in outcomes):
        console.print("[bold red]A current user message did not reach the provider as it was sent.[/]")
