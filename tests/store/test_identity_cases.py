"""Which conversation is this? The cases that public clients show, by their number in `tests/data/identity.md`.

U user, A the answer, T tool result; `session=` is the client's own id. The history is what follows the preamble.
"""

import asyncio

import pytest

from compaction.checkpoint import from_json
from store.errors import NotFoundError
from store.protocol import Store
from store.rows import Recorded
from tests.compaction.paths import checkpoint_at
from tests.store.talk import Talk, assistant, exact, key_of, path_of, result, system, user

U, U2, U3 = user("hi"), user("and then?"), user("why?")
A, A2 = assistant("hello"), assistant("good day")


def place(recorded: Recorded) -> tuple[int, int]:
    return recorded.session_key, recorded.branch


async def test_case_1_one_session_id_of_two_tenants_is_two_sessions(store: Store):
    """Nothing of P's reaches Q, even when Q goes on with P's answer. R3.1"""
    p, q = Talk(store, "P"), Talk(store, "Q")
    of_p = await p.exchange(U, reply=A, session="X")
    of_q = await q.ask(U, session="X")
    await q.answer(of_q, A2)
    later = await q.ask(U, A, U2, session="X")
    assert len({of_p.session_key, of_q.session_key}) == 2
    assert later.session_key == of_q.session_key
    assert [row.session for row in await store.sessions("P")] == ["X"]
    assert (await store.sessions("P"))[0].messages == 1
    with pytest.raises(NotFoundError):
        await store.history("P", path_of("Q", [exact(U)]).nodes[1])
    with pytest.raises(NotFoundError):
        await store.body("P", path_of("Q", [exact(U2)]).at(1).sha256)


async def test_case_2_chats_that_open_alike_each_continue_their_own(talk: Talk):
    """R3.6: of several tips the one whose recorded reply the echo equals."""
    first, second = await talk.ask(U), await talk.ask(U)
    await talk.answer(first, A)
    await talk.answer(second, A2)
    on_second = await talk.ask(U, A2, U2)
    on_first = await talk.ask(U, A, U3)
    assert (first.lineage, second.lineage) == ("new", "twin")
    assert first.session_key != second.session_key
    assert (place(on_first), place(on_second)) == (place(first), place(second))
    assert await talk.notes(second, "forked_from") == [{"session": first.session, "seq": 1}]


async def test_case_3_a_common_beginning_of_a_text_is_no_common_history(talk: Talk):
    block = "workspace " * 30
    first, second = await talk.ask(user(block + "one")), await talk.ask(user(block + "two"))
    assert first.session_key != second.session_key
    assert (first.lineage, second.lineage) == ("new", "new")


async def test_case_4_a_side_request_is_a_branch_of_its_own(talk: Talk):
    """A title call while the main request streams leaves the main branch alone."""
    main = await talk.ask(U, session="X", preamble=[system("S")])
    title = await talk.ask(user("make a title"), session="X", preamble=[system("titles")])
    await talk.answer(title, assistant("Greeting"))
    await talk.answer(main, A)
    later = await talk.ask(U, A, U2, session="X", preamble=[system("S")])
    assert title.session_key == main.session_key
    assert title.branch != main.branch
    assert (later.lineage, place(later)) == ("continued", place(main))
    assert len(await talk.notes(main, "preamble")) == 2


async def test_case_6_sub_agents_under_one_id_are_branches(talk: Talk):
    """Two of them begin alike; they separate when their answers differ."""
    root = await talk.ask(user("root"), session="S")
    one, two = await talk.ask(user("search"), session="S"), await talk.ask(user("search"), session="S")
    three = await talk.ask(user("write"), session="S")
    for recorded, text in ((one, "found one"), (two, "found two"), (root, "ok"), (three, "done")):
        await talk.answer(recorded, assistant(text))
    again_one = await talk.ask(user("search"), assistant("found one"), user("next"), session="S")
    again_two = await talk.ask(user("search"), assistant("found two"), user("next"), session="S")
    again_root = await talk.ask(user("root"), assistant("ok"), user("next"), session="S")
    assert len({recorded.branch for recorded in (root, one, two, three)}) == 4
    assert len({recorded.session_key for recorded in (root, one, two, three)}) == 1
    assert [again_one.branch, again_two.branch, again_root.branch] == [one.branch, two.branch, root.branch]


