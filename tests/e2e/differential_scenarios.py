"""What a client asks in the differential test. Each is a request of the `openai` SDK, with what follows it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

MODEL = "sim-small"

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
    )
).decode()


class Step(pydantic.BaseModel):
    """A step of a structured answer."""

    explanation: str
    output: str


class Plan(pydantic.BaseModel):
    """A structured answer."""

    steps: list[Step]
    final: str
    confidence: float


def tool(name: str, *, strict: bool = False, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": f"Calls {name}.", "parameters": parameters}
    return {"type": "function", "function": {**function, "strict": True} if strict else function}


TOOLS = [
    tool("get_weather", strict=True, city={"type": "string"}, unit={"type": "string", "enum": ["c", "f"]}),
    tool("search", strict=True, query={"type": "string"}),
]


@dataclass(frozen=True)
class Scenario:
    """One conversation: the first request, and what is added to it after each answer but the last."""

    request: Mapping[str, Any]
    then: tuple[tuple[dict[str, Any], ...], ...] = ()
    """Messages after each answer. A tool message whose `tool_call_id` is a number answers the call of that place."""
    fault: str = ""
    response_format: type[pydantic.BaseModel] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the client."""
    simulator: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the simulated provider that differ."""


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def asking(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(messages), **members}


SYSTEM = {"role": "system", "content": "Be brief."}
PARALLEL = (
    'Compare. [[call:get_weather {"city": "Wien", "unit": "c"}]] [[call:get_weather {"city": "Köln", "unit": "f"}]]'
    ' [[call:search {"query": "a \\"quoted\\" ☃ query"}]]'
)

CHATS: dict[str, Scenario] = {
    "plain": Scenario(asking(SYSTEM, user("Hello there"))),
    "several turns": Scenario(
        asking({"role": "developer", "content": "Be kind."}, user("First [[words:5]]")),
        then=((user("Second 🙂"),), (user("Third [[say:naïve ☃ \U0001f9d1\u200d\U0001f692 text]]"),)),
    ),
    "parallel tool calls": Scenario(
        asking(user(PARALLEL), tools=TOOLS, parallel_tool_calls=True),
        then=(
            tuple({"role": "tool", "tool_call_id": place, "content": f"result {place}"} for place in range(3)),
            (user('Once more. [[say:Here:]] [[call:search {"query": "b"}]]'),),
            ({"role": "tool", "tool_call_id": 0, "content": [{"type": "text", "text": "parts"}]},),
        ),
    ),
    "one call at most": Scenario(asking(user(PARALLEL), tools=TOOLS, parallel_tool_calls=False)),
    "forced call": Scenario(
        asking(user("Go"), tools=TOOLS, tool_choice={"type": "function", "function": {"name": "search"}})
    ),
    "required call": Scenario(asking(user("Go"), tools=TOOLS, tool_choice="required")),
    "structured": Scenario(asking(user("Plan it")), response_format=Plan),
    "json object": Scenario(asking(user("As JSON"), response_format={"type": "json_object"})),
    "two choices": Scenario(asking(user("Twice"), n=2)),
    "two choices with calls": Scenario(asking(user(PARALLEL), n=2, tools=TOOLS)),
    "logprobs": Scenario(asking(user("Likely? [[words:6]]"), logprobs=True, top_logprobs=3)),
    "images": Scenario(
        asking(
            user(
                [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                ]
            )
        ),
        then=((user("And now?"),),),
    ),
    "audio and files": Scenario(
        asking(
            user(
                [
                    {"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}},
                    {
                        "type": "file",
                        "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"},
                    },
                    {"type": "text", "text": "Listen"},
                ]
            )
        )
    ),
    "reasoning": Scenario(asking(user("Think [[reasoning:step by step]]"), reasoning_effort="low")),
    "cut by length": Scenario(asking(user("Long [[words:200]]"), max_completion_tokens=12)),
    "all parameters": Scenario(
        asking(
            user("Everything"),
            temperature=1.0,
            top_p=0.25,
            seed=9007199254740993,
            presence_penalty=-0.5,
            frequency_penalty=1e-7,
            logit_bias={"50256": -100},
            max_completion_tokens=60,
            stop=["\n\n", "§"],
            user="someone",
            safety_identifier="s-1",
            prompt_cache_key="cache-1",
            store=False,
            metadata={"purpose": "test"},
            modalities=["text"],
            prediction={"type": "content", "content": "You said"},
            service_tier="auto",
            verbosity="low",
            extra_body={"vendor": {"top_k": 40, "min_p": 0.0, "nested": [None, {"a": 1e300}]}, "empty": {}},
            extra_headers={"X-Vendor-Header": "kept", "idempotency-key": "once"},
            extra_query={"api-version": "2025-01-01", "empty": ""},
        )
    ),
    "gzip": Scenario(asking(user("Compressed all the same")), fault="gzip"),
}

ERRORS: dict[str, Scenario] = {
    "400": Scenario(asking(user("x"), {"role": "tool", "tool_call_id": "nowhere", "content": "y"})),
    "401": Scenario(asking(user("x")), options={"api_key": "wrong"}, simulator={"api_key": "right"}),
    "404": Scenario(asking(user("[[status:404]]"))),
    "409": Scenario(asking(user("x")), fault="409"),
    "413": Scenario(asking(user("x")), fault="413"),
    "422": Scenario(asking(user("x")), fault="422"),
    "429": Scenario(asking(user("x")), fault="429"),
    "500": Scenario(asking(user("x")), fault="500"),
    "503": Scenario(asking(user("x")), fault="503"),
    "over the window": Scenario(asking(user("word " * 3000)), simulator={"window": 1000}),
    "error with 200": Scenario(asking(user("x")), fault="200-error"),
    "error as first event": Scenario(asking(user("x")), fault="error-first-event"),
    "error in the stream": Scenario(asking(user("x")), fault="error-event:3"),
    "malformed": Scenario(asking(user("x")), fault="malformed"),
    "no messages": Scenario(asking(messages=None)),
}

DIALECTS = ("vllm", "llamacpp", "anthropic", "gemini", "openrouter")
