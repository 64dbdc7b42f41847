"""Checkpoints and boundaries are found by the digests on a path (R3.4, R7.6, R9.2, R10.5)."""

import asyncio
from dataclasses import replace

import pytest

from compaction.checkpoint import from_json, to_json
from compaction.types import Checkpoint, Path
from store.errors import NotFoundError
from store.protocol import Store
from store.rows import Boundary, Commit, Recorded, RouteState
from tests.compaction.paths import checkpoint_at
from tests.store.talk import ROUTE, Talk, assistant, path_of, user


def turns(count: int) -> list[dict[str, object]]:
    return [user(f"q{n}") if n % 2 == 0 else assistant(f"a{n}") for n in range(count)]


async def recorded_path(talk: Talk, count: int, **options: str) -> tuple[Recorded, Path]:
    recorded = await talk.exchange(*turns(count), reply=assistant("end"), **options)
    return recorded, talk.sent[-1][1].path


async def commit(talk: Talk, recorded: Recorded, checkpoint: Checkpoint, path: Path) -> Commit:
    return await talk.store.commit_checkpoint(talk.tenant, recorded.session_key, checkpoint, path, from_json)


async def current(store: Store, path: Path, tenant: str = "tenant") -> Checkpoint | None:
    return (await store.read_context(tenant, path, ROUTE, from_json)).checkpoint


async def test_commit_writes_the_row_and_the_entry(talk: Talk):
    """R9.3"""
    recorded, path = await recorded_path(talk, 5)
    checkpoint = checkpoint_at(path, 4)
    assert await commit(talk, recorded, checkpoint, path) == Commit(committed=True)
    assert await current(talk.store, path) == checkpoint
    (entry,) = [e for e in await talk.store.log(recorded.session_key) if e.kind == "compaction_completed"]
    assert from_json(to_json(checkpoint)) == checkpoint
    assert entry.data["checkpoint_id"] == checkpoint.checkpoint_id
    assert entry.data["segments"][0]["text"] == checkpoint.segments[0].text
    assert (entry.node, entry.seq) == (path.nodes[4], 4)


async def test_the_one_that_covers_most_is_in_force(talk: Talk):
    recorded, path = await recorded_path(talk, 9)
    first = checkpoint_at(path, 2)
    second = checkpoint_at(path, 6, previous=first)
    await commit(talk, recorded, first, path)
    await commit(talk, recorded, second, path)
    assert await current(talk.store, path) == second
    shorter = path_of("tenant", talk.sent[-1][1].bodies[:5])
    assert await current(talk.store, shorter) == first


async def test_a_row_that_is_not_valid_is_passed_over_and_named(talk: Talk):
    """R7.6"""
    recorded, path = await recorded_path(talk, 9)
    first = checkpoint_at(path, 2)
    second = checkpoint_at(path, 6, previous=first)
    await commit(talk, recorded, first, path)
    await commit(talk, recorded, second, path)

    def read(text: str) -> Checkpoint | None:
        found = from_json(text)
        return found if found == first else None

    found = await talk.store.read_context("tenant", path, ROUTE, read)
    assert found.checkpoint == first
    assert list(found.invalid) == [second.checkpoint_id]
    none = await talk.store.read_context("tenant", path, ROUTE, lambda _text: None)
    assert (none.checkpoint, list(none.invalid)) == (None, [second.checkpoint_id, first.checkpoint_id])


@pytest.mark.parametrize("through", [1, 2, 1400, 1500])
async def test_it_is_found_anywhere_on_a_long_path(talk: Talk, through: int):
    recorded, path = await recorded_path(talk, 1501)
    checkpoint = checkpoint_at(path, through)
    await commit(talk, recorded, checkpoint, path)
    assert await current(talk.store, path) == checkpoint


async def test_tenants_do_not_share_checkpoints(talk: Talk):
    """R3.1"""
    recorded, path = await recorded_path(talk, 5)
    await commit(talk, recorded, checkpoint_at(path, 4), path)
    other = Talk(talk.store, "other")
    _, other_path = await recorded_path(other, 5)
    assert await current(talk.store, other_path, "other") is None
    assert await current(talk.store, path, "other") is None
    assert await current(talk.store, path, "nobody") is None
    with pytest.raises(NotFoundError):
        await commit(other, recorded, checkpoint_at(other_path, 4), other_path)


async def test_a_candidate_built_on_another_state_is_dropped_for_the_winner(talk: Talk):
    """R9.2"""
    recorded, path = await recorded_path(talk, 9)
    winner, late = checkpoint_at(path, 4), checkpoint_at(path, 6)
    assert (await commit(talk, recorded, winner, path)).committed
    assert await commit(talk, recorded, late, path) == Commit(committed=False, winner=winner)
    assert (await talk.kinds(recorded)).count("compaction_completed") == 1
    gone = replace(late, previous_checkpoint_id="gone")
    assert await commit(talk, recorded, gone, path) == Commit(committed=False, winner=winner)


async def test_of_two_workers_that_commit_at_once_one_wins(talk: Talk, other: Store):
    recorded, path = await recorded_path(talk, 9)
    candidates = [checkpoint_at(path, 4), checkpoint_at(path, 6)]
    commits = await asyncio.gather(
        *(
            store.commit_checkpoint("tenant", recorded.session_key, candidate, path, from_json)
            for store, candidate in zip((talk.store, other), candidates, strict=True)
        )
    )
    assert sorted(done.committed for done in commits) == [False, True]
    winner = candidates[0] if commits[0].committed else candidates[1]
    assert [done.winner for done in commits if not done.committed] == [winner]
    assert await current(talk.store, path) == await current(other, path) == winner


