"""Large tool results, shown shortened (R11.1, R11.2, R11.4)."""

import hashlib
import json

from compaction.content import find_content
from compaction.tool_results import before_newest_group, large_results, shortened
from tests.compaction.paths import calls, history, result, user

LINES = [f"line {number}: value {number * 7}" for number in range(2000)]
TEXT = "\n".join(LINES)


def count(texts):
    return [len(text.split()) for text in texts]


def message(content, **more):
    return json.dumps({"role": "tool", "tool_call_id": "c 1", "content": content, **more}).encode()


def test_a_large_result_keeps_its_ends_and_says_what_is_missing():
    """R11.1: cut at line ends; characters, lines, position, id and digest of the whole."""
    raw = message(TEXT, x=1.0)
    shown = shortened(raw, 7, "c 1", count, 200)
    text = json.loads(shown)["content"]
    first, notice, *_ = (part for part in text.split("\n[") for part in [part])
    assert text.startswith(LINES[0])
    assert text.endswith(LINES[-1])
    assert first.splitlines()[-1] in LINES
    assert "event_seq=7" in notice
    assert "tool_call_id=c%201" in notice
    assert hashlib.sha256(TEXT.encode()).hexdigest() in notice
    assert count([text])[0] < 220
    head = len(first)
    tail = len(text) - text.index("]\n") - 2
    missing = int(notice.split()[0])
    assert head + missing + tail in range(len(TEXT) - 2, len(TEXT) + 1)
    assert b'"x": 1.0' in shown
    assert shortened(raw, 7, "c 1", count, 200) == shown


def test_a_small_result_and_one_without_text_stay_as_they_are():
    for raw in (message("ok"), message([{"type": "text", "text": "ok"}]), message(None), b"[]", b"{"):
        assert shortened(raw, 1, None, count, 200) == raw


def test_only_the_texts_of_parts_are_cut():
    parts = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": "data:x"}}, "odd", {"text": 1}]
    shown = json.loads(shortened(message(parts), 3, "c", count, 100))["content"]
    assert "event_seq=3" in shown[0]["text"]
    assert shown[1:] == parts[1:]


def test_the_newest_group_is_told_apart():
    """R11.2: older results are shortened first."""
    path = history(
        user(), calls("a"), (result("a"), 5000), calls("b", "c"), (result("b"), 5000), (result("c"), 10), user()
    ).path
    assert large_results(path, 0, 2048) == (3, 5)
    assert large_results(path, 3, 2048) == (5,)
    assert before_newest_group(path, (3, 5)) == (3,)
    assert before_newest_group(history(user()).path, ()) == ()


def test_of_duplicate_contents_the_last_counts():
    found = find_content(b'{"content":"a","role":"tool","content" : "b"}')
    assert found is not None
    assert found.content == '"b"'
