"""What every store does with requests and answers (SPEC 4)."""

import asyncio
from dataclasses import replace

import pytest

from store.errors import NotFoundError
from store.protocol import Store
from store.rows import Entry, Recorded
from tests.store.talk import FRAME, ROUTE, Talk, assistant, exact, path_of, result, sha, system, user

U, A, U2, A2 = user("a"), assistant("b"), user("c"), assistant("d")


async def test_first_request_starts_a_session(talk: Talk):
    """R3.6, R4.1: nothing is known, so there is a new session, whose log says what came."""
    recorded = await talk.ask(U, preamble=[system("be brief")])
    assert (recorded.lineage, recorded.added) == ("new", 1)
    assert await talk.kinds(recorded) == ["preamble", "message", "request"]
    assert recorded.request_n == 3
    await talk.assert_rebuilt()


async def test_conversation_goes_on_in_its_branch(talk: Talk):
    """R3.6, R3.7"""
    first = await talk.exchange(U, reply=A)
    second = await talk.exchange(U, A, U2, reply=A2)
    assert (second.lineage, second.added) == ("continued", 2)
    assert (second.session_key, second.branch) == (first.session_key, first.branch)
    assert await talk.kinds(second) == ["message", "request", "response", "message", "message", "request", "response"]
    await talk.assert_rebuilt()


async def test_log_says_what_was_asked_and_answered(talk: Talk):
    """R4.1"""
    recorded = await talk.ask(U, preamble=[system("S")], sent={"members": ["stream_options"]})
    await talk.answer(recorded, A, usage={"prompt_tokens": 9, "big": 2**70})
    preamble, message, request, response = await talk.store.log(recorded.session_key)
    path = talk.sent[0][1].path
    assert preamble.data == {"messages": [sha(exact(system("S"))).hex()]}
    assert message.data == {"role": "user", "tokens": path.at(1).tokens}
    assert (message.node, message.seq) == (request.node, request.seq) == (path.nodes[1], 1)
    assert request.data == {
        "request_id": talk.sent[0][1].request_id,
        "route": ROUTE,
        "head_seq": 1,
        "preamble": [sha(exact(system("S"))).hex()],
        "frame": sha(FRAME).hex(),
        "retry": 0,
        "lineage": "new",
        "branch": recorded.branch,
        "sent": {"members": ["stream_options"]},
    }
    assert response.data == {
        "request_n": request.n,
        "status": 200,
        "finish_reason": "stop",
        "choices": [sha(exact(A)).hex()],
        "usage": {"prompt_tokens": 9, "big": 2**70},
        "delivered_bytes": len(exact(A)),
        "interrupted": False,
        "error": None,
    }
    assert await talk.store.body("tenant", sha(exact(A))) == exact(A)


async def test_log_is_read_in_pages(talk: Talk):
    recorded = await talk.exchange(U, A, U2, reply=A2)
    pages = [await talk.store.log(recorded.session_key, after, limit=2) for after in (0, 2, 4, 6)]
    assert [[entry.n for entry in page] for page in pages] == [[1, 2], [3, 4], [5], []]


async def test_request_is_rebuilt_with_how_it_was_sent(talk: Talk):
    """What was decided after the request was recorded stands in the response."""
    first = await talk.ask(U, sent={"checkpoint": "c1"})
    await talk.answer(first, A)
    second = await talk.ask(U, A, U2)
    await talk.answer(second, A2, sent={"checkpoint": "c2"})
    assert (await talk.store.request(first.session_key, first.request_n)).sent == {"checkpoint": "c1"}
    assert (await talk.store.request(second.session_key, second.request_n)).sent == {"checkpoint": "c2"}
    third = await talk.ask(U, A, U2, A2, U, sent={"checkpoint": "c2"})
    await talk.answer(third, A, sent={})
    assert (await talk.store.request(third.session_key, third.request_n)).sent == {}
    with pytest.raises(NotFoundError):
        await talk.store.request(first.session_key, first.request_n - 1)
    with pytest.raises(NotFoundError):
        await talk.store.request(first.session_key, 99)


