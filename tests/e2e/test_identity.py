"""Which conversation is this? The cases of tests/data/identity.md, each through the gateway on real sockets.

Window 3,072 tokens: about ten turns of `Caller.talk` pass high water.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.simulator import SimulatorSettings
from tests.e2e.harness import MODEL, Stack, running
from tests.e2e.identity_client import Reply, World, assistant, changed, result, system, user, words, world_of

WINDOW = 3072
S = system("You answer.")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    simulator = SimulatorSettings(window=WINDOW, models=(MODEL,))
    with running(tmp_path_factory.mktemp("identity"), simulator, context_window=WINDOW) as running_stack:
        yield running_stack


@pytest.fixture
async def world(stack: Stack) -> AsyncIterator[World]:
    async with world_of(stack) as made:
        yield made


async def test_01_two_tenants_with_one_session_id(world):
    """R3.1: the same id and the same words are two sessions; nothing of P's reaches Q, its checkpoints neither."""
    p, q = world.caller("key-01p"), world.caller("key-01q")
    first = await p.ask(S, user("hi"), session="X", seed=1)
    second = await q.ask(S, user("hi"), session="X", seed=2)
    mixed = await q.ask(S, user("hi"), first.message, user("go on"), session="X")
    p_session, q_session = [(await world.recorded(reply)).session for reply in (first, second)]
    assert p_session.key != q_session.key
    assert p_session.tenant != q_session.tenant
    assert (await world.recorded(mixed)).session.key == q_session.key
    assert q.upstream(mixed) == [S, user("hi"), first.message, user("go on")]

    told, projected = await p.talk([S], turns=14, session="Y")
    copied = await q.ask(*told, user("on"), session="Y")
    assert projected.checkpoint
    assert copied.checkpoint != projected.checkpoint
    own = await world.entries((await world.recorded(copied)).session, "compaction_completed")
    assert copied.checkpoint is None or copied.checkpoint in {entry.data["checkpoint_id"] for entry in own}


async def test_02_two_chats_that_open_alike_at_once(world):
    """R3.6, R3.7: each goes on from its own answer, on its own branch."""
    caller = world.caller("key-02")
    opening = [S, user("The same question. [[delay:0.3]]")]
    one, two = await asyncio.gather(caller.ask(*opening, seed=1), caller.ask(*opening, seed=2))
    assert one.message != two.message
    assert one.session != two.session
    after_two = await caller.ask(*opening, two.message, user("to the second"))
    after_one = await caller.ask(*opening, one.message, user("to the first"))
    assert (after_one.session, after_two.session) == (one.session, two.session)
    for before, after in ((one, after_one), (two, after_two)):
        assert await branch(world, before) == await branch(world, after)
        assert (await world.recorded(after)).lineage == "continued"


async def test_03_first_messages_that_begin_alike(world):
    """R3.2: a common beginning of a message is nothing in common."""
    caller = world.caller("key-03")
    workspace = words("workspace", 60)
    one, two = [await caller.ask(S, user(f"{workspace} {task}")) for task in ("Fix it.", "Ship it.")]
    assert one.session != two.session
    for reply in (one, two):
        recorded = await world.recorded(reply)
        assert recorded.lineage == "new"
        assert len(await world.history(recorded)) == 1
        assert not await world.entries(recorded.session, "forked_from", "history_rewound")


async def test_04_a_title_is_made_while_the_answer_streams(world):
    """R3.4: the side request is a branch of its own, and the main branch goes on untouched."""
    caller = world.caller("key-04")
    opening = [S, user("A long story. [[words:60]]")]
    main = asyncio.create_task(caller.ask(*opening, session="X4", stream=True, fault="slow:20"))
    await asyncio.sleep(0.2)
    title = await caller.ask(system("You make titles."), user("make a title"), session="X4")
    assert not main.done()
    first = await main
    then = await caller.ask(*opening, first.message, user("And then?"), session="X4")
    assert {reply.session for reply in (first, title, then)} == {"X4"}
    assert await branch(world, first) == await branch(world, then) != await branch(world, title)
    assert (await world.recorded(then)).lineage == "continued"


