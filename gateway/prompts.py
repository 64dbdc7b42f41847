"""Loads the summariser's instructions from `config/prompts/` (R8.6)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from compaction.summary import Prompts
from compaction.validation import HEADINGS
from gateway.models import find_config_dir

_NAMES = ("system", "segment", "session", "fold", "repair")
_NEEDED = {
    "system": tuple(f"\n## {heading}\n" for heading in HEADINGS),
    "segment": ("{limit}",),
    "session": ("{limit}",),
    "fold": ("{limit}",),
    "repair": ("{problems}",),
}
_VERSION_DIGITS = 12


class PromptsError(ValueError):
    """A prompt file is missing, unreadable, or lacks a part that the gateway relies on."""


def load_prompts(folder: Path | None = None) -> Prompts:
    """Read the five texts and name them by their content.

    Raises `PromptsError`, which says which file is at fault and what it lacks.
    """
    folder = folder or find_config_dir() / "prompts"
    texts = {name: _read(folder / f"{name}.md", _NEEDED[name]) for name in _NAMES}
    return Prompts(version=_version(texts), **texts)


def _read(path: Path, needed: tuple[str, ...]) -> str:
    try:
        text = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"{path}: cannot be read: {error}") from error
    for part in needed:
        if part not in f"\n{text}\n":
            raise PromptsError(f"{path}: lacks {part.strip()!r}")
    return text


def _version(texts: dict[str, str]) -> str:
    """Short hash over names and texts, so that any change of wording is another version."""
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}:{len(text)}\n{text}\n".encode())
    return digest.hexdigest()[:_VERSION_DIGITS]
