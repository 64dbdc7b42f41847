"""What a strict provider refuses: malformed messages, unpaired calls and results, wrong alternation (R17.1)."""

from collections import Counter
from typing import Any

from gateway.simulator.dialects import Dialect, Problem

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PART_MEMBER = {
    "text": "text",
    "image_url": "image_url",
    "input_audio": "input_audio",
    "file": "file",
    "video_url": "video_url",
    "refusal": "refusal",
}


def check_body(body: Any, dialect: Dialect, *, alternate: bool, refuse: tuple[str, ...] = ()) -> Problem | None:
    """Why this provider refuses the parsed body, or None."""
    if not isinstance(body, dict):
        return Problem(400, "We could not parse the JSON body of your request: expected an object.")
    problem = _check_members(body, refuse) or _check_messages(body["messages"])
    if problem is None and alternate:
        problem = check_alternation(body["messages"], dialect)
    return problem


def _check_members(body: dict[str, Any], refuse: tuple[str, ...]) -> Problem | None:  # noqa: PLR0911 - one for each rule
    if not isinstance(body.get("model"), str) or not body["model"]:
        return Problem(400, "you must provide a model parameter", param="model")
    for key in ("messages", "tools"):
        if key in body and body[key] == []:
            return Problem(
                400,
                f"Invalid '{key}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
                param=key,
                code="empty_array",
            )
    if not isinstance(body.get("messages"), list):
        return Problem(
            400, "Missing required parameter: 'messages'.", param="messages", code="missing_required_parameter"
        )
    if body.get("tools") is not None and not isinstance(body["tools"], list):
        return _wrong_type("tools", "an array of objects")
    for index, tool in enumerate(body.get("tools") or ()):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            return _wrong_type(f"tools[{index}]", "an object with a type")
    if body.get("stream_options") is not None and not body.get("stream"):
        return Problem(
            400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    return _check_limits(body) or _check_refused(body, refuse)


def _check_limits(body: dict[str, Any]) -> Problem | None:
    for key in ("max_tokens", "max_completion_tokens", "n"):
        value = body.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            return _wrong_type(key, "an integer")
        if value is not None and value < 1:
            return Problem(
                400,
                f"Invalid '{key}': integer below minimum value. Expected a value >= 1, but got {value} instead.",
                param=key,
                code="integer_below_min_value",
            )
    return None


def _check_refused(body: dict[str, Any], refuse: tuple[str, ...]) -> Problem | None:
    for key in refuse:
        if key in body:
            hint = " Use 'max_completion_tokens' instead." if key == "max_tokens" else ""
            return Problem(
                400,
                f"Unsupported parameter: '{key}' is not supported with this model.{hint}",
                param=key,
                code="unsupported_parameter",
            )
    return None


def _wrong_type(param: str, expected: str) -> Problem:
    message = f"Invalid type for '{param}': expected {expected}."
    return Problem(400, message, param=param, code="invalid_type")


def _check_messages(messages: list[Any]) -> Problem | None:
    for index, message in enumerate(messages):
        problem = _check_message(message, f"messages[{index}]")
        if problem:
            return problem
    return check_pairing(messages)


def _check_message(message: Any, where: str) -> Problem | None:  # noqa: PLR0911 - one for each rule
    if not isinstance(message, dict):
        return _wrong_type(where, "an object")
    role = message.get("role")
    if role not in ROLES:
        supported = ", ".join(f"'{name}'" for name in ROLES)
        return Problem(
            400,
            f"Invalid value: {role!r}. Supported values are: {supported}.",
            param=f"{where}.role",
            code="invalid_value",
        )
    content = message.get("content")
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls is not None:
            problem = _check_calls(calls, where)
            if problem:
                return problem
        if content is None and not calls and not message.get("function_call") and not message.get("refusal"):
            return _wrong_type(f"{where}.content", "a string or an array, where there are no tool calls")
    elif content is None:
        return _wrong_type(f"{where}.content", "a string or an array of content parts, got null")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return Problem(
            400,
            f"Missing required parameter: '{where}.tool_call_id'.",
            param=f"{where}.tool_call_id",
            code="missing_required_parameter",
        )
    return _check_content(content, f"{where}.content")


def _check_calls(calls: Any, where: str) -> Problem | None:
    if not isinstance(calls, list) or not calls:
        return Problem(
            400,
            f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1.",
            param=f"{where}.tool_calls",
            code="empty_array",
        )
    for number, call in enumerate(calls):
        here = f"{where}.tool_calls[{number}]"
        if not isinstance(call, dict) or not isinstance(call.get("id"), str) or not call["id"]:
            return _wrong_type(f"{here}.id", "a string")
        function = call.get("function")
        if call.get("type") == "custom":
            continue
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            return _wrong_type(f"{here}.function.name", "a string")
        if not isinstance(function.get("arguments"), str):
            return _wrong_type(f"{here}.function.arguments", "a string")
    return None


def _check_content(content: Any, where: str) -> Problem | None:  # noqa: PLR0911 - one for each rule
    if content is None or isinstance(content, str):
        return None
    if not isinstance(content, list) or not content:
        return _wrong_type(where, "a string or a non-empty array of content parts")
    for number, part in enumerate(content):
        here = f"{where}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _PART_MEMBER:
            return Problem(
                400, f"Invalid value: {kind!r} at '{here}.type'.", param=f"{here}.type", code="invalid_value"
            )
        value = part.get(_PART_MEMBER[kind])
        if kind in {"text", "refusal"} and not isinstance(value, str):
            return _wrong_type(f"{here}.{kind}", "a string")
        if kind in {"image_url", "video_url"} and not (isinstance(value, dict) and isinstance(value.get("url"), str)):
            return _wrong_type(f"{here}.{kind}", "an object with a url")
        if kind in {"input_audio", "file"} and not isinstance(value, dict):
            return _wrong_type(f"{here}.{kind}", "an object")
    return None


def check_pairing(messages: list[dict[str, Any]]) -> Problem | None:
    """Every result answers a call of the assistant message before it, once; every call has its result at once."""
    open_calls: Counter[str] = Counter()
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if not open_calls[call]:
                return _orphan_result(call, index, duplicate=call in answered)
            open_calls[call] -= 1
            answered.add(call)
            continue
        problem = _unanswered(open_calls, index)
        if problem:
            return problem
        open_calls = Counter(call["id"] for call in message.get("tool_calls") or ())
        answered = set()
    return _unanswered(open_calls, len(messages))


def _orphan_result(call: str, index: int, *, duplicate: bool) -> Problem:
    text = (
        f"Invalid parameter: duplicate tool message for 'tool_call_id' {call}."
        if duplicate
        else "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
    )
    return Problem(400, text, param=f"messages.[{index}].role")


def _unanswered(open_calls: Counter[str], index: int) -> Problem | None:
    missing = list(open_calls.elements())
    if not missing:
        return None
    return Problem(
        400,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(missing)}",
        param=f"messages.[{index}].role",
    )


def check_alternation(messages: list[dict[str, Any]], dialect: Dialect) -> Problem | None:
    """After the leading instructions user and assistant take turns.

    Results, and an assistant message that follows its calls' results, belong to the assistant's step.
    """
    roles = [message["role"] for message in messages]
    start = next((index for index, role in enumerate(roles) if role not in {"system", "developer"}), len(roles))
    if start == len(roles):
        return None
    expected, previous = "user", ""
    for role in roles[start:]:
        if role in {"tool", "function"}:
            previous = role
            continue
        if role == "assistant" and previous in {"tool", "function"}:
            previous = role
            continue
        if role != expected:
            return dialect.alternation
        expected = "assistant" if role == "user" else "user"
        previous = role
    return None
