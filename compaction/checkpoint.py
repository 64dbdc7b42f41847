"""The checkpoint record: its id, its JSON form, and whether it is valid on a path (SPEC 7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from compaction.canonical import CANON_VERSION
from compaction.groups import current_user_run, turn_steps
from compaction.types import Checkpoint, Level, Path, Phase, Plan, Segment

SCHEMA = 3
FORMAT = 3
MAX_SEGMENTS = 4
TEXT = "text"
NATIVE = "native"

_NOT_IN_ID = {"checkpoint_id", "segments", "tokens_raw", "tokens_before", "tokens_after", "created_at"}
_IN_ID = tuple(field.name for field in fields(Checkpoint) if field.name not in _NOT_IN_ID)
_SEGMENT_IN_ID = tuple(field.name for field in fields(Segment) if field.name != "tokens")
_NEVER_EMPTY = ("checkpoint_id", "session_id", "source_digest", "created_at")
_TYPES = {"int": (int,), "str": (str,), "str | None": (str, type(None))}
_CHECKPOINT_FIELDS = {field.name: _TYPES[str(field.type)] for field in fields(Checkpoint) if field.name != "segments"}
_SEGMENT_FIELDS = {field.name: _TYPES[str(field.type)] for field in fields(Segment)}


def length_prefixed(values: Iterable[str | int | None]) -> bytes:
    """Bytes that no other sequence of values gives: each value is preceded by its kind and its length."""
    out = bytearray()
    for value in values:
        kind = b"n" if value is None else b"s" if isinstance(value, str) else b"i"
        data = b"" if value is None else str(value).encode("utf-8", "surrogatepass")
        out += kind + len(data).to_bytes(8, "big") + data
    return bytes(out)


def checkpoint_id(checkpoint: Checkpoint) -> str:
    """The hex SHA-256 over every field but itself, the token figures and `created_at` (R7.2)."""
    values: list[str | int | None] = [getattr(checkpoint, name) for name in _IN_ID]
    values.append(len(checkpoint.segments))
    for segment in checkpoint.segments:
        values.extend(getattr(segment, name) for name in _SEGMENT_IN_ID)
    return hashlib.sha256(length_prefixed(values)).hexdigest()


def segments_with(plan: Plan, text: str, tokens: int) -> tuple[Segment, ...]:
    """The segments of the checkpoint that a plan leads to, once its summary is `text` (R7.4, R7.5)."""
    appended_to = plan.previous if plan.level is Level.SEGMENTED else None
    earlier, first = (appended_to.segments, plan.from_seq) if appended_to else ((), 1)
    return (*earlier, Segment(first, plan.through_seq, plan.source_digest.hex(), text, tokens))


def new_checkpoint(
    plan: Plan,
    segments: Sequence[Segment],
    *,
    session_id: str,
    model: str,
    prompt_version: str,
    created_at: str,
    tokens_after: int,
    provider_route: str | None = None,
    provider_state: str | None = None,
) -> Checkpoint:
    """The record of a finished compaction, with its id. It is native if it has a `provider_state` (R9.1).

    `tokens_after` is no part of the id: `dataclasses.replace` may set it once the projection has been measured.
    """
    unnamed = Checkpoint(
        schema=SCHEMA,
        format=FORMAT,
        canon=CANON_VERSION,
        prompt=prompt_version,
        checkpoint_id="",
        previous_checkpoint_id=plan.previous.checkpoint_id if plan.previous else None,
        session_id=session_id,
        phase=plan.phase.value,
        through_seq=plan.through_seq,
        source_digest=plan.source_digest.hex(),
        head_anchor_seq=plan.head_anchor_seq,
        projection_kind=TEXT if provider_state is None else NATIVE,
        level=plan.level.value,
        segments=tuple(segments),
        provider_route=provider_route,
        provider_state=provider_state,
        model=model,
        tokens_raw=plan.tokens_raw,
        tokens_before=plan.tokens_before,
        tokens_after=tokens_after,
        created_at=created_at,
    )
    return replace(unnamed, checkpoint_id=checkpoint_id(unnamed))


def to_json(checkpoint: Checkpoint) -> str:
    """The record as JSON, ASCII only, so that any store keeps it as it is."""
    return json.dumps(asdict(checkpoint), separators=(",", ":"))


def from_json(text: str) -> Checkpoint | None:
    """The record, or None if it is malformed: a required field is missing or has another type (R7.3)."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    segments = data.get("segments") if isinstance(data, dict) else None
    if not isinstance(segments, list) or not _has(data, _CHECKPOINT_FIELDS):
        return None
    if not all(_has(segment, _SEGMENT_FIELDS) for segment in segments):
        return None
    return Checkpoint(
        **{name: data[name] for name in _CHECKPOINT_FIELDS},
        segments=tuple(Segment(**{name: segment[name] for name in _SEGMENT_FIELDS}) for segment in segments),
    )


