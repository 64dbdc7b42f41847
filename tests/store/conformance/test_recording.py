"""What every store does with requests and answers (SPEC 4)."""

from tests.store.talk import Talk, assistant, system, user


async def test_first_request_starts_a_session(talk: Talk):
    """R3.6, R4.1: nothing is known, so there is a new session, whose log says what came."""
    recorded = await talk.ask(user("hi"), preamble=[system("be brief")])
    assert (recorded.lineage, recorded.added) == ("new", 1)
    assert await talk.kinds(recorded) == ["preamble", "message", "request"]
    await talk.assert_rebuilt()


async def test_conversation_goes_on_in_its_branch(talk: Talk):
    """R3.6, R3.7"""
    first = await talk.exchange(user("a"), reply=assistant("b"))
    second = await talk.exchange(user("a"), assistant("b"), user("c"), reply=assistant("d"))
    assert (second.lineage, second.added) == ("continued", 2)
    assert (second.session_key, second.branch) == (first.session_key, first.branch)
    assert await talk.kinds(second) == ["message", "request", "response", "message", "message", "request", "response"]
    await talk.assert_rebuilt()