async def test_what_is_not_recorded_cannot_be_covered(talk: Talk):
    recorded, _ = await recorded_path(talk, 3)
    unknown = path_of("tenant", [b'{"role":"user","content":"new"}'])
    with pytest.raises(NotFoundError, match="not recorded"):
        await commit(talk, recorded, checkpoint_at(unknown, 1), unknown)
    with pytest.raises(NotFoundError, match="not on the path"):
        await commit(talk, recorded, checkpoint_at(unknown, 1), talk.sent[-1][1].path)
    assert "compaction_completed" not in await talk.kinds(recorded)


async def test_a_checkpoint_of_re_spelled_messages_is_kept(talk: Talk):
    """R3.4: digests, not bytes, decide."""
    recorded, _ = await recorded_path(talk, 5)
    spelled = path_of("tenant", [body + b" " for body in talk.sent[-1][1].bodies])
    checkpoint = checkpoint_at(spelled, 4)
    assert (await commit(talk, recorded, checkpoint, spelled)).committed
    assert await current(talk.store, talk.sent[-1][1].path) == checkpoint


async def test_rows_are_rebuilt_from_the_log(talk: Talk):
    """R7.6: the newest valid entry on the path replaces an invalid row; with none, the row is dropped."""
    recorded, path = await recorded_path(talk, 9)
    first = checkpoint_at(path, 2)
    second = checkpoint_at(path, 6, previous=first)
    await commit(talk, recorded, first, path)
    await commit(talk, recorded, second, path)
    texts = await talk.store.completed_checkpoints("tenant", path)
    assert [from_json(text) for text in texts] == [second, first]
    await talk.store.repair_checkpoint("tenant", [second.checkpoint_id, first.checkpoint_id], None)
    assert await current(talk.store, path) is None
    await talk.store.repair_checkpoint("tenant", [second.checkpoint_id], second)
    assert await current(talk.store, path) == second
    await talk.store.repair_checkpoint("tenant", [], second)
    assert list(await talk.store.completed_checkpoints("nobody", path)) == []
    with pytest.raises(NotFoundError):
        await talk.store.repair_checkpoint("nobody", [second.checkpoint_id], None)


def boundary(path: Path, *, checkpoint: str | None = None, route: str = ROUTE, tokens: int = 100) -> Boundary:
    return Boundary(route, path.digests[-1], len(path), checkpoint, tokens, 5, 1000)


async def test_boundary_grows_on_its_path(talk: Talk):
    """R10.5: by path and route, largest first, and never smaller on one branch."""
    first = await talk.ask(*turns(1))
    small = boundary(talk.sent[-1][1].path)
    await talk.answer(first, assistant("a1"), boundary=small)
    assert list(await talk.store.boundaries("tenant", talk.sent[-1][1].path, ROUTE)) == [small]
    second = await talk.ask(*turns(3))
    path = talk.sent[-1][1].path
    large = boundary(path)
    await talk.answer(second, assistant("a3"), boundary=large)
    await talk.answer(second, assistant("late"), boundary=replace(small, input_tokens=7))
    assert list(await talk.store.boundaries("tenant", path, ROUTE)) == [large]
    assert list(await talk.store.boundaries("tenant", path, "another")) == []
    assert list(await talk.store.boundaries("nobody", path, ROUTE)) == []
    assert await talk.kinds(second) == [
        *("message", "request", "response", "context_request_accepted"),
        *("message", "message", "request", "response", "context_request_accepted"),
        *("response", "context_request_accepted"),
    ]


async def test_boundary_of_another_checkpoint_replaces(talk: Talk):
    recorded = await talk.ask(*turns(3))
    path = talk.sent[-1][1].path
    await talk.answer(recorded, assistant("a"), boundary=boundary(path))
    again = await talk.ask(*turns(3), retry=1)
    newer = boundary(path, checkpoint="c1", tokens=50)
    await talk.answer(again, assistant("a"), boundary=newer)
    assert list(await talk.store.boundaries("tenant", path, ROUTE)) == [newer]


async def test_forks_find_the_boundaries_of_what_they_share(talk: Talk):
    first = await talk.ask(*turns(1), session="X")
    small = boundary(talk.sent[-1][1].path)
    await talk.answer(first, assistant("a1"), boundary=small)
    await talk.ask(*turns(3), session="Y")
    assert list(await talk.store.boundaries("tenant", talk.sent[-1][1].path, ROUTE)) == [small]


async def test_route_state_is_kept_and_read_with_the_context(talk: Talk):
    """R5.4, R10.4: learned per route; names of any shape."""
    path = path_of("tenant", [])
    state = RouteState(ROUTE, {"learned": 8000, "big": 2**70, "ratios": [1.1, 0.9]})
    await talk.store.save_route(RouteState(ROUTE, {"learned": 1}))
    await talk.store.save_route(state)
    await talk.store.save_route(RouteState("up/\ud800", {"a": "\ud800"}))
    assert (await talk.store.read_context("tenant", path, ROUTE, from_json)).route == state
    assert (await talk.store.read_context("tenant", path, "up/\ud800", from_json)).route is not None
    assert (await talk.store.read_context("tenant", path, "unknown", from_json)).route is None
    assert [found.route for found in await talk.store.route_states()] == ["up/\\ud800", ROUTE]