async def test_06_a_root_and_three_agents_under_one_id(world):
    """R3.6: four branches; the two that open alike part when their answers differ."""
    caller = world.caller("key-06")
    openings = [[S, user("root")], *([system("agent"), user(f"{task} [[delay:0.2]]")] for task in ("a", "a", "c"))]
    firsts = await asyncio.gather(*(caller.ask(*o, session="X6", seed=seed) for seed, o in enumerate(openings)))
    assert firsts[1].message != firsts[2].message
    talks = [[*opening, first.message] for opening, first in zip(openings, firsts, strict=True)]
    latest = list(firsts)
    for turn in range(3):
        for at in (2, 0, 3, 1):
            talks[at].append(user(f"go on {turn}"))
            latest[at] = await caller.ask(*talks[at], session="X6")
            talks[at].append(latest[at].message)
            assert await branch(world, latest[at]) == await branch(world, firsts[at])
    session = (await world.recorded(firsts[0])).session
    assert len(await world.store.branches(session.key)) == 4
    assert {reply.session for reply in latest} == {"X6"}


@pytest.mark.parametrize("answers", ["differ", "alike"])
async def test_08_eight_identical_bodies(world, answers):
    """R3.8: in flight at once with retry count 0 they are eight conversations, and each goes on from its own answer."""
    caller = world.caller(f"key-08-{answers}")
    opening = [S, user("Say something. [[delay:0.5]]")]
    seeds = range(8) if answers == "differ" else [0] * 8
    firsts = await asyncio.gather(*(caller.ask(*opening, retry=0, seed=seed) for seed in seeds))
    assert len({json.dumps(reply.message) for reply in firsts}) == (8 if answers == "differ" else 1)
    assert len({reply.session for reply in firsts}) == 8
    seconds = [await caller.ask(*opening, first.message, user(f"{at}")) for at, first in enumerate(firsts)]
    thirds = [
        await caller.ask(*opening, first.message, user(f"{at}"), second.message, user("and?"))
        for at, (first, second) in enumerate(zip(firsts, seconds, strict=True))
    ]
    assert len({reply.session for reply in seconds}) == 8
    assert [reply.session for reply in thirds] == [reply.session for reply in seconds]
    if answers == "differ":
        assert [reply.session for reply in seconds] == [reply.session for reply in firsts]


async def test_09_a_timeout_and_a_retry(world):
    """R3.8: one user turn; the answer that nobody waited for stays in the log, off the path."""
    caller = world.caller("key-09")
    body = [S, user("Think. [[words:50]]")]
    lost = await caller.ask(*body, stream=True, fault="hang:6", timeout=0.5)
    await world.settled(lost, 1)
    again = await caller.ask(*body, stream=True, retry=1, seed=9)
    later = await caller.ask(*body, again.message, user("Thanks."))
    assert lost.session == again.session == later.session
    recorded = await world.recorded(later)
    assert (await world.recorded(again)).lineage == "retried"
    assert recorded.lineage == "continued"
    assert await branch(world, lost) == await branch(world, again) == await branch(world, later)
    assert await world.history(recorded) == [body[1], again.message, user("Thanks.")]
    assert len(await world.entries(recorded.session, "message")) == 3
    first, second, _ = [entry.data for entry in await world.entries(recorded.session, "response")]
    assert first["interrupted"]
    assert not second["interrupted"]
    assert await choices(world, recorded.session.tenant, first) == [lost.message["content"]]


async def test_10_a_stream_that_was_cut(world):
    """R3.7: the cut answer, echoed, continues the branch; without it the next message branches off."""
    caller = world.caller("key-10")
    body = [S, user("Tell me all of it. [[words:60]]")]
    cut = await caller.ask(*body, stream=True, fault="cut:8")
    assert cut.message["content"]
    await world.settled(cut, 1)
    shorter = changed(cut.message, content=cut.message["content"][:-5])
    went_on = await caller.ask(*body, shorter, user("Go on."))
    assert went_on.session == cut.session
    assert await branch(world, went_on) == await branch(world, cut)

    body = [S, user("Tell me the rest of it. [[words:60]]")]
    cut = await caller.ask(*body, stream=True, fault="cut:8")
    await world.settled(cut, 1)
    without = await caller.ask(*body, user("Are you there?"))
    assert await world.history(await world.recorded(without)) == [body[1], user("Are you there?")]
    assert await branch(world, without) != await branch(world, cut)
    assert caller.upstream(without) == [*body, user("Are you there?")]


