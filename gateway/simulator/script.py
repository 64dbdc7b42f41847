"""Directives in a message that tell the scripted model what to do, such as `[[call:read_file {"path": "a.py"}]]`."""

import json
import re
from dataclasses import dataclass
from typing import Any

from gateway.simulator.tokens import text_parts

_START = re.compile(r"\[\[(call|say|words|finish|status|delay|recall|reasoning):")
_END = "]]"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Script:
    """What the newest messages ask of the model, and `words`, what is left of the last text without directives.

    Directives: `call:NAME ARGUMENTS` (several are parallel calls; arguments are sent as written), `say:TEXT`, `words:N`,
    `finish:REASON`, `status:CODE` (answer an error), `delay:SECONDS`, `recall:TEXT` (say whether TEXT stands in the other
    messages), `reasoning:TEXT`.
    """

    calls: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    rest: str = ""

    def get(self, key: str) -> str | None:
        """The last value given for a directive."""
        return next((value for name, value in reversed(self.values) if name == key), None)

    def number(self, key: str, default: float) -> float:
        """A directive's value as a number; the default where it is absent or no number."""
        try:
            return float(self.get(key) or default)
        except ValueError:
            return default


def parse_script(text: str) -> Script:
    """The directives of a text, in order. One that is never closed is ordinary text."""
    calls: list[tuple[str, str]] = []
    values: list[tuple[str, str]] = []
    rest: list[str] = []
    position = 0
    while match := _START.search(text, position):
        end = _directive_end(text, match)
        if end < 0:
            break
        value = text[match.end() : end].strip()
        if match[1] == "call":
            name, _, arguments = value.partition(" ")
            calls.append((name, arguments.strip() or "{}"))
        else:
            values.append((match[1], value))
        rest.append(text[position : match.start()])
        position = end + len(_END)
    rest.append(text[position:])
    return Script(tuple(calls), tuple(values), "".join(rest).strip())


def _directive_end(text: str, match: re.Match[str]) -> int:
    """Where a directive's closing brackets begin. Arguments that are JSON may hold brackets themselves."""
    if match[1] == "call":
        brace = text.find("{", match.end())
        closed = text.find(_END, match.end())
        if 0 <= brace < closed:
            try:
                end = _DECODER.raw_decode(text, brace)[1]
            except ValueError:
                return closed
            return text.find(_END, end)
    return text.find(_END, match.end())


def script_of(messages: list[dict[str, Any]]) -> Script:
    """The script of a request: of the results that end it, else of its last user message.

    Results can so carry the next step of an agent's work, which stays true when earlier steps are compacted away.
    """
    texts: list[str] = []
    for message in reversed(messages):
        if message["role"] not in {"tool", "function"}:
            break
        texts.insert(0, "\n".join(text_parts(message.get("content"))))
    if not texts:
        last = next((message for message in reversed(messages) if message["role"] == "user"), None)
        texts = text_parts(last.get("content")) if last else []
    script = parse_script("\n".join(texts))
    # A gateway may put a record before the user's own words, as a part or a paragraph: the last paragraph is the user's.
    own = [paragraph for text in texts for paragraph in text.split("\n\n") if paragraph.strip()]
    return Script(script.calls, script.values, parse_script(own[-1]).rest if own else "")