@pytest.mark.parametrize("answers", [[f"answer {n}" for n in range(8)], ["the same"] * 8], ids=["differ", "alike"])
async def test_case_8_equal_requests_are_conversations_of_their_own(talk: Talk, answers: list[str]):
    """R3.8. Each goes on from its own answer, also where a deterministic model answers all alike."""
    asked = await asyncio.gather(*(talk.ask(U) for _ in answers))
    for recorded, text in zip(asked, answers, strict=True):
        await talk.answer(recorded, assistant(text))
    later = [await talk.ask(U, assistant(text), user(f"go {n}")) for n, text in enumerate(answers)]
    assert len({recorded.session_key for recorded in asked}) == 8
    assert sorted(map(place, later)) == sorted(map(place, asked))
    assert len(await talk.store.sessions("tenant")) == 8
    if len(set(answers)) == 8:
        assert list(map(place, later)) == list(map(place, asked))


async def test_case_8_eight_alike_that_also_go_on_alike(talk: Talk):
    """Scripted users say the same twice; still no conversation merges or is opened anew."""
    for _ in range(8):
        await talk.exchange(U, reply=A)
    later = [await talk.ask(U, A, U2) for _ in range(8)]
    assert len({recorded.session_key for recorded in later}) == 8
    assert len(await talk.store.sessions("tenant")) == 8


@pytest.mark.parametrize("first_ended", [True, False], ids=["ended", "still in flight"])
async def test_case_9_a_retry_adds_no_turn(talk: Talk, first_ended: bool):
    """R3.8: the first answer stays in the log, off the path."""
    first = await talk.ask(U, U2)
    if first_ended:
        await talk.answer(first, assistant("hel"), cut=True)
    second = await talk.ask(U, U2, retry=1)
    if not first_ended:
        await talk.answer(first, assistant("late"))
    await talk.answer(second, A2)
    later = await talk.ask(U, U2, A2, U3)
    assert (second.lineage, second.added, place(second)) == ("retried", 0, place(first))
    assert (later.lineage, later.added, place(later)) == ("continued", 2, place(first))
    assert (await talk.kinds(later)).count("message") == 4
    assert (await talk.kinds(later)).count("response") == 2
    await talk.assert_rebuilt()


async def test_case_9_an_undelivered_request_sent_again_is_a_retry_without_a_count(talk: Talk):
    """R3.8: ... or whose predecessor ended undelivered."""
    first = await talk.ask(U)
    await talk.answer(first, status=429, error="rate limited")
    second = await talk.ask(U)
    assert (second.lineage, place(second)) == ("retried", place(first))


async def test_case_10_a_cut_answer_is_continued_from(talk: Talk):
    """R3.7: truncated to what was delivered, or to what the client kept of it."""
    first = await talk.ask(U)
    await talk.answer(first, assistant("one two three"), cut=True)
    later = await talk.ask(U, assistant("one two"), U2)
    assert (later.lineage, place(later)) == ("continued", place(first))


async def test_case_10_a_cut_answer_of_several_conversations_is_told_apart_by_its_text(talk: Talk):
    first, second = await talk.ask(U), await talk.ask(U)
    await talk.answer(first, assistant("one two three"), cut=True)
    await talk.answer(second, assistant("four five six"), cut=True)
    later = await talk.ask(U, assistant("one two"), U2)
    assert place(later) == place(first)


async def test_case_10_a_cut_answer_that_is_dropped_makes_a_branch(talk: Talk):
    first = await talk.ask(U)
    await talk.answer(first, assistant("one two"), cut=True)
    later = await talk.ask(U, U2)
    assert (later.lineage, later.session_key) == ("rewound", first.session_key)
    assert later.branch != first.branch
    assert await talk.notes(later, "history_rewound") == [{"to_seq": 1, "from_branch": first.branch}]


