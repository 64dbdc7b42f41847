"""The official SDK gets the same results with and without the gateway between, byte for byte (R2.2-R2.4, R2.7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from gateway.simulator import SimulatorSettings
from tests.e2e.differential_scenarios import CHATS, DIALECTS, ERRORS, MODEL, Scenario, asking, user
from tests.e2e.differential_wire import (
    AsyncRecordingTransport,
    Exchange,
    RecordingTransport,
    async_client,
    sync_client,
)
from tests.e2e.harness import Stack, running

DEFAULTS = {"window": 8192, "dialect": "openai", "api_key": None, "faults": []}
# Names the server, asks for no encoding (R2.13), or belongs to one hop.
APART = {"host", "accept-encoding", "connection"}
# What the SDK raises: its own, of JSON that it cannot read, of a stream without a single chunk.
SDK_ERRORS = (openai.OpenAIError, ValueError, AssertionError)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    routes = [{"match": "*", "include_usage": False}]
    folder = tmp_path_factory.mktemp("differential")
    with running(folder, SimulatorSettings(models=(MODEL,)), routes=routes) as both:
        yield both


@pytest.fixture(scope="module")
def requests() -> Iterator[httpx.Client]:
    with httpx.Client(verify=False) as client:
        yield client


@dataclass
class Seen:
    """Everything that can be seen of one run: by the program, on the client's wire, by the provider."""

    results: list[Any]
    exchanges: list[Exchange]
    received: list[dict[str, Any]]

    def as_value(self) -> dict[str, Any]:
        received = [
            (entry["method"], entry["path"], entry["body"], _without(entry["headers"])) for entry in self.received
        ]
        return {
            "results": self.results,
            "wire": [exchange.as_value() for exchange in self.exchanges],
            "provider": received,
        }


def _without(headers: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name not in APART]


class Conversation:
    """The messages of a scenario as they grow."""

    def __init__(self, scenario: Scenario) -> None:
        self.arguments = dict(scenario.request)
        headers = {**self.arguments.pop("extra_headers", {}), "x-sim-fault": scenario.fault}
        self.arguments["extra_headers"] = headers if scenario.fault else {**headers, "x-kept": "1"}
        self.parsed = {"response_format": scenario.response_format} if scenario.response_format else {}
        self.plain = {"response_format": _schema_of(scenario.response_format)} if scenario.response_format else {}
        self._then = list(scenario.then)

    def grow(self, completion: Any) -> bool:
        """Add the answer and what follows it; False where the conversation is over."""
        if not self._then:
            return False
        answer = completion.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"}, warnings=False)
        calls = answer.get("tool_calls", [])
        for call in calls:
            call["function"].pop("parsed_arguments", None)
        added = [
            message | ({"tool_call_id": calls[message["tool_call_id"]]["id"]} if "tool_call_id" in message else {})
            for message in self._then.pop(0)
        ]
        self.arguments["messages"] = [*self.arguments["messages"], answer, *added]
        return True


