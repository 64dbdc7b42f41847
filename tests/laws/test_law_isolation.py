"""Law 10: nothing of one tenant is ever in another's projection, retrieval or answer (R3.1)."""

import asyncio
import hashlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from compaction.checkpoint import from_json
from compaction.groups import legal_cuts
from gateway.simulator import SimulatorSettings
from store.errors import NotFoundError
from store.open import open_store
from store.protocol import Store
from store.rows import Boundary, Entry, Recorded
from tests.compaction.paths import checkpoint_at
from tests.e2e.harness import MODEL, running
from tests.e2e.identity_client import Caller, Reply, World, user, words, world_of
from tests.laws.histories import exact_bytes, histories, path_of
from tests.store.talk import ROUTE, Talk, assistant

TENANTS = ("key-P", "key-Q", "key-R")
WINDOW = 3072
STEPS = 120


@settings(max_examples=25, deadline=None)
@given(histories)
def test_no_store_call_gives_one_tenant_what_is_another_s(messages):
    """Equal histories, equal session ids, and even the other's digests and hashes in hand: nothing is found."""
    messages = [{"role": "user", "content": "a secret that no generator writes"}, *messages]
    messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "next"}]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(beside_each_other(Path(folder), messages))


async def beside_each_other(folder: Path, messages: list[dict[str, Any]]) -> None:
    store = open_store(f"sqlite:///{folder}/history.db")
    await store.open()
    try:
        owner, other = Talk(store, "P"), Talk(store, "Q")
        bodies = list(map(exact_bytes, messages))
        path = path_of(messages, "P")
        checkpoint = checkpoint_at(path, legal_cuts(path)[-1])
        boundary = Boundary(ROUTE, path.digests[-1], len(path), checkpoint.checkpoint_id, 10, 1, 100)
        recorded = await owner.ask(*bodies, session="X")
        await owner.answer(recorded, assistant("P's answer"), boundary=boundary)
        assert (await store.commit_checkpoint("P", recorded.session_key, checkpoint, path, from_json)).committed

        theirs = await other.ask(*bodies, session="X")
        assert theirs.session_key != recorded.session_key
        assert (theirs.lineage, theirs.added) == ("new", len(messages))
        await nothing_is_found(store, messages, recorded)
        await nothing_can_be_written(store, other, recorded)
        assert (await store.read_context("P", path, ROUTE, from_json)).checkpoint == checkpoint
        assert list(await store.boundaries("P", path, ROUTE)) == [boundary]
    finally:
        await store.close()


async def nothing_is_found(store: Store, messages: list[dict[str, Any]], recorded: Recorded) -> None:
    """Whether Q asks with its own digests or with those of P."""
    for tenant in ("P", "Q"):
        path = path_of(messages, tenant)
        assert (await store.read_context("Q", path, ROUTE, from_json)).checkpoint is None
        assert not await store.completed_checkpoints("Q", path)
        assert not await store.boundaries("Q", path, ROUTE)
    with pytest.raises(NotFoundError):
        await store.history("Q", path_of(messages, "P").nodes[-1])
    with pytest.raises(NotFoundError):
        await store.body("Q", hashlib.sha256(exact_bytes(assistant("P's answer"))).digest())
    found = await store.find_session("Q", "X")
    assert found is not None
    assert found.key != recorded.session_key
    assert {session.key for session in await store.sessions("Q")} == {found.key}


async def nothing_can_be_written(store: Store, other: Talk, recorded: Recorded) -> None:
    """P's session takes nothing that Q says."""
    before = list(await store.log(recorded.session_key))
    with pytest.raises(NotFoundError):
        await store.append("Q", recorded.session_key, [Entry("compaction_diagnostic", {})])
    with pytest.raises(NotFoundError):
        await other.answer(recorded, assistant("Q's answer"))
    assert list(await store.log(recorded.session_key)) == before


@pytest.mark.slow
async def test_tenants_that_copy_each_other_never_meet(tmp_path):
    """A seeded walk: three tenants take over each other's lists and session ids, far past the window.

    Each tenant's own instructions carry a secret; what they say to the model besides is the same for all.
    """
    with running(tmp_path, SimulatorSettings(window=WINDOW, models=(MODEL,)), context_window=WINDOW) as stack:
        async with world_of(stack) as world:
            callers = {key: world.caller(key) for key in TENANTS}
            replies = await walk(callers, random.Random(10))
            await nothing_has_crossed(world, callers, replies)


async def walk(callers: dict[str, Caller], rng: random.Random) -> dict[str, list[Reply]]:
    """Everyone goes on with lists that anyone has made, in sessions that anyone has named."""
    replies: dict[str, list[Reply]] = {key: [] for key in callers}
    lists: list[list[dict[str, Any]]] = [[]]
    for step in range(STEPS):
        key = TENANTS[step % len(TENANTS)]
        history = lists[max(0, len(lists) - rng.randint(1, 4))]
        message = user(f"step {step // 3}: {words(f'w{step // 3}x', 60)}")
        secret = {"role": "system", "content": f"The secret of {key}."}
        session = rng.choice([None, "X", "Y"])
        reply = await callers[key].ask(secret, *history, message, session=session)
        replies[key].append(reply)
        lists.append([*history, message, reply.message])
        if len(lists[-1]) > 60:
            lists = [[]]
    return replies


async def nothing_has_crossed(world: World, callers: dict[str, Caller], replies: dict[str, list[Reply]]) -> None:
    tenants = {}
    for key in callers:
        tenants[key] = (await world.recorded(replies[key][0])).session.tenant
        own = set()
        for session in await world.store.sessions(tenants[key], limit=1000):
            own |= {made.data["checkpoint_id"] for made in await world.entries(session, "compaction_completed")}
        used = {reply.checkpoint for reply in replies[key]} - {None}
        assert used
        assert used <= own
    assert len(set(tenants.values())) == len(callers)
    for entry in world.received():
        key = entry["headers"]["authorization"].removeprefix("Bearer ")
        others = [f"The secret of {other}." for other in TENANTS if other != key]
        text = json.dumps(json.loads(entry["body"]), ensure_ascii=False)
        assert not any(secret in text for secret in others)
    for key, mine in replies.items():
        answers = b"".join(reply.body for reply in mine)
        assert not any(f"secret of {other}".encode() in answers for other in TENANTS if other != key)