async def test_case_11_an_echo_is_recognised_however_it_is_spelled(talk: Talk):
    """R3.2, R3.7: blank text, re-spaced arguments, keys in another order, renamed ids, `index` and nulls."""
    reply = assistant("I look", ("call_a", '{"path":"x","n":1}'), ("call_b", "{}"))
    first = await talk.exchange(U, reply=reply)
    rival = await talk.ask(U)
    await talk.answer(rival, A)
    echo = assistant("", ("id_1", '{ "n": 1, "path": "x" }'), ("id_2", ""), refusal=None, audio=None)
    for index, call in enumerate(echo["tool_calls"]):
        call["index"] = index
    later = await talk.ask(U, echo, result("id_1"), result("id_2"))
    assert (later.lineage, place(later)) == ("continued", place(first))


async def test_case_16_an_edit_is_a_branch_and_the_old_one_can_be_returned_to(talk: Talk):
    first = await talk.exchange(U, reply=A, session="X")
    second = await talk.exchange(U, A, U2, reply=A2, session="X")
    edit = await talk.exchange(user("hi!"), reply=A, session="X")
    back = await talk.ask(U, A, U2, A2, U3, session="X")
    assert place(second) == place(first)
    assert edit.session_key == first.session_key
    assert edit.branch != first.branch
    assert (back.lineage, place(back)) == ("continued", place(first))
    await talk.assert_rebuilt()


async def test_case_16_an_edit_in_the_middle_is_recorded_as_a_rewind(talk: Talk):
    first = await talk.exchange(U, reply=A, session="X")
    await talk.exchange(U, A, U2, reply=A2, session="X")
    edit = await talk.ask(U, A, user("edited"), session="X")
    assert (edit.lineage, edit.session_key, edit.added) == ("rewound", first.session_key, 1)
    assert await talk.notes(edit, "history_rewound") == [{"to_seq": 2, "from_branch": first.branch}]


async def test_case_16_an_edit_without_an_id_is_a_session_that_says_where_it_came_from(talk: Talk):
    first = await talk.exchange(U, reply=A)
    await talk.exchange(U, A, U2, reply=A2)
    edit = await talk.ask(U, A, user("edited"))
    assert (edit.lineage, edit.added) == ("forked", 1)
    assert await talk.notes(edit, "forked_from") == [{"session": first.session, "seq": 2}]
    await talk.assert_rebuilt()


async def test_case_19_a_replaced_tool_result_is_another_path(talk: Talk):
    """The whole result stays readable; a checkpoint that covered it is not applied to the changed list. R3.4"""
    call = assistant(None, ("c1", "{}"))
    whole = [U, call, result("c1", "whole " * 50), assistant("seen"), U2]
    first = await talk.exchange(*whole, reply=A2, session="X")
    path = talk.sent[-1][1].path
    checkpoint = checkpoint_at(path, 3)
    await talk.store.commit_checkpoint("tenant", first.session_key, checkpoint, path, from_json)
    changed = [U, call, result("c1", "[removed]"), assistant("seen"), U2, A2, U3]
    await talk.ask(*changed, session="X")
    found = await talk.store.read_context("tenant", talk.sent[-1][1].path, "r", from_json)
    assert (found.checkpoint, list(found.invalid)) == (None, [])
    unchanged = await talk.store.read_context("tenant", path, "r", from_json)
    assert unchanged.checkpoint == checkpoint
    await talk.assert_rebuilt()


async def test_case_21_equal_call_ids_do_not_join_conversations(talk: Talk):
    first = await talk.exchange(user("one"), reply=assistant(None, ("call_0", "{}")))
    second = await talk.exchange(user("two"), reply=assistant(None, ("call_0", "{}")))
    later = await talk.ask(user("two"), assistant(None, ("call_0", "{}")), result("call_0"))
    assert place(later) == place(second)
    assert later.session_key != first.session_key


async def test_case_22_equal_members_of_the_frame_do_not_join_conversations(talk: Talk):
    """`user` and `prompt_cache_key` stand in the frame, which plays no part."""
    frame = b'{"user":"app","prompt_cache_key":"k","messages":[]}'
    first = await talk.ask(user("one"), frame=frame)
    second = await talk.ask(user("two"), frame=frame)
    assert first.session_key != second.session_key


async def test_case_23_any_choice_may_be_echoed(talk: Talk):
    first = await talk.ask(U)
    await talk.answer(first, A, A2)
    rival = await talk.ask(U)
    await talk.answer(rival, assistant("something else"))
    later = await talk.ask(U, A2, U2)
    assert place(later) == place(first)


