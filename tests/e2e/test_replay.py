"""`palimpsest replay` on recordings made here."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner, Result

from gateway.cli import build, replay
from gateway.cli.conversations import read_conversations


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def invoke(*arguments: str) -> Result:
    empty = {name: None for name in os.environ if name.startswith("PALIMPSEST_")}
    given = ("replay", *arguments)
    return CliRunner().invoke(build(given), given, env={**empty, "COLUMNS": "250", "TERM": "dumb"})


def recording(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You look after a warehouse."}]
    for turn in range(turns):
        text = " ".join(f"shelf {turn}-{n} holds crates" for n in range(60))
        messages.append({"role": "user", "content": f"Turn {turn}, é: {text}"})
        messages.append({"role": "assistant", "content": f"Noted {turn}. {text}"})
    return messages


def row(result: Result, name: str) -> list[str]:
    line = next(line for line in result.output.splitlines() if name in line and "│" in line)
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_long_recording_is_compacted_and_keeps_its_guarantees(tmp_path: Path) -> None:
    """A recording longer than the window is answered throughout, with checkpoints and no violation."""
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"id": "warehouse", "messages": recording(12), "tools": []}) + "\n", "utf-8")
    result = invoke(str(path), "--window", "4096")
    assert result.exit_code == 0, result.output
    _, requests, refused, history, sent, checkpoints, reused, violations = row(result, "warehouse")
    assert (requests, refused, violations) == ("12", "0", "0")
    assert int(checkpoints) > 0
    assert int(sent.replace(",", "")) < int(history.replace(",", ""))
    assert re.fullmatch(r"\d+\.\d%", reused)


def test_changed_user_message_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that got another text than was sent ends the command with 1."""
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(recording(2)), "utf-8")
    seen = replay._received
    monkeypatch.setattr(
        replay, "_received", lambda url: tuple(tuple(m.replace(b"Turn 1", b"Turn") for m in ms) for ms in seen(url))
    )
    result = invoke(str(path))
    assert result.exit_code == 1, result.output
    assert row(result, "plain")[-1] == "1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"messages": [', "not JSON"),
        ('[{"role": "user", "content": "a"}, {"content": "b"}]', "messages[1] has no role"),
        ('{"prompt": "a"}', "no messages"),
        ('[{"role": "user", "content": "a"}]', "nothing to replay"),
        ('[{"role": "user"}, {"role": "assistant"}]\n[', "line 2"),
        ("", "the file is empty"),
    ],
)
def test_malformed_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    """A file that cannot be replayed is a usage error that says what was wrong and what was expected."""
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    result = invoke(str(path))
    assert result.exit_code == 2
    plain = re.sub(r"[\s│]+", " ", result.output)
    assert said in plain
    assert "bad.json" in plain


def test_every_form_is_read(tmp_path: Path) -> None:
    """One value or one a line, with tools or without."""
    path = tmp_path / "forms.jsonl"
    values = [recording(1), {"messages": recording(2), "tools": [{"type": "function"}]}]
    path.write_text("\n".join(map(json.dumps, values)), "utf-8")
    first, second = read_conversations(path)
    assert (first.name, first.points(), second.points(), len(second.tools)) == ("forms:1", [2], [2, 4], 1)