def _schema_of(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    """What `parse` and `stream` make of a model; `create` wants it made already."""
    return {"type": "json_schema", "json_schema": {"name": model.__name__, "schema": model.model_json_schema()}}


def shown(model: Any) -> Any:
    """All members of an SDK object. (It warns of a parsed answer, whose type it does not know.)"""
    return model.model_dump(mode="json", warnings=False)


def _error(error: Exception) -> tuple[Any, ...]:
    body = getattr(error, "body", None)
    return type(error).__name__, str(error), body, getattr(error, "request_id", None)


# --- the ways to call; each gives the results that a program sees ---


def sync_whole(client: openai.OpenAI, talk: Conversation) -> Iterator[Any]:
    while True:
        answer: Any
        if talk.parsed:
            answer = client.chat.completions.parse(**talk.arguments, **talk.parsed)
        else:
            answer = client.chat.completions.create(**talk.arguments)
        yield shown(answer), answer._request_id
        if not talk.grow(answer):
            return


def sync_raw_stream(client: openai.OpenAI, talk: Conversation) -> Iterator[Any]:
    while True:
        state: Any = ChatCompletionStreamState(input_tools=talk.arguments.get("tools", openai.NOT_GIVEN))
        with client.chat.completions.create(**talk.arguments, **talk.plain, stream=True) as stream:
            for chunk in stream:
                yield shown(chunk)
                state.handle_chunk(chunk)
        if not talk.grow(state.get_final_completion()):
            return


def sync_stream(client: openai.OpenAI, talk: Conversation) -> Iterator[Any]:
    while True:
        with client.chat.completions.stream(**talk.arguments, **talk.parsed) as stream:
            for event in stream:
                yield event.type, shown(event)
            answer = stream.get_final_completion()
        yield shown(answer)
        if not talk.grow(answer):
            return


async def async_whole(client: openai.AsyncOpenAI, talk: Conversation, results: list[Any]) -> None:
    while True:
        answer: Any
        if talk.parsed:
            answer = await client.chat.completions.parse(**talk.arguments, **talk.parsed)
        else:
            answer = await client.chat.completions.create(**talk.arguments)
        results.append((shown(answer), answer._request_id))
        if not talk.grow(answer):
            return


async def async_raw_stream(client: openai.AsyncOpenAI, talk: Conversation, results: list[Any]) -> None:
    while True:
        state: Any = ChatCompletionStreamState(input_tools=talk.arguments.get("tools", openai.NOT_GIVEN))
        async with await client.chat.completions.create(**talk.arguments, **talk.plain, stream=True) as stream:
            async for chunk in stream:
                results.append(shown(chunk))
                state.handle_chunk(chunk)
        if not talk.grow(state.get_final_completion()):
            return


async def async_stream(client: openai.AsyncOpenAI, talk: Conversation, results: list[Any]) -> None:
    while True:
        async with client.chat.completions.stream(**talk.arguments, **talk.parsed) as stream:
            async for event in stream:
                results.append((event.type, shown(event)))
            answer = await stream.get_final_completion()
        results.append(shown(answer))
        if not talk.grow(answer):
            return


SYNC = {"sync": sync_whole, "sync stream=True": sync_raw_stream, "sync .stream()": sync_stream}
ASYNC = {"async": async_whole, "async stream=True": async_raw_stream, "async .stream()": async_stream}


def run_sync(way: Any, url: str, scenario: Scenario) -> tuple[list[Any], list[Exchange]]:
    transport, results = RecordingTransport(), []
    with sync_client(url, transport, **scenario.options) as client:
        try:
            results += list(way(client, Conversation(scenario)))
        except SDK_ERRORS as error:
            results.append(_error(error))
    return results, transport.exchanges


def run_async(way: Any, url: str, scenario: Scenario) -> tuple[list[Any], list[Exchange]]:
    transport, results = AsyncRecordingTransport(), []

    async def run() -> None:
        async with async_client(url, transport, **scenario.options) as client:
            try:
                await way(client, Conversation(scenario), results)
            except SDK_ERRORS as error:
                results.append(_error(error))

    asyncio.run(run())
    return results, transport.exchanges


def look(requests: httpx.Client, stack: Stack, way: str, scenario: Scenario, *, direct: bool) -> Seen:
    """Run a scenario against a provider that has forgotten everything."""
    settings = json.dumps({**DEFAULTS, **scenario.simulator})
    requests.put(f"{stack.provider}/sim/settings", content=settings).raise_for_status()
    requests.post(f"{stack.provider}/sim/reset").raise_for_status()
    url = stack.provider if direct else stack.gateway
    results, exchanges = run_sync(SYNC[way], url, scenario) if way in SYNC else run_async(ASYNC[way], url, scenario)
    return Seen(results, exchanges, stack.seen(summaries=True))


def assert_same(requests: httpx.Client, stack: Stack, way: str, scenario: Scenario) -> Seen:
    """Run a scenario without and with the gateway, and compare all that can be seen."""
    direct = look(requests, stack, way, scenario, direct=True)
    through = look(requests, stack, way, scenario, direct=False)
    assert through.as_value() == direct.as_value()
    assert all("x-palimpsest-request" in exchange.own_headers for exchange in through.exchanges)
    return through


@pytest.mark.parametrize("way", [*SYNC, *ASYNC])
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_the_same_through_the_gateway(requests, stack, name, way):
    """R2.2, R2.3, R2.4: results, raw bytes and what the provider received."""
    scenario = CHATS[name]
    through = assert_same(requests, stack, way, scenario)
    assert len(through.exchanges) == len(scenario.then) + 1
    assert {exchange.status for exchange in through.exchanges} == {200}
    assert all(exchange.own_headers["x-palimpsest-context"] == "verbatim" for exchange in through.exchanges)  # R2.11


@pytest.mark.parametrize("way", [*SYNC, *ASYNC])
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_the_same_through_the_gateway(requests, stack, name, way):
    """R2.7, R2.10: type, text, status, headers and body, sent once."""
    through = assert_same(requests, stack, way, ERRORS[name])
    assert len(through.received) == len(through.exchanges) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("way", ["sync", "sync .stream()"])
@pytest.mark.parametrize("name", ["plain", "parallel tool calls", "429", "over the window"])
def test_every_dialect_is_the_same_through_the_gateway(requests, stack, name, way, dialect):
    """R2.4, R2.7: comments before a stream, other envelopes."""
    known = {**CHATS, **ERRORS}[name]
    scenario = Scenario(known.request, known.then, known.fault, simulator={**known.simulator, "dialect": dialect})
    assert_same(requests, stack, way, scenario)


def test_the_sdk_retries_and_the_gateway_does_not(requests, stack):
    """R2.10: one send for each of the SDK's own, and the SDK's count arrives."""
    scenario = Scenario(asking(user("Again")), options={"max_retries": 2}, simulator={"faults": ["500", "502"]})
    through = assert_same(requests, stack, "sync", scenario)
    assert [exchange.status for exchange in through.exchanges] == [500, 502, 200]
    assert [entry["headers"]["x-stainless-retry-count"] for entry in through.received] == ["0", "1", "2"]