async def test_case_24_a_trailing_assistant_message_is_a_prefill(talk: Talk):
    """R3.8: no echo, so the branch that was answered is not continued by it."""
    first = await talk.exchange(U, reply=A)
    prefilled = await talk.ask(U, assistant("hello"))
    assert (prefilled.lineage, prefilled.session_key) == ("rewound", first.session_key)
    assert prefilled.branch != first.branch
    await talk.assert_rebuilt()


async def test_case_25_a_preamble_that_changes_keeps_the_lineage(talk: Talk):
    """R3.3: changes of the preamble are recorded, equal ones are not."""
    first = await talk.exchange(U, reply=A, preamble=[system("today is Monday")])
    second = await talk.exchange(U, A, U2, reply=A2, preamble=[{"role": "developer", "content": "today is Tuesday"}])
    third = await talk.ask(U, A, U2, A2, U3, preamble=[{"role": "developer", "content": "today is Tuesday"}])
    assert place(first) == place(second) == place(third)
    assert (await talk.kinds(third)).count("preamble") == 2
    await talk.assert_rebuilt()


async def test_case_26_an_imported_conversation_is_recorded_whole(talk: Talk):
    messages = [user(f"q{n}") if n % 2 == 0 else assistant(f"a{n}") for n in range(40)]
    recorded = await talk.ask(*messages)
    assert (recorded.lineage, recorded.added) == ("new", 40)
    assert (await talk.kinds(recorded)).count("message") == 40
    await talk.assert_rebuilt()


async def test_case_27_wandering_cache_marks_keep_the_lineage(talk: Talk):
    """Other bytes, equal meaning: the branch goes on, and every request is still rebuilt as it was sent. R3.2"""
    marked = user("hi", cache_control={"type": "ephemeral"})
    first = await talk.exchange(marked, reply=assistant("hello", reasoning_content="hm"))
    second = await talk.exchange(U, assistant("hello"), {**U2, "cache_control": {"type": "ephemeral"}}, reply=A2)
    third = await talk.ask(marked, assistant("hello", reasoning_content="hm"), U2, A2, U3)
    assert place(first) == place(second) == place(third)
    assert (second.added, third.added) == (2, 2)
    assert len(await talk.store.branches(first.session_key)) == 1
    await talk.assert_rebuilt()


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
        ),
        ({"type": "file", "file": {"file_id": "f1"}}, {"type": "file", "file": {"file_id": "f2"}}),
        ({"type": "hologram", "hologram": 1}, {"type": "hologram", "hologram": 2}),
    ],
    ids=["bytes", "file id", "unknown type"],
)
async def test_case_28_other_files_are_other_conversations(
    talk: Talk, part: dict[str, object], other: dict[str, object]
):
    text = {"type": "text", "text": "summarise"}
    first = await talk.ask({"role": "user", "content": [text, part]})
    second = await talk.ask({"role": "user", "content": [text, other]})
    assert first.session_key != second.session_key


async def test_case_29_a_64_bit_id_tells_arguments_apart(talk: Talk):
    one, two = (assistant(None, ("c", f'{{"id": {number}}}')) for number in (9007199254740993, 9007199254740992))
    assert key_of(one).canon != key_of(two).canon
    first, second = await talk.ask(U), await talk.ask(U)
    await talk.answer(first, one)
    await talk.answer(second, two)
    later = await talk.ask(U, one, result("c"))
    assert place(later) == place(first)


async def test_case_31_forks_keep_every_message_of_a_deleted_session(talk: Talk):
    """R3.6: only what no other session's request uses goes."""
    first = await talk.exchange(U, reply=A)
    await talk.exchange(U, A, U2, reply=A2)
    fork = await talk.ask(U, A, user("edited"))
    await talk.store.delete_session(first.session_key)
    assert [row.key for row in await talk.store.sessions("tenant")] == [fork.session_key]
    talk.sent = [(recorded, record) for recorded, record in talk.sent if recorded.session_key == fork.session_key]
    assert talk.sent
    await talk.assert_rebuilt()
    with pytest.raises(NotFoundError):
        await talk.store.body("tenant", path_of("tenant", [exact(U2)]).at(1).sha256)