async def test_11_an_echo_in_other_words(world):
    """R3.2, R3.7: blank text beside calls, other spacing and order of arguments, other ids, nulls: the same lineage."""
    caller = world.caller("key-11")
    calls = '[[call:look_up {"key": "a", "depth": 1}]] [[call:look_up {"key": "b", "depth": 2}]]'
    body = [S, user(f"Look twice. [[say:Looking.]] {calls}")]
    first = await caller.ask(*body)
    assert first.message["content"] == "Looking."
    echo = {"role": "assistant", "content": "", "refusal": None, "function_call": None, "tool_calls": []}
    for at, call in enumerate(first.message["tool_calls"]):
        arguments = json.dumps(dict(reversed(json.loads(call["function"]["arguments"]).items())), indent=1)
        function = {"name": "look_up", "arguments": arguments}
        echo["tool_calls"].append({"index": at, "id": f"renamed{at}", "type": "function", "function": function})
    second = await caller.ask(*body, echo, result("renamed0", "A"), result("renamed1", "B"))
    assert second.session == first.session
    assert await branch(world, second) == await branch(world, first)
    assert (await world.recorded(second)).lineage == "continued"


async def test_14_a_first_message_that_is_rewritten_on_every_call(world):
    """R3.4, R12.4: requests are forwarded as sent, and no summary is made for any of them."""
    caller = world.caller("key-14")
    rest: list = []
    for turn in range(6):
        messages = [S, user(f"<environment>time {turn}</environment> Do the task."), *rest]
        reply = await caller.ask(*messages, session="X14")
        assert caller.upstream(reply) == messages
        assert (reply.context, reply.session) == ("verbatim", "X14")
        rest += [reply.message, user(f"Next {turn}: {words('w', 40)}")]
    assert world.summaries(caller.key) == 0


async def test_16_an_edit_and_the_way_back(world):
    """R3.4: the edit opens a branch without the checkpoint; on the old branch the old one is found again."""
    caller = world.caller("key-16")
    told, before = await caller.talk([S], turns=14, session="X16")
    assert before.checkpoint
    edited = await caller.ask(S, user("Something else."), session="X16")
    assert edited.context == "verbatim"
    assert await branch(world, edited) != await branch(world, before)
    back = await caller.ask(*told, user("Where were we?"), session="X16")
    assert back.checkpoint == before.checkpoint
    assert await branch(world, back) == await branch(world, before)
    assert caller.upstream(back)[1] == caller.upstream(before)[1]


async def test_19_an_old_result_becomes_a_placeholder(world):
    """R3.4, R4.3: sent as the client wrote it; the whole result stays stored; its checkpoint is not applied."""
    caller = world.caller("key-19")
    look = assistant(None, ("call_0", '{"key":"a"}'))
    whole = result("call_0", words("row", 500))
    opening = [S, user("Look."), look, whole, assistant("Seen.")]
    told, before = await caller.talk(opening, turns=5, size=40, session="X19")
    assert before.checkpoint
    changed_list = [*told[:3], result("call_0", "[cleared]"), *told[4:], user("On.")]
    after = await caller.ask(*changed_list, session="X19")
    assert after.context == "verbatim"
    assert caller.upstream(after) == changed_list
    assert whole in await world.history(await world.recorded(before))
    assert whole not in await world.history(await world.recorded(after))


async def test_21_call_ids_that_every_conversation_uses(world):
    """R3.2: `call_0` is linkage inside one history and identifies nothing."""
    caller = world.caller("key-21")
    tail = [assistant(None, ("call_0", '{"key":"a"}')), result("call_0", "found"), assistant("Done."), user("Next?")]
    one, two = [await caller.ask(S, user(f"Task {task}"), *tail) for task in "AB"]
    assert one.session != two.session
    for reply in (one, two):
        recorded = await world.recorded(reply)
        assert recorded.lineage == "new"
        assert len(await world.entries(recorded.session, "message")) == 5


async def test_22_one_user_and_one_cache_key_for_all(world):
    """R3.5: neither of them ever chooses a session."""
    caller = world.caller("key-22")
    common = {"user": "app", "prompt_cache_key": "app", "safety_identifier": "app"}
    replies = [await caller.ask(S, user(f"Chat {number}"), **common) for number in range(3)]
    assert len({reply.session for reply in replies}) == 3


