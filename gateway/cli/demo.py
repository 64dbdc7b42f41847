"""`palimpsest demo`: the main job on this machine, with no key and no network."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import openai
import orjson
import typer
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionMessage
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gateway.app import create_app
from gateway.settings import Settings, load_settings
from gateway.simulator import SimulatorSettings, ThreadedServer, create_simulator
from gateway.simulator.demo_script import SYSTEM, TOOLS, Turn, tool_result, turns
from gateway.telemetry import configure_logging
from gateway.tokens import TokenCounter
from gateway.wire import decode_message
from store import entries
from store.open import open_store
from store.protocol import Store
from store.rows import LogEntry

WINDOW = 8192
MODEL = "sim-small"
SESSION = "demo"
SHOWN_ROWS = 16
CONTEXT_HEADER = "x-palimpsest-context"
Json = dict[str, Any]


@dataclass(slots=True)
class Step:
    """One request of the demo and what became of it."""

    turn: int
    streamed: bool
    history: int
    sent: int
    checkpoint: str
    happened: str


@dataclass(slots=True)
class Record:
    """Everything the demo's client sent and received: what the store is held against."""

    messages: list[Json] = field(default_factory=list)
    answers: list[Json] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    answered: int = 0
    errors: list[str] = field(default_factory=list)