async def test_a_tool_loop_stays_in_one_branch(talk: Talk):
    call = assistant(None, ("c1", "{}"), ("c2", "{}"))
    first = await talk.exchange(U, reply=call)
    second = await talk.ask(U, call, result("c1"), result("c2"))
    assert (second.branch, second.added) == (first.branch, 3)


async def test_a_trailing_tool_call_alone_is_no_echo(talk: Talk):
    """R3.8: what ends a list is a prefill."""
    first = await talk.ask(U)
    await talk.answer(first, status=500, error="boom")
    second = await talk.ask(U, A)
    assert (second.lineage, second.branch) == ("continued", first.branch)


async def test_consecutive_user_messages_continue_an_unanswered_branch(talk: Talk):
    first = await talk.ask(U)
    await talk.answer(first, status=500, error="boom")
    second = await talk.ask(U, U2)
    assert (second.lineage, second.branch) == ("continued", first.branch)


async def test_while_a_request_is_in_flight_its_continuation_is_another_conversation(talk: Talk):
    """R3.8: nobody can go on from an answer that was not given."""
    first = await talk.ask(U)
    second = await talk.ask(U, U2)
    third = await talk.ask(U, A, U2)
    assert (second.lineage, third.lineage) == ("twin", "twin")
    assert len({first.session_key, second.session_key, third.session_key}) == 3


async def test_an_unknown_echo_goes_to_the_newest_free_branch(talk: Talk):
    """R3.6"""
    asked = [await talk.ask(U) for _ in range(3)]
    await talk.answer(asked[0], assistant("one"))
    await talk.answer(asked[1], assistant("two"))
    later = await talk.ask(U, assistant("edited"), U2)
    assert (later.lineage, later.branch) == ("continued", asked[1].branch)


async def test_regenerating_under_an_id_is_a_branch_in_that_session(talk: Talk):
    first = await talk.exchange(U, reply=A, session="X")
    again = await talk.exchange(U, reply=A2, session="X")
    chosen = await talk.ask(U, A, U2, session="X")
    assert (again.lineage, again.session_key) == ("twin", first.session_key)
    assert again.branch != first.branch
    assert chosen.branch == first.branch


async def test_named_session_gets_the_branch_of_what_another_began(talk: Talk):
    """R3.6: nothing is copied; where it came from is recorded."""
    first = await talk.exchange(U, reply=A, session="X")
    moved = await talk.ask(U, A, U2, session="Y")
    assert (moved.lineage, moved.session, moved.added) == ("forked", "Y", 2)
    assert await talk.notes(moved, "forked_from") == [{"session": "X", "seq": 1}]
    assert (await talk.kinds(moved)).count("message") == 2
    back = await talk.ask(U, A, user("else"), session="X")
    assert (back.lineage, back.branch) == ("continued", first.branch)
    await talk.assert_rebuilt()


async def test_named_session_that_never_saw_the_messages_records_a_fork(talk: Talk):
    """What is known lies inside another session's branch: no rewind of its own."""
    await talk.exchange(U, reply=A, session="X")
    await talk.exchange(U, A, U2, reply=A2, session="X")
    await talk.exchange(user("other"), A, user("more"), reply=A, session="Y")
    moved = await talk.ask(U, A, user("edited"), session="Y")
    assert moved.lineage == "forked"
    assert await talk.notes(moved, "forked_from") == [{"session": "X", "seq": 2}]


async def test_fork_of_a_deleted_session_says_that_its_origin_is_gone(talk: Talk):
    first = await talk.exchange(U, reply=A, session="X")
    await talk.exchange(U, A, U2, reply=A2, session="X")
    await talk.exchange(U, A, U2, A2, user("e"), reply=A, session="Y")
    await talk.store.delete_session(first.session_key)
    fork = await talk.ask(U, A, user("edited"))
    assert await talk.notes(fork, "forked_from") == [{"session": None, "seq": 2}]


