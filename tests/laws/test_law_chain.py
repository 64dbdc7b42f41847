"""Law 3: extending a history extends its chain; changing message i changes digests i..n and none before (R3.3)."""

import json
from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.canonical import build_path
from tests.laws.histories import TENANT, exact_bytes, histories, path_of, respelled


def ends_with_a_change(message):
    """The message with one thing changed that counts."""
    changed = deepcopy(message)
    changed["role"] = f"{changed.get('role')} changed"
    return changed


@given(histories, histories)
@settings(max_examples=50)
def test_extending_a_history_extends_its_chain(history, more):
    """Law 3."""
    short, long = path_of(history), path_of(history + more)
    assert long.digests[: len(history) + 1] == short.digests
    assert long.nodes[: len(history) + 1] == short.nodes
    assert len(long.digests) == len(long.nodes) == len(long) + 1


@given(histories, st.data())
@settings(max_examples=50)
def test_changing_a_message_changes_its_digest_and_all_later_ones_and_none_before(history, data):
    """Law 3."""
    if not history:
        return
    seq = data.draw(st.integers(1, len(history)))
    changed = [*history[: seq - 1], ends_with_a_change(history[seq - 1]), *history[seq:]]
    before, after = path_of(history), path_of(changed)
    assert after.digests[:seq] == before.digests[:seq]
    assert after.nodes[:seq] == before.nodes[:seq]
    assert not set(after.digests[seq:]) & set(before.digests)
    assert not set(after.nodes[seq:]) & set(before.nodes)


@given(histories, st.data())
@settings(max_examples=50)
def test_another_spelling_has_the_same_chain_of_digests(history, data):
    """R3.2: what does not count is not hashed, tool call ids are linkage only."""
    other = data.draw(respelled(history))
    assert path_of(other).digests == path_of(history).digests


@given(histories)
@settings(max_examples=50)
def test_a_node_is_its_exact_bytes(history):
    """SPEC 1: other bytes, another node, though the meaning is the same."""
    spaced = [json.loads(exact_bytes(message)) | {"vendor_field": 1} for message in history]
    before, after = path_of(history), path_of(spaced)
    assert not set(after.nodes[1:]) & set(before.nodes)


@given(histories)
@settings(max_examples=50)
def test_no_digest_and_no_node_is_shared_between_tenants(history):
    """R3.1."""
    mine = path_of(history)
    theirs = build_path("other", mine.messages)
    assert not {*mine.digests, *mine.nodes} & {*theirs.digests, *theirs.nodes}
    assert build_path(TENANT, mine.messages) == mine


@given(histories)
@settings(max_examples=50)
def test_no_two_positions_of_a_path_have_the_same_digest(history):
    """R3.3: a digest stands for all that precedes it."""
    path = path_of(history)
    assert len({*path.digests, *path.nodes}) == 2 * (len(path) + 1)
