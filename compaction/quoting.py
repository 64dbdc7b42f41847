r"""The format of quoted data in a summary request (R8.2): marks that no text inside can forge.

It is lines that only this program writes: `[event seq=3 role=tool]`, `[call id=... name=...]`, `[result seq=3 call=...]`,
`[media type=...]`, `[cut characters=... lines=...]`, `[note ...]`, and the fence tags `<transcript-0f3a...>`,
`</transcript-0f3a...>`. The same characters inside a message get a backslash in front, wherever they stand, so that no
text can pass for an event, a citation or the end of the data.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

LABELS = (
    "transcript",
    "instructions",
    "goal",
    "current-request",
    "earlier-record",
    "running-record",
    "refused-answer",
)
"""What a fence may enclose."""

_TAG = rf"<(?=\s{{0,8}}/?\s{{0,8}}(?:{'|'.join(LABELS)})"  # bounded: free runs on both sides take quadratic time
MARK = re.compile(
    r"\[(?=\s*(?:event\s+seq|result\s+seq|call\s+id|media\s+type|cut\s+characters"
    r"|note\s+(?:no-result|unknown-call|empty|unreadable))\b)"
    rf"|{_TAG}-[0-9a-f]{{8}})",
    re.IGNORECASE,
)
"""The start of anything that looks like a line of this format."""
_LOOKS_LIKE_MARK = re.compile(rf"{MARK.pattern}|{_TAG}\b)", re.IGNORECASE)  # a weak reader may not miss the mark

CITATION = re.compile(r"\[result seq=([0-9]{1,9}) call=([^\s\]]*)\]")
"""A citation as `citation` writes it."""

_UNENCODABLE = re.compile(r"[\x00\ud800-\udfff]")
_SHORTEST_MARK = 16  # hex digits


def citation(seq: int, call_id: str | None) -> str:
    """The mark that a summary refers to a tool result by. Ids are percent-encoded where they need it."""
    return f"[result seq={seq} call={word(call_id or '')}]"


def cited(text: str) -> list[tuple[int, str]]:
    """The (seq, call id) of every well-formed citation in a text, in order."""
    return [(int(seq), unquote(call, errors="surrogatepass")) for seq, call in CITATION.findall(text)]


def escape(text: str) -> str:
    """The text with a backslash before all that looks like a line of this format, and without unencodable characters."""
    return _LOOKS_LIKE_MARK.sub(lambda found: "\\" + found[0], encodable(text).replace("\r\n", "\n"))


def encodable(text: str) -> str:
    """The text with lone surrogates and NUL replaced: providers and databases refuse them."""
    return _UNENCODABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def fence(text: str, label: str = "transcript", about: str = "") -> str:
    """The text between two tags that nothing inside can repeat: they carry a hash of what they enclose (R8.2).

    `label` is one of `LABELS`; `about` is added to the first tag.
    """
    tag = f"{label}-{fence_mark(text)}"
    return f"<{tag}{about and ' '}{about}>\n{text}\n</{tag}>"


def fence_mark(text: str, shortest: int = _SHORTEST_MARK) -> str:
    """Hex digits of the text's SHA-256 that do not occur in the text; more of them if they did."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return next(digest[:length] for length in range(shortest, len(digest) + 1) if digest[:length] not in text)


def word(text: str, also: str = "") -> str:
    """The text as one word of a header line: nothing in it can end the header, and `unquote` gives it back."""
    return quote(text, safe=f":/?&=#@+,;!$'()*|{also}", errors="surrogatepass")