async def test_answer_that_comes_late_does_not_touch_where_the_branch_has_gone(talk: Talk):
    first = await talk.exchange(U, reply=A)
    second = await talk.ask(U, A, U2)
    await talk.answer(first, assistant("late"))
    await talk.answer(second, A2)
    later = await talk.ask(U, A, U2, assistant("late"), user("e"))
    assert (later.lineage, later.branch) == ("continued", first.branch)
    rival = await talk.ask(U, A, U2)
    assert rival.lineage == "forked"


async def test_cut_answer_is_compared_with_an_echo_that_cannot_be_read(talk: Talk):
    first = await talk.ask(U)
    await talk.answer(first, assistant("one two"), cut=True)
    record = talk.record(U, assistant("one"), U2)
    unreadable = replace(record, bodies=[record.bodies[0], b"\xff", record.bodies[2]])
    recorded = await talk.store.record_request(unreadable)
    assert (recorded.lineage, recorded.branch) == ("continued", first.branch)


async def test_recording_again_writes_no_message_twice(talk: Talk):
    """R4.2: idempotent by digest."""
    first = await talk.exchange(U, A, U2, reply=A2)
    for retry in (1, 2):
        again = await talk.ask(U, A, U2, retry=retry)
        assert (again.lineage, again.added, again.branch) == ("retried", 0, first.branch)
    assert (await talk.kinds(first)).count("message") == 3
    assert (await talk.kinds(first)).count("request") == 3
    await talk.assert_rebuilt()


async def test_a_request_without_history_is_recorded(talk: Talk):
    """A system message alone: providers answer it."""
    first = await talk.exchange(preamble=[system("S")], reply=A)
    second = await talk.ask(preamble=[system("S")], session="X")
    assert (first.lineage, first.added, second.lineage) == ("new", 0, "new")
    assert [(row.head, row.head_seq) for row in await talk.store.branches(first.session_key)] == [(b"", 0)]
    assert list(await talk.store.history("tenant", b"")) == []
    await talk.assert_rebuilt()


async def test_long_bodies_come_back_as_they_were(talk: Talk):
    random = "".join(sha(str(n).encode()).hex() for n in range(200))
    await talk.exchange(user("x" * 100_000), assistant(random), user("\ud800"), reply=assistant("y" * 5000))
    await talk.assert_rebuilt()


async def test_texts_of_any_shape_are_taken(talk: Talk):
    """R2.12: lone surrogates and NULs reach the names of sessions, routes and roles."""
    recorded = await talk.ask({"role": "\ud800", "content": "hi"}, session="s\ud800\x00")
    again = await talk.ask({"role": "\ud800", "content": "hi"}, U, session="s\ud800\x00")
    assert again.session_key == recorded.session_key
    assert await talk.store.find_session("tenant", "s\ud800\x00") is not None
    usage = {"tokens": float("nan"), "note": "\ud800"}
    await talk.answer(recorded, status=400, error="bad \ud800", usage=usage, sent={"a": "\ud800"})
    assert (await talk.store.request(recorded.session_key, recorded.request_n)).sent == {"a": "\ud800"}
    await talk.assert_rebuilt()


async def test_sessions_are_listed_newest_request_first(talk: Talk):
    x = await talk.exchange(U, reply=A, session="X")
    await talk.exchange(user("y"), reply=A, session="Y")
    other = Talk(talk.store, "other")
    other.now = talk.now + 100
    await other.ask(U, session="X")
    await talk.ask(U, A, U2, session="X")
    rows = await talk.store.sessions("tenant")
    assert [row.session for row in rows] == ["X", "Y"]
    assert (rows[0].key, rows[0].tenant, rows[0].messages, rows[0].branches, rows[0].entries) == (
        *(x.session_key, "tenant"),
        *(3, 1, 6),
    )
    assert rows[0].created_at < rows[0].last_request_at
    assert [row.session for row in await talk.store.sessions("tenant", before=rows[0].last_request_at)] == ["Y"]
    assert [row.tenant for row in await talk.store.sessions(None, limit=2)] == ["other", "tenant"]
    assert await talk.store.find_session("tenant", "X") == rows[0]
    found = await talk.store.find_session(None, "X")
    assert found is not None
    assert found.tenant == "other"
    assert await talk.store.find_session("nobody", "X") is None


