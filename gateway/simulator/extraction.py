"""What an honest summariser takes from a transcript: real lines and facts of it, whatever its exact form."""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_ROLE = re.compile(
    r"""(?:^[\s\[<#*({\-"'|>]*|\brole["']?\s*[=:]\s*["']?)
    (user|assistant|tool|result|call|system|developer)\b
    (?=\s*(?:[\]:>)"'=,(|{\#]|$|seq\b|result\b|call\b|message\b|\d))""",
    re.IGNORECASE | re.VERBOSE,
)
_NOISE = re.compile(
    r"""\[\[.*?\]\] | \[result\ [^\]]*\] | <[^<>\n]{1,200}> | \[?\(?truncated\)?\]? | \.\.\.\[continued\] | `{3,}\w* | ~{3,}\w*""",
    re.IGNORECASE | re.VERBOSE,
)
_LABEL = re.compile(
    r"^[\s#*>\-|\[{(]*(?:(?:user|assistant|tool|system|developer|result|call)\b[^:\]>]{0,60}[:\]>]+)?\s*", re.IGNORECASE
)
_REFERENCE = re.compile(r"\bref-[0-9a-f]{6,64}\b")
_FACTS = (
    _REFERENCE,
    re.compile(r"(?<![\w/])(?:\.{0,2}/)?(?:[\w.\-]+/)+[\w.\-]*[\w]"),
    re.compile(r"\b[\w\-]+\.(?:py|ts|tsx|js|rs|go|c|h|cpp|java|md|json|jsonl|toml|yaml|yml|sql|html|css|txt|csv|sh)\b"),
    re.compile(r"\b[\w.+\-]+@[\w\-]+\.[\w.\-]+\b"),
    re.compile(r"\b[A-Z]{2,}[A-Z0-9]*[-_]?\d{2,}\b|\b[A-Z0-9]{6}\b(?<=\d)|\b[a-z]+(?:_[a-z]+)*_\d{3,}\b"),
    re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d+(?:[.,:]\d+)+\b|\b\d{3,}\b"),
)
_EARLIER_GOAL = re.compile(r"^## Goal\s*\n+\s*-?\s*(.{4,})", re.MULTILINE)
_DECIDES = re.compile(
    r"\b(?:must|never|always|decided?|chose|chosen|agreed?|only|instead|prefer|use|do not|don't)\b", re.IGNORECASE
)
_LINE_CHARACTERS = 150
_CHARACTERS_PER_TOKEN = 3
_SHARES = {"goal": 0.14, "progress": 0.24, "decisions": 0.14, "next": 0.1, "facts": 0.38}


@dataclass(frozen=True, slots=True)
class Material:
    """Lines for each section; none is empty."""

    goal: tuple[str, ...]
    progress: tuple[str, ...]
    decisions: tuple[str, ...]
    next_steps: tuple[str, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    role: str
    text: str


def extract(transcript: str, tokens: int) -> Material:
    """The material of a summary of about `tokens` tokens."""
    lines = list(_lines(transcript))
    said = {role: [line.text for line in lines if line.role == role] for role in ("user", "assistant", "tool")}
    earlier = [tidy for goal in _EARLIER_GOAL.findall(transcript)[:1] if (tidy := _tidy(goal))]
    user = earlier + said["user"] or [line.text for line in lines] or ["The conversation has no text."]
    done = (said["assistant"] + said["tool"])[::-1] or user[::-1]
    decided = [line.text for line in reversed(lines) if line.role != "tool" and _DECIDES.search(line.text)]

    def fit(section: str, texts: Iterable[str], most: int) -> tuple[str, ...]:
        return _fit(texts, int(tokens * _SHARES[section] * _CHARACTERS_PER_TOKEN), most)

    return Material(
        goal=fit("goal", user, 3),
        progress=fit("progress", done, 6),
        decisions=fit("decisions", decided or user[-1:], 4),
        next_steps=fit("next", (f"Go on from: {text}" for text in reversed(user)), 2),
        facts=fit("facts", _facts(transcript, user), 60),
    )


def _lines(transcript: str) -> Iterator[_Line]:
    role = ""
    for raw in html.unescape(transcript).replace("\\n", "\n").splitlines():
        match = _ROLE.search(raw)
        if match:
            word = match[1].lower()
            role = "tool" if word in {"result", "call"} else word
        text = _tidy(raw)
        if text:
            yield _Line(role, text)


def _tidy(raw: str) -> str:
    """A line without marks of its transcript; "" where nothing is said."""
    text = " ".join(_NOISE.sub(" ", _LABEL.sub("", _NOISE.sub(" ", raw))).replace("#", " ").split())
    return text if sum(map(str.isalnum, text)) >= 4 else ""


def _fit(texts: Iterable[str], characters: int, most: int) -> tuple[str, ...]:
    """The first different texts that fit, each clipped; at least one."""
    kept: dict[str, None] = {}
    for text in texts:
        clipped = _clip(text, max(min(_LINE_CHARACTERS, characters), 24))
        if clipped in kept:
            continue
        if kept and (len(clipped) > characters or len(kept) >= most):
            break
        kept[clipped] = None
        characters -= len(clipped) + 3
    return tuple(kept)


def _clip(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = text[:most]
    return head.rsplit(" ", 1)[0] if " " in head[most // 2 :] else head


def _facts(transcript: str, user: list[str]) -> Iterator[str]:
    """Facts of the text, newest first, the references before all others; then the user's own words."""
    text = _NOISE.sub(" ", html.unescape(transcript))
    newest: Callable[[re.Pattern[str]], list[str]] = lambda pattern: pattern.findall(text)[::-1]  # noqa: E731 - a name for one expression
    for pattern in _FACTS:
        yield from newest(pattern)
    yield from reversed(user)
