"""What the scripted model answers: a function of the request and nothing else."""

import hashlib
import random
import re
from dataclasses import dataclass, replace
from typing import Any

from gateway.simulator.jsonio import encode_json
from gateway.simulator.schemas import minimal_instance
from gateway.simulator.script import Script, script_of
from gateway.simulator.tokens import message_text, text_parts, truncate

_EPOCH = 1_700_000_000
_ECHOED_WORDS = 14
_WORDS = (  # noqa: SIM905 - one word a line would be a page
    "account active after again answer applied archive balance batch before branch build cache change check client "
    "closed column commit compare config copy count current daily data default delete deploy detail draft early edit "
    "empty entry error event every exact field file final first fixed folder form found given group header held index "
    "input inside item join keep key known label large later layer leave level limit line list local lock loop main "
    "map mark match merge method middle minor module move name narrow next node note number object offset open order "
    "other output owner page pair parse part patch path pending phase place plain point port prefix print queue quick "
    "range read ready record region relay remote report request reset result retry review role route row rule sample "
    "save scan schema search second section send series server session set shape share short shown side single size "
    "slot small source split stable stage start state step store stream string table tail target task test text tidy "
    "token tool total trace tree trial turn type unit update upper user valid value version view wait watch whole "
    "window word work worker write yield zone"
).split()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model makes; `arguments` is JSON text, cut where the output limit cut it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One alternative answer."""

    text: str | None
    finish: str = "stop"
    calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    reasoning: str | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with `n` choices. `id` and `created` are functions of the request."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]

    @property
    def tokens(self) -> int:
        """Output tokens of all choices."""
        return sum(choice.tokens for choice in self.choices)


def request_seed(body: dict[str, Any]) -> bytes:
    """A hash of what is asked: of everything but how it is delivered, so that a stream and JSON agree."""
    asked = {key: value for key, value in body.items() if key not in {"stream", "stream_options"}}
    return hashlib.sha256(encode_json(asked)).digest()


def make_reply(body: dict[str, Any], seed: bytes, choices: tuple[Choice, ...]) -> Reply:
    """The reply with its id (from the seed) and time (a fixed base plus seconds from the seed)."""
    created = _EPOCH + int.from_bytes(seed[:4], "big") % 10_000_000
    return Reply(f"chatcmpl-{seed.hex()[:29]}", created, body["model"], choices)


def output_limit(body: dict[str, Any]) -> int | None:
    """The output limit that the request asks for, in tokens."""
    given = [value for key in ("max_tokens", "max_completion_tokens") if (value := body.get(key)) is not None]
    return min(given) if given else None


def answer(body: dict[str, Any], seed: bytes, room: int) -> Reply:
    """The answer to an ordinary request. `room` is what the window leaves for output, in tokens."""
    script = script_of(body["messages"])
    limit = max(min(output_limit(body) or room, room), 1)
    choices = []
    for index in range(body.get("n") or 1):
        choice = _choice(body, script, hashlib.sha256(seed + bytes([index % 256])).digest())
        choice = limited(_stopped(choice, body.get("stop")), limit)
        finish = script.get("finish")
        choices.append(replace(choice, finish=finish) if finish else choice)
    return make_reply(body, seed, tuple(choices))


def _choice(body: dict[str, Any], script: Script, seed: bytes) -> Choice:
    reasoning = script.get("reasoning")
    calls, finish = _calls(body, script, seed)
    if calls:
        return Choice(script.get("say"), finish, calls, reasoning=reasoning)
    kind = (body.get("response_format") or {}).get("type")
    if kind == "json_schema":
        schema = (body["response_format"].get("json_schema") or {}).get("schema") or {}
        return Choice(encode_json(minimal_instance(schema)).decode(), reasoning=reasoning)
    if kind == "json_object":
        value = {"answer": script.rest[:80], "ref": _reference(seed)}
        return Choice(encode_json(value).decode(), reasoning=reasoning)
    return Choice(_text(body, script, seed), reasoning=reasoning)


def _calls(body: dict[str, Any], script: Script, seed: bytes) -> tuple[tuple[ToolCall, ...], str]:
    """The calls of the answer and its finish reason; only tools that the request offers are called."""
    offered = {
        tool["function"]["name"]: tool["function"].get("parameters") or {}
        for tool in body.get("tools") or ()
        if isinstance(tool.get("function"), dict) and "name" in tool["function"]
    }
    choice = body.get("tool_choice")
    wanted = [(name, arguments) for name, arguments in script.calls if name in offered]
    finish = "tool_calls"
    if choice == "none" or not offered:
        return (), "stop"
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        forced = choice["function"].get("name")
        wanted = [call for call in wanted if call[0] == forced][:1] or [(forced, _arguments(offered.get(forced, {})))]
        finish = "stop"
    elif choice == "required" and not wanted:
        name = next(iter(offered))
        wanted = [(name, _arguments(offered[name]))]
    if body.get("parallel_tool_calls") is False:
        wanted = wanted[:1]
    stem = seed.hex()[:20]
    return tuple(ToolCall(f"call_{stem}{n:02d}", name, args) for n, (name, args) in enumerate(wanted)), finish


def _arguments(schema: dict[str, Any]) -> str:
    return encode_json(minimal_instance(schema)).decode()


def _reference(seed: bytes) -> str:
    return f"ref-{seed.hex()[:12]}"


def _text(body: dict[str, Any], script: Script, seed: bytes) -> str:
    said = script.get("say")
    if said is not None:
        return said
    sought = script.get("recall")
    if sought is not None:
        return f"recall: {sought} {'found' if _recalls(body['messages'], sought) else 'not found'}."
    count = int(script.number("words", 20 + seed[0] % 40))
    prose = _prose(seed, count)
    if script.get("words"):
        return prose
    echoed = " ".join(script.rest.split()[:_ECHOED_WORDS])
    last = body["messages"][-1]
    if last["role"] in {"tool", "function"}:
        digest = hashlib.sha256(message_text(last).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"The result has digest {digest}. {prose} Recorded as {_reference(seed)}."
    return f"You said: {echoed}. {prose} Recorded as {_reference(seed)}."


def _recalls(messages: list[dict[str, Any]], sought: str) -> bool:
    """Whether a text stands in any message but the last user message, which asks for it."""
    asking = next((message for message in reversed(messages) if message["role"] == "user"), None)
    texts = [message_text(message) for message in messages if message is not asking]
    # A record that was joined with the asking message is not part of the question.
    joined = text_parts(asking.get("content")) if asking else []
    texts += [paragraph for text in joined for paragraph in text.split("\n\n") if f"[[recall:{sought}" not in paragraph]
    return any(sought in text for text in texts)


def _prose(seed: bytes, count: int) -> str:
    """Sentences of common words, always the same for one seed."""
    chosen = random.Random(seed).choices(_WORDS, k=max(count, 0))
    sentences = [" ".join(chosen[start : start + 9]).capitalize() + "." for start in range(0, len(chosen), 9)]
    return " ".join(sentences)


def _stopped(choice: Choice, stop: Any) -> Choice:
    marks = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    text = choice.text
    if text is None or choice.calls:
        return choice
    cuts = [at for mark in marks if isinstance(mark, str) and mark and (at := text.find(mark)) >= 0]
    return replace(choice, text=text[: min(cuts)]) if cuts else choice


def limited(choice: Choice, limit: int) -> Choice:
    """The choice with its tokens counted, cut to at most `limit` of them (then `finish` is "length")."""
    left, cut = limit, False
    texts: list[str | None] = []
    for text in (choice.reasoning, choice.refusal, choice.text, *(call.arguments for call in choice.calls)):
        kept, tokens = (text, 0) if text is None else truncate(text, left)
        cut = cut or kept != text
        left -= tokens
        texts.append(kept)
    reasoning, refusal, content, *arguments = texts
    calls = tuple(replace(call, arguments=text or "") for call, text in zip(choice.calls, arguments, strict=True))
    if cut:
        # A call of which nothing was written does not appear.
        calls = tuple(call for call in calls if call.arguments)
    finish = "length" if cut else choice.finish
    return Choice(content, finish, calls, refusal, reasoning, tokens=limit - left)


def pieces(text: str) -> list[str]:
    """A text in word-like pieces, as a model would emit them."""
    return re.findall(r"\s*\S{1,12}|\s+$", text) if text else []