async def test_branches_are_listed_newest_first(talk: Talk):
    first = await talk.exchange(U, reply=A, session="X")
    edit = await talk.exchange(user("edit"), reply=A, session="X")
    rows = await talk.store.branches(first.session_key)
    assert [row.branch for row in rows] == [edit.branch, first.branch]
    assert rows[1].head == talk.sent[0][1].path.nodes[1]
    assert list(await talk.store.history("tenant", rows[1].head)) == [exact(U)]


async def test_entries_are_appended_with_their_bodies(talk: Talk):
    """R4.1: what the gateway decides is logged in the same numbering."""
    recorded = await talk.ask(U)
    node = talk.sent[0][1].path.nodes[1]
    entries = [
        Entry("hidden_step", {"call": sha(b"call").hex(), "text": "\ud800"}, node, (b"call", b"result")),
        Entry("compaction_failed", {"reason": "no gain"}),
    ]
    assert list(await talk.store.append("tenant", recorded.session_key, entries)) == [3, 4]
    hidden, failed = await talk.store.log(recorded.session_key, after=2)
    assert (hidden.kind, hidden.data, hidden.node, hidden.seq) == ("hidden_step", entries[0].data, node, 1)
    assert (failed.data, failed.node, failed.seq) == ({"reason": "no gain"}, None, None)
    assert await talk.store.body("tenant", sha(b"result")) == b"result"


async def test_entries_go_only_into_sessions_of_the_tenant(talk: Talk):
    """R3.1"""
    recorded = await talk.ask(U)
    await Talk(talk.store, "other").ask(U)
    for tenant in ("other", "nobody"):
        with pytest.raises(NotFoundError):
            await talk.store.append(tenant, recorded.session_key, [Entry("note", {})])
    with pytest.raises(NotFoundError):
        await talk.store.append("tenant", recorded.session_key, [Entry("note", {}, node=b"unknown")])
    assert await talk.kinds(recorded) == ["message", "request"]
    foreign = Recorded(recorded.session_key, "x", 99, 1, 0, "new")
    with pytest.raises(NotFoundError):
        await talk.answer(foreign, A)


async def test_two_workers_write_one_history(talk: Talk, other: Store):
    """R16.1: an answer stored by one is found by the other; equal requests at once stay apart."""
    first = await talk.exchange(U, reply=A)
    elsewhere = Talk(other)
    elsewhere.now = talk.now + 1000
    second = await elsewhere.exchange(U, A, U2, reply=A2)
    assert second.branch == first.branch
    both = await asyncio.gather(*(worker.ask(user("at once")) for worker in (talk, elsewhere) for _ in range(10)))
    assert len({recorded.session_key for recorded in both}) == 20
    await talk.assert_rebuilt()
    elsewhere.store = talk.store
    await elsewhere.assert_rebuilt()


async def test_of_very_many_equal_beginnings_each_finds_its_own(talk: Talk):
    """A hundred runs of one prompt: more than are looked at one by one."""
    asked = [await talk.ask(U) for _ in range(100)]
    for n, recorded in enumerate(asked):
        await talk.answer(recorded, assistant(f"answer {n}"))
    for n in (0, 50, 99):
        later = await talk.ask(U, assistant(f"answer {n}"), U2)
        assert later.branch == asked[n].branch


async def test_unknown_names_are_errors_not_empty_answers(talk: Talk):
    await talk.ask(U)
    with pytest.raises(NotFoundError):
        await talk.store.history("tenant", path_of("tenant", [exact(U2)]).nodes[1])
    with pytest.raises(NotFoundError):
        await talk.store.body("tenant", sha(b"unknown"))
