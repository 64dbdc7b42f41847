"""Large tool results, shown shortened (SPEC 11). The stored message is always whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from compaction.content import find_content
from compaction.quoting import word
from compaction.transcript import cut
from compaction.types import Counter, Path


def large_results(path: Path, after: int, limit: int) -> tuple[int, ...]:
    """Seqs behind `after` of the tool results that take more than `limit` tokens (R11.1)."""
    return tuple(
        seq for seq in range(after + 1, len(path) + 1) if path.at(seq).role == "tool" and path.at(seq).tokens > limit
    )


def before_newest_group(path: Path, seqs: Sequence[int]) -> tuple[int, ...]:
    """Those of `seqs` that are not among the results of the newest message with calls (R11.2)."""
    newest = next((seq for seq in range(len(path), 0, -1) if path.at(seq).calls), 0)
    return tuple(seq for seq in seqs if seq < newest)


def shortened(raw: bytes, seq: int, call_id: str | None, counter: Counter, limit: int) -> bytes:
    """The message with its text cut to `limit` tokens and a notice of what is missing; as it is if nothing is (R11.1).

    The notice names no tool: whoever cannot read the rest must not be told to (R11.4).
    """
    found = find_content(raw)
    if found is None:
        return raw
    content = json.loads(found.content, strict=False)
    if isinstance(content, str):
        changed: Any = _cut(content, seq, call_id, counter, limit)
    else:
        changed = [_cut_part(part, seq, call_id, counter, limit) for part in content]
    if changed == content:
        return raw
    text = found.text[: found.start] + json.dumps(changed, ensure_ascii=False) + found.text[found.end :]
    return text.encode("utf-8", "surrogatepass")


def _cut_part(part: Any, seq: int, call_id: str | None, counter: Counter, limit: int) -> Any:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        return part
    return {**part, "text": _cut(text, seq, call_id, counter, limit)}


def _cut(text: str, seq: int, call_id: str | None, counter: Counter, limit: int) -> str:
    ends = cut(text, counter, limit)
    if ends is None:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    notice = (
        f"[{ends.characters} characters in {ends.lines} lines of this result are not shown: "
        f"event_seq={seq} tool_call_id={word(call_id or '')} sha256={digest}]"
    )
    return f"{ends.head}\n{notice}\n{ends.tail}"