def demo(
    rounds: Annotated[int, typer.Option("--turns", min=1, help="Turns to drive.")] = 60,
    window: Annotated[int, typer.Option(min=2048, help="The simulated provider's window, in tokens.")] = WINDOW,
) -> None:
    """Drive a conversation many times longer than the provider's window, and check that nothing was lost."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="palimpsest-demo-"))
    store = folder / "palimpsest.db"
    record = Record()
    with ThreadedServer(create_simulator(SimulatorSettings(window=window, models=(MODEL,)))) as provider:
        settings = _settings(provider.url, store)
        with ThreadedServer(create_app(settings)) as gateway:
            console.print(f"Simulated provider: window {window} tokens. Gateway: {gateway.url}. Store: {store}\n")
            _drive(gateway.url, record, rounds, console)
        stats = httpx.get(f"{provider.url}/sim/stats").json()
    problems = [*record.errors, *asyncio.run(_differences(settings, record))]
    if record.answered != rounds:
        problems.append(f"{rounds - record.answered} turns were not answered")
    _totals(console, record, stats, store, problems)
    raise typer.Exit(1 if problems else 0)


def _settings(provider: str, store: Path) -> Settings:
    settings = load_settings(
        {},
        upstreams=[{"name": "simulator", "base_url": f"{provider}/v1", "auth": "none"}],
        store={"url": f"sqlite:///{store}"},
        log={"level": "error"},
    )
    configure_logging(settings.log)
    return settings


def _drive(url: str, record: Record, rounds: int, console: Console) -> None:
    """Run all turns, with a live table of the newest requests."""
    client = openai.OpenAI(
        base_url=f"{url}/v1", api_key="demo", max_retries=0, default_headers={"x-palimpsest-session": SESSION}
    )
    record.messages.append({"role": "system", "content": SYSTEM})
    with Live(_table(record), console=console, refresh_per_second=8) as live:
        for turn in turns(rounds):
            try:
                for _ in _take(client, turn, record):
                    live.update(_table(record))
            except openai.OpenAIError as error:
                record.errors.append(f"turn {turn.number}: {type(error).__name__}: {str(error)[:200]}")
                return
            record.answered += 1
    client.close()


def _take(client: openai.OpenAI, turn: Turn, record: Record) -> Iterator[None]:
    """One turn: ask, answer the tool calls, until the model says something."""
    record.messages.append({"role": "user", "content": turn.text})
    while True:
        message, context = _ask(client, turn, record.messages)
        record.answers.append(message)
        record.steps.append(_step(turn, record.messages, context))
        yield
        record.messages.append(message)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            result = tool_result(call["function"]["name"], call["function"]["arguments"])
            record.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _ask(client: openai.OpenAI, turn: Turn, messages: list[Json]) -> tuple[Json, str]:
    """One request; the assistant message as this client sends it back, and what the gateway says of the context."""
    given: Json = {"model": MODEL, "messages": messages, "tools": TOOLS}
    create = client.chat.completions.with_raw_response.create
    if not turn.stream:
        whole = create(**given)
        return _plain(whole.parse().choices[0].message), whole.headers.get(CONTEXT_HEADER, "")
    raw = create(**given, stream=True)
    state = ChatCompletionStreamState()
    for chunk in raw.parse():
        state.handle_chunk(chunk)
    return _plain(state.get_final_completion().choices[0].message), raw.headers.get(CONTEXT_HEADER, "")


def _plain(message: ChatCompletionMessage) -> Json:
    plain: Json = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
            if call.type == "function"
        ]
    return plain


def _step(turn: Turn, messages: list[Json], context: str) -> Step:
    """What happened to a request, from the header that every answer carries (R2.11)."""
    figures = dict(part.partition("=")[::2] for part in context.split("; "))
    history = int(figures.get("before", 0)) or _tokens(messages)
    sent = int(figures.get("after", history))
    if "retried" in figures:
        happened = "refused once, compacted, sent again"
    elif "checkpoint" in figures:
        happened = f"projected, {figures['covered']} messages by a checkpoint"
    else:
        happened = "sent as received"
    return Step(turn.number, turn.stream, history, sent, figures.get("checkpoint", ""), happened)


def _tokens(messages: list[Json]) -> int:
    return sum(TokenCounter().count([orjson.dumps(message).decode() for message in messages]))


def _table(record: Record) -> Table:
    table = Table(title="Each request, newest last")
    for heading in ("turn", "stream", "history tokens", "sent tokens", "what happened"):
        table.add_column(heading, justify="right" if "tokens" in heading or heading == "turn" else "left")
    for step in record.steps[-SHOWN_ROWS:]:
        table.add_row(
            str(step.turn), "yes" if step.streamed else "no", f"{step.history:,}", f"{step.sent:,}", step.happened
        )
    return table


async def _differences(settings: Settings, record: Record) -> list[str]:
    """Where the store is not what the client sent and received; empty if it is."""
    store = open_store(settings.store.url)
    await store.open()
    try:
        session = await store.find_session(None, SESSION)
        if session is None:
            return ["the session is not in the store"]
        log = await entries_of(store, session.key)
        requests = [entry for entry in log if entry.kind == entries.REQUEST]
        stored = await store.request(session.key, requests[-1].n)
        kept = [decode_message(raw) for raw in (*stored.preamble, *stored.history)]
        found = [] if kept == record.messages[: len(kept)] else ["the stored history differs from what was sent"]
        if len(kept) < len(record.messages) - 1:
            found.append(f"{len(record.messages) - 1 - len(kept)} messages are missing")
        answers = [
            decode_message(await store.body(session.tenant, bytes.fromhex(entry.data["choices"][0])))
            for entry in log
            if entry.kind == entries.RESPONSE and not entry.data["interrupted"]
        ]
        if [_said(answer) for answer in answers] != [_said(answer) for answer in record.answers]:
            found.append("the stored answers differ from those received")
        return found
    finally:
        await store.close()


async def entries_of(store: Store, session_key: int) -> list[LogEntry]:
    """The whole log of a session."""
    found: list[LogEntry] = []
    while page := await store.log(session_key, after=found[-1].n if found else 0):
        found.extend(page)
    return found


def _said(message: Json) -> tuple[str, list[tuple[str, str, str]]]:
    calls = message.get("tool_calls") or []
    return message.get("content") or "", [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]


def _totals(console: Console, record: Record, stats: Json, store: Path, problems: list[str]) -> None:
    checkpoints = len({step.checkpoint for step in record.steps if step.checkpoint})
    retried = sum("again" in step.happened for step in record.steps)
    largest = max((step.history for step in record.steps), default=0)
    received = sum(step.history for step in record.steps)
    sent = sum(step.sent for step in record.steps)
    console.print(f"\n{record.answered} turns answered, {len(record.steps)} requests, {len(record.messages)} messages.")
    console.print(f"Largest history {largest:,} tokens; {received:,} tokens received, {sent:,} sent on.")
    console.print(
        f"{checkpoints} checkpoints; {retried} overflow met and repaired; the provider saw {stats['received']} requests."
    )
    for problem in problems:
        console.print(f"[bold red]problem:[/] {problem}")
    if not problems:
        console.print("[bold green]Every turn was answered, and the store holds exactly what was sent and received.[/]")
    console.print(
        f"\nWhere to look next: the whole conversation is in {store} (tables node, body, log, checkpoint); "
        "README.md tells how to point your own client at the gateway."
    )
