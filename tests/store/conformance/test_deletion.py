"""Deleting removes a whole session, and nothing that another one's request uses (R3.6, R4.3)."""

import pytest

from compaction.checkpoint import from_json
from store.errors import NotFoundError
from tests.compaction.paths import checkpoint_at
from tests.store.talk import FRAME, ROUTE, Talk, assistant, exact, sha, system, user

U, A, U2 = user("hi"), assistant("hello"), user("and then?")


async def test_deleted_session_is_gone(talk: Talk):
    recorded = await talk.exchange(U, reply=A, preamble=[system("S")])
    await talk.store.delete_session(recorded.session_key)
    assert list(await talk.store.sessions(None)) == []
    assert await talk.store.find_session("tenant", recorded.session) is None
    assert list(await talk.store.log(recorded.session_key)) == []
    assert list(await talk.store.branches(recorded.session_key)) == []
    with pytest.raises(NotFoundError):
        await talk.store.request(recorded.session_key, recorded.request_n)
    with pytest.raises(NotFoundError):
        await talk.store.body("tenant", sha(FRAME))


async def test_branches_that_share_their_beginning_go_together(talk: Talk):
    """One ends inside the other."""
    first = await talk.exchange(U, A, U2, reply=A, session="X")
    inside = await talk.ask(U, session="X")
    beside = await talk.ask(U, A, user("edited"), session="X")
    await talk.store.delete_session(first.session_key)
    assert len({first.branch, inside.branch, beside.branch}) == 3
    for message in (U, A, U2):
        with pytest.raises(NotFoundError):
            await talk.store.body("tenant", sha(exact(message)))


async def test_what_is_sent_again_after_a_delete_is_new(talk: Talk):
    first = await talk.exchange(U, reply=A, session="X")
    await talk.store.delete_session(first.session_key)
    again = await talk.ask(U, A, U2, session="X")
    assert (again.lineage, again.added) == ("new", 3)
    assert again.session_key != first.session_key
    talk.sent = talk.sent[1:]
    await talk.assert_rebuilt()


async def test_answer_that_comes_after_the_delete_is_refused(talk: Talk):
    """It must not land in a session that got the number since."""
    recorded = await talk.ask(U)
    await talk.store.delete_session(recorded.session_key)
    await talk.ask(U2)
    with pytest.raises(NotFoundError):
        await talk.answer(recorded, A)


async def test_unknown_session_cannot_be_deleted(talk: Talk):
    with pytest.raises(NotFoundError):
        await talk.store.delete_session(7)


async def test_bytes_that_a_branch_left_behind_survive_the_delete_of_who_shared_them(talk: Talk):
    """The client re-spelled its first message; the first request must still be rebuilt."""
    marked = user("hi", cache_control={"type": "ephemeral"})
    await talk.exchange(marked, reply=A, session="X")
    sharer = await talk.exchange(marked, reply=A, session="Y")
    moved = await talk.ask(U, A, U2, session="X")
    await talk.store.delete_session(sharer.session_key)
    del talk.sent[1]
    assert moved.lineage == "continued"
    await talk.assert_rebuilt()


async def test_checkpoint_lives_as_long_as_what_it_was_made_from(talk: Talk):
    """R3.4: a fork keeps the checkpoints of the messages that it shares."""
    history = [U, A, U2]
    first = await talk.exchange(*history, reply=A, session="X")
    path = talk.sent[-1][1].path
    checkpoint = checkpoint_at(path, 2)
    await talk.store.commit_checkpoint("tenant", first.session_key, checkpoint, path, from_json)
    fork = await talk.ask(*history, session="Y")
    await talk.store.delete_session(first.session_key)
    assert (await talk.store.read_context("tenant", path, ROUTE, from_json)).checkpoint == checkpoint
    await talk.store.delete_session(fork.session_key)
    assert (await talk.store.read_context("tenant", path, ROUTE, from_json)).checkpoint is None