async def test_23_the_second_choice_is_echoed(world):
    """R3.7: any of `n` choices may be the one that the client goes on from."""
    caller = world.caller("key-23")
    first = await caller.ask(S, user("Two ways."), n=2)
    assert first.messages[0] != first.messages[1]
    second = await caller.ask(S, user("Two ways."), first.messages[1], user("The other."))
    assert second.session == first.session
    assert await branch(world, second) == await branch(world, first)


async def test_24_a_prefill_is_no_echo(world):
    """R3.8: a trailing assistant message is forwarded, and does not continue the answer that it equals."""
    caller = world.caller("key-24")
    first = await caller.ask(S, user("Begin."))
    prefilled = [S, user("Begin."), assistant(first.message["content"])]
    second = await caller.ask(*prefilled)
    assert caller.upstream(second) == prefilled
    assert await branch(world, second) != await branch(world, first)
    then = await caller.ask(*prefilled[:2], first.message, user("Go on."))
    assert (then.status, then.session) == (200, first.session)


async def test_25_a_preamble_that_changes_on_every_request(world):
    """R3.3: the lineage stays, the checkpoint applies, and the live instructions are sent as received."""
    caller = world.caller("key-25")
    told, before = await caller.talk([S], turns=14)
    assert before.checkpoint
    for number, role in enumerate(("system", "developer", "system")):
        preamble = {"role": role, "content": f"You answer. Today is day {number}."}
        told = [preamble, *told[1:], user(f"Day {number}?")]
        after = await caller.ask(*told)
        assert caller.upstream(after)[0] == preamble
        assert (after.session, after.checkpoint) == (before.session, before.checkpoint)
        assert await branch(world, after) == await branch(world, before)
        told.append(after.message)
    session = (await world.recorded(before)).session
    assert len(await world.entries(session, "preamble")) == 4


@pytest.mark.parametrize("size", [5, 130])
async def test_26_forty_messages_on_first_contact(world, size):
    """R3.6, R6.1: a new session of forty events, compacted at once if it is over high water."""
    caller = world.caller(f"key-26-{size}")
    imported = [S]
    for number in range(20):
        imported += [user(f"Question {number} {words('q', size)}"), assistant(f"Answer {number}.")]
    imported.pop()
    imported.append(user("Now?"))
    reply = await caller.ask(*imported)
    recorded = await world.recorded(reply)
    assert recorded.lineage == "new"
    assert len(await world.entries(recorded.session, "message")) == 40
    assert await world.history(recorded) == imported[1:]
    assert (reply.checkpoint is not None) == (size == 130)
    assert caller.upstream(reply)[-1] == user("Now?")


async def test_27_cache_marks_that_wander(world):
    """R3.2: marks and reasoning are no part of what a message says; the checkpoint still applies."""
    caller = world.caller("key-27")
    told, before = await caller.talk([S], turns=14)
    assert before.checkpoint
    marked = [dict(message) for message in told]
    for place in (1, 5, len(marked) - 2):
        part = {"type": "text", "text": marked[place]["content"], "cache_control": {"type": "ephemeral"}}
        marked[place] = user([part])
    marked[2] = changed(marked[2], reasoning_content="I thought about it.")
    after = await caller.ask(*marked, user("On."))
    assert (after.session, after.checkpoint) == (before.session, before.checkpoint)
    assert await branch(world, after) == await branch(world, before)
    plain = await caller.ask(*told, user("On."), after.message, user("And on."))
    assert plain.session == before.session
    assert await branch(world, plain) == await branch(world, before)


FILES = {
    "file bytes": [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:;base64,{d}"}} for d in ("AAAA", "AAAB")
    ],
    "file id": [{"type": "file", "file": {"file_id": f"file-{number}"}} for number in (1, 2)],
    "image": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{d}"}} for d in ("AAAA", "AAAB")],
}


