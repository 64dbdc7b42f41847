"""Where the content of a message lies in its exact bytes, so that it can be changed and all else kept (R2.2)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)


@dataclass(frozen=True, slots=True)
class Content:
    """A message as text, and where its content lies in it."""

    text: str
    start: int
    end: int
    bare: bool
    """It has no members but `role` and `content`."""

    @property
    def content(self) -> str:
        """The content's JSON text, as received."""
        return self.text[self.start : self.end]


def find_content(raw: bytes) -> Content | None:
    """Find the content in a message's bytes; None if it is neither a string nor a list of parts."""
    try:
        text = raw.decode("utf-8", "surrogatepass")
        return _walk(text)
    except (ValueError, RecursionError):
        return None


def _walk(text: str) -> Content | None:
    """Walk the members of an object; of duplicate keys the last counts, as for providers' parsers."""
    names: set[str] = set()
    span: tuple[int, int] | None = None
    at = _skip(text, 0, "{")
    while text[at : at + 1] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at, ""), ":")
        value, at = _DECODER.raw_decode(text, start)
        names.add(name)
        if name == "content":
            span = (start, at) if isinstance(value, (str, list)) else None
        at = _skip(text, _skip(text, at, ""), ",")
    return Content(text, *span, bare=names == {"role", "content"}) if span else None


def _skip(text: str, at: int, mark: str) -> int:
    """The position behind `mark`, if it stands at `at`, and the white space around it."""
    end = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches the empty string everywhere
    if mark and text.startswith(mark, end):
        end = _SPACE.match(text, end + len(mark)).end()  # type: ignore[union-attr]
    return end