def _has(data: Any, wanted: dict[str, tuple[type, ...]]) -> bool:
    """Whether `data` is an object with these fields, each exactly of one of its types (a bool is no integer)."""
    return isinstance(data, dict) and all(name in data and type(data[name]) in types for name, types in wanted.items())


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a checkpoint is to be used."""

    path: Path
    route: str
    prompt_version: str


_NOWHERE = Path((), (b"",), (b"",))
_Check = Callable[[Checkpoint, _Place], str | None]


def why_invalid(
    checkpoint: Checkpoint, path: Path, *, route: str, prompt_version: str, idle: bool = False
) -> str | None:
    """The first reason why a checkpoint may not be used for a path on a route, or None: it is valid (R7.3).

    `idle`: no request is to be answered on this path (R6.6), so there is no current message that it could swallow.
    """
    place = _Place(path, route, prompt_version)
    checks = _SOUND if idle else _SOUND + _LEAVES_CURRENT
    return next((reason for check in checks if (reason := check(checkpoint, place)) is not None), None)


def damage(checkpoint: Checkpoint, *, prompt_version: str) -> str | None:
    """Why a stored record is of no use on any path, or None: whether it applies is then a matter of the path (R7.6)."""
    place = _Place(_NOWHERE, checkpoint.provider_route or "", prompt_version)
    return next((reason for check in _UNDAMAGED if (reason := check(checkpoint, place)) is not None), None)


def current(
    checkpoints: Iterable[Checkpoint], path: Path, *, route: str, prompt_version: str, idle: bool = False
) -> Checkpoint | None:
    """The valid checkpoint that covers most; of equals the newest, then the one with the highest id (R7.6)."""
    best_first = sorted(checkpoints, key=lambda c: (c.through_seq, c.created_at, c.checkpoint_id), reverse=True)
    for checkpoint in best_first:
        if why_invalid(checkpoint, path, route=route, prompt_version=prompt_version, idle=idle) is None:
            return checkpoint
    return None


def _versions(checkpoint: Checkpoint, place: _Place) -> str | None:
    found = (checkpoint.schema, checkpoint.format, checkpoint.canon, checkpoint.prompt)
    return None if found == (SCHEMA, FORMAT, CANON_VERSION, place.prompt_version) else "made by another version"


def _required(checkpoint: Checkpoint, _place: _Place) -> str | None:
    empty = [name for name in _NEVER_EMPTY if not getattr(checkpoint, name)]
    return f"required field is empty: {empty[0]}" if empty else None


def _known_words(checkpoint: Checkpoint, _place: _Place) -> str | None:
    if checkpoint.projection_kind not in {TEXT, NATIVE}:
        return "unknown projection kind"
    if checkpoint.phase not in set(Phase):
        return "unknown phase"
    return None if checkpoint.level in set(Level) else "unknown level"


def _text(checkpoint: Checkpoint, _place: _Place) -> str | None:
    if checkpoint.projection_kind != TEXT:
        return None
    if checkpoint.provider_route is not None or checkpoint.provider_state is not None:
        return "a text checkpoint has provider state"
    if not 1 <= len(checkpoint.segments) <= MAX_SEGMENTS:
        return f"not 1 to {MAX_SEGMENTS} segments"
    if not all(segment.text.strip() for segment in checkpoint.segments):
        return "a segment has no text"
    return None if _gapless(checkpoint) else "the segments do not cover the prefix in order"


def _gapless(checkpoint: Checkpoint) -> bool:
    segments = checkpoint.segments
    return (
        segments[0].from_seq == 1
        and segments[-1].through_seq == checkpoint.through_seq
        and all(segment.from_seq <= segment.through_seq for segment in segments)
        and all(after.from_seq == before.through_seq + 1 for before, after in pairwise(segments))
    )


def _native(checkpoint: Checkpoint, place: _Place) -> str | None:
    if checkpoint.projection_kind != NATIVE:
        return None
    if not checkpoint.provider_route or checkpoint.provider_state is None:
        return "a native checkpoint lacks its route or state"
    if checkpoint.provider_route != place.route:
        return "native state of another route"
    try:
        json.loads(checkpoint.provider_state)
    except (ValueError, RecursionError):
        return "native state is not JSON"
    return None


def _id(checkpoint: Checkpoint, _place: _Place) -> str | None:
    return None if checkpoint.checkpoint_id == checkpoint_id(checkpoint) else "the id does not recompute"


def _on_path(checkpoint: Checkpoint, place: _Place) -> str | None:
    covered = [(segment.through_seq, segment.source_digest) for segment in checkpoint.segments]
    covered.append((checkpoint.through_seq, checkpoint.source_digest))
    if not all(1 <= through <= len(place.path) for through, _ in covered):
        return "covers messages that are not on the path"
    same = all(place.path.digests[through].hex() == digest for through, digest in covered)
    return None if same else "made from other messages"


def _anchor(checkpoint: Checkpoint, place: _Place) -> str | None:
    anchor = checkpoint.head_anchor_seq
    if anchor == 0:
        return None
    if not 1 <= anchor <= checkpoint.through_seq:
        return "the anchor lies outside the covered prefix"
    return None if place.path.at(anchor).role == "user" else "the anchor is no user message"


def _whole_groups(checkpoint: Checkpoint, place: _Place) -> str | None:
    """A group that was abandoned where the checkpoint was made may be answered on another path (R6.3, R12.2)."""
    behind = place.path.messages[checkpoint.through_seq : checkpoint.through_seq + 1]
    return "the cut lies before a result of this path" if behind and behind[0].role == "tool" else None


def _current_user_message(checkpoint: Checkpoint, place: _Place) -> str | None:
    run = current_user_run(place.path)
    if run is None or run[0] > checkpoint.through_seq or run[0] == checkpoint.head_anchor_seq:
        return None
    return "covers the current user message"


def _newest_step(checkpoint: Checkpoint, place: _Place) -> str | None:
    done = turn_steps(place.path)
    return "covers the newest complete step" if done and done[-1][0] <= checkpoint.through_seq else None


_SOUND: tuple[_Check, ...] = (_versions, _required, _known_words, _text, _native, _id, _on_path, _anchor, _whole_groups)
_LEAVES_CURRENT: tuple[_Check, ...] = (_current_user_message, _newest_step)
_UNDAMAGED: tuple[_Check, ...] = (_versions, _required, _known_words, _text, _native, _id)
