"""How each kind of provider words its errors, lists its models and checks its window."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.simulator.settings import DialectName

JSONObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is refused, before a dialect gives it its form. `extra` are members that only some dialects show."""

    status: int
    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Excess:
    """A request that does not fit: its input (tokens), what of it is tools, its output limit if any, and the window."""

    input: int
    tools: int
    output: int | None
    window: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of provider. `token_factor` makes its count differ honestly from a gateway's estimate."""

    name: DialectName
    envelope: Callable[[Problem], Any]
    overflow: Callable[[Excess], Problem]
    window_field: Callable[[int], JSONObject]
    alternation: Problem
    owner: str
    checks_sum: bool = False
    token_factor: float = 1.0
    comment: bytes | None = None

    def exceeds(self, excess: Excess) -> bool:
        """Whether this provider refuses the request for its size."""
        output = excess.output or 0 if self.checks_sum else 0
        return excess.input + output > excess.window


def _openai_envelope(problem: Problem) -> JSONObject:
    kind = problem.type or {401: "invalid_request_error", 429: "requests"}.get(
        problem.status, "server_error" if problem.status >= 500 else "invalid_request_error"
    )
    code = problem.code or {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(problem.status)
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": code}}


def _vllm_envelope(problem: Problem) -> JSONObject:
    kind = {
        400: "BadRequestError",
        401: "AuthenticationError",
        404: "NotFoundError",
        429: "RateLimitError",
        503: "ServiceUnavailableError",
    }.get(problem.status, "InternalServerError" if problem.status >= 500 else "BadRequestError")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.status}}


def _llamacpp_envelope(problem: Problem) -> JSONObject:
    kind = {
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
        503: "unavailable_error",
    }.get(problem.status, "server_error" if problem.status >= 500 else "invalid_request_error")
    error = {"code": problem.status, "message": problem.message, "type": problem.type or kind}
    return {"error": error | dict(problem.extra)}


def _anthropic_envelope(problem: Problem) -> JSONObject:
    kind = {
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
        503: "overloaded_error",
        529: "overloaded_error",
    }.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}, "request_id": "req_simulated"}


def _gemini_envelope(problem: Problem) -> list[JSONObject]:
    status = {
        401: "UNAUTHENTICATED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        503: "UNAVAILABLE",
    }.get(problem.status, "INTERNAL" if problem.status >= 500 else "INVALID_ARGUMENT")
    return [{"error": {"code": problem.status, "message": problem.message, "status": status}}]


def _openrouter_envelope(problem: Problem) -> JSONObject:
    return {"error": {"message": problem.message, "code": problem.status, "metadata": {"provider_name": None}}}


def _openai_overflow(excess: Excess) -> Problem:
    split, what = "", "messages"
    if excess.tools:
        split = f" ({excess.input - excess.tools} in the messages, {excess.tools} in the functions)"
        what = "messages or functions"
    return Problem(
        400,
        f"This model's maximum context length is {excess.window} tokens. However, your messages resulted in "
        f"{excess.input} tokens{split}. Please reduce the length of the {what}.",
        param="messages",
        code="context_length_exceeded",
    )


def _vllm_overflow(excess: Excess) -> Problem:
    start = f"This model's maximum context length is {excess.window} tokens. However, your request has "
    if excess.input > excess.window or not excess.output:
        return Problem(
            400,
            f"{start}{excess.input} input tokens. Please reduce the length of the input messages. "
            f"(parameter=input_tokens, value={excess.input})",
            param="input_tokens",
        )
    return Problem(
        400,
        f"{start}{excess.input} input tokens plus {excess.output} 'max_tokens'. Please reduce one or the other. "
        f"(parameter=input_tokens, max_tokens, value=({excess.input}, {excess.output}))",
        param="input_tokens, max_tokens",
    )


def _llamacpp_overflow(excess: Excess) -> Problem:
    return Problem(
        400,
        f"request ({excess.input} tokens) exceeds the available context size ({excess.window} tokens), "
        "try increasing it",
        type="exceed_context_size_error",
        extra={"n_prompt_tokens": excess.input, "n_ctx": excess.window},
    )


def _anthropic_overflow(excess: Excess) -> Problem:
    return Problem(400, f"prompt is too long: {excess.input} tokens > {excess.window} maximum")


def _gemini_overflow(excess: Excess) -> Problem:
    return Problem(
        400,
        f"The input token count ({excess.input}) exceeds the maximum number of tokens allowed ({excess.window}).",
    )


def _openrouter_overflow(excess: Excess) -> Problem:
    parts = [f"{excess.input - excess.tools} of text input"]
    parts += [f"{excess.tools} of tool input"] if excess.tools else []
    parts += [f"{excess.output} in the output"] if excess.output else []
    total = excess.input + (excess.output or 0)
    return Problem(
        400,
        f"This endpoint's maximum context length is {excess.window} tokens. However, you requested about {total} "
        f"tokens ({', '.join(parts)}). Please reduce the length of either one, or use the context-compression plugin "
        "to compress your prompt automatically.",
    )


_TEMPLATE = "Conversation roles must alternate user/assistant/user/assistant/..."

DIALECTS: dict[DialectName, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("openai", _openai_envelope, _openai_overflow, lambda _: {}, Problem(400, _TEMPLATE), "sim"),
        Dialect(
            "vllm",
            _vllm_envelope,
            _vllm_overflow,
            lambda window: {"max_model_len": window},
            Problem(400, _TEMPLATE),
            "vllm",
            checks_sum=True,
        ),
        Dialect(
            "llamacpp",
            _llamacpp_envelope,
            _llamacpp_overflow,
            lambda window: {"meta": {"vocab_type": 2, "n_vocab": 200_019, "n_ctx_train": 131_072, "n_ctx": window}},
            Problem(500, f"Jinja Exception: {_TEMPLATE}"),
            "llamacpp",
            token_factor=1.1,
        ),
        # Relays that list these two name the window so; Google's own list writes figures as strings in places.
        Dialect(
            "anthropic",
            _anthropic_envelope,
            _anthropic_overflow,
            lambda window: {"context_window": window},
            Problem(400, 'messages: roles must alternate between "user" and "assistant", but found multiple in a row'),
            "anthropic",
            token_factor=1.15,
        ),
        Dialect(
            "gemini",
            _gemini_envelope,
            _gemini_overflow,
            lambda window: {"max_context_length": str(window)},
            Problem(400, "Please ensure that multiturn requests alternate between user and model."),
            "google",
            token_factor=1.05,
        ),
        Dialect(
            "openrouter",
            _openrouter_envelope,
            _openrouter_overflow,
            lambda window: {"context_length": window},
            Problem(400, _TEMPLATE),
            "openrouter",
            checks_sum=True,
            comment=b": OPENROUTER PROCESSING",
        ),
    )
}
OPENAI = DIALECTS["openai"]