@pytest.mark.parametrize("kind", FILES)
async def test_28_conversations_that_differ_in_a_part_alone(world, kind):
    """R3.2: what is no text counts whole; no checkpoint crosses."""
    caller = world.caller(f"key-28-{kind.replace(' ', '-')}")
    one, two = [user([{"type": "text", "text": "Read this."}, part]) for part in FILES[kind]]
    told, before = await caller.talk([S, one, assistant("Read.")], turns=14)
    assert before.checkpoint
    other = await caller.ask(S, two, *told[2:], user("On."))
    assert other.session != before.session
    assert other.checkpoint != before.checkpoint
    recorded = await world.recorded(other)
    assert recorded.lineage == "new"
    assert (await world.history(recorded))[0] == two


async def test_28_parts_of_a_type_that_nobody_knows(world):
    """R3.2, R2.12: two conversations, though the provider refuses both."""
    caller = world.caller("key-28-unknown")
    parts = [{"type": "hologram", "hologram": number} for number in (1, 2)]
    one, two = [await caller.ask(S, user([part]), session="X28") for part in parts]
    assert (one.status, two.status) == (400, 400)
    assert await branch(world, one) != await branch(world, two)


async def test_29_arguments_that_differ_in_a_large_integer(world):
    """R3.2: integers count exactly, beyond what a double holds."""
    caller = world.caller("key-29")
    body = [S, user("Fetch the record.")]
    lists = [
        [*body, assistant(None, ("c", f'{{"key": {number}}}')), result("c", "found"), user("On.")]
        for number in (9007199254740993, 9007199254740992)
    ]
    one, two = [await caller.ask(*messages) for messages in lists]
    first, second = [await world.recorded(reply) for reply in (one, two)]
    assert first.session.key != second.session.key
    assert second.lineage == "forked"
    assert len(await world.entries(second.session, "message")) == 3
    spaced = changed(lists[0][2], tool_calls=assistant(None, ("c", '{ "key" : 9007199254740993 }'))["tool_calls"])
    same = await caller.ask(*body, spaced, *lists[0][3:], one.message, user("And?"))
    assert same.session == one.session


@pytest.mark.parametrize("again", ["the same list", "the list up to the cut"])
async def test_30_a_list_that_ends_where_the_cut_was(world, again):
    """R7.3: the newest step and the current user message are still sent verbatim."""
    caller = world.caller(f"key-30-{again[-3:]}")
    told = [S, user("A long task with many steps.")]
    for step in range(30):
        told += [assistant(None, (f"c{step}", f'{{"key":"{step}"}}')), result(f"c{step}", words(f"s{step}r", 60))]
        reply = await caller.ask(*told, session=f"X30 {again}")
        if reply.checkpoint:
            break
    session = (await world.recorded(reply)).session
    (made,) = [entry.data for entry in await world.entries(session, "compaction_completed")]
    assert made["phase"] == "mid_turn"
    cut = made["through_seq"]
    repeated = told if again == "the same list" else told[: 1 + cut]
    second = await caller.ask(*repeated, session=f"X30 {again}", retry=1)
    sent = caller.upstream(second)
    assert second.status == 200
    assert sent[-2:] == repeated[-2:]
    assert [message for message in sent if message["role"] == "user"].count(told[1]) == 1
    assert (second.checkpoint == reply.checkpoint) == (again == "the same list")


async def test_31_the_session_that_others_left_is_deleted(world):
    """R3.6: the forks keep every message, and go on."""
    caller = world.caller("key-31")
    told, first = await caller.talk([S], turns=4, size=20)
    fork = await caller.ask(*told[:4], user("Another way."))
    recorded = await world.recorded(fork)
    assert recorded.session.session != first.session
    await world.store.delete_session((await world.recorded(first)).session.key)
    assert await world.history(recorded) == [*told[1:4], user("Another way.")]
    then = await caller.ask(*told[:4], user("Another way."), fork.message, user("On."))
    assert then.session == fork.session
    assert await world.store.find_session(None, first.session) is None


async def branch(world: World, reply: Reply) -> tuple[int, int]:
    """Session and branch of a reply's request."""
    recorded = await world.recorded(reply)
    return recorded.session.key, recorded.branch


async def choices(world: World, tenant: str, response: dict) -> list[str]:
    """The texts of a stored response."""
    bodies = [await world.store.body(tenant, bytes.fromhex(name)) for name in response["choices"]]
    return [json.loads(body)["content"] for body in bodies]
