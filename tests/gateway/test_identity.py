"""Who is calling, and which session the client names (R3.1, R3.5)."""

import pytest

from gateway.identity import Tenants, explicit_session, usable_id
from gateway.settings import SESSION_HEADERS
from gateway.wire import read_chat_request

NAMES = tuple(name.encode() for name in SESSION_HEADERS)


def request(extra: str = ""):
    found = read_chat_request(b'{"model":"m","messages":[]' + extra.encode() + b"}")
    assert found is not None
    return found


def test_a_tenant_is_a_keyed_hash_of_the_credential():
    """SPEC 1: equal credentials are one tenant, whatever the instance; another secret makes another."""
    one, two = Tenants(b"secret one"), Tenants(b"secret two")
    assert one.of(b"key") == Tenants(b"secret one").of(b"key") == one.of(b"key")
    assert len({one.of(b"key"), one.of(b"other"), two.of(b"key")}) == 3
    assert "key" not in one.of(b"key")


@pytest.mark.parametrize(
    "value", ["", "  ", "null", "NULL", "undefined", "{{chat_id}}", "a${ID}", "x" * 257, "ä" * 129, None, 7, ["a"]]
)
def test_what_is_no_id_is_ignored(value):
    """R3.5."""
    assert usable_id(value) is None


@pytest.mark.parametrize(("value", "kept"), [(" a ", "a"), ("x" * 256, "x" * 256), ("{single}", "{single}")])
def test_ids_are_trimmed(value, kept):
    """R3.5."""
    assert usable_id(value) == kept


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_every_clients_own_header_is_known(name):
    """R3.5."""
    assert explicit_session([(name.encode(), b"mine")], request(), NAMES) == "mine"


def test_our_header_comes_first_then_the_clients_then_the_body():
    """R3.5: in this order, and an unusable id leaves the choice to the next."""
    body = request(',"session_id":"body","metadata":{"conversation_id":"meta"}')
    theirs = (b"x-session-id", b"theirs")
    assert explicit_session([theirs, (b"x-palimpsest-session", b"ours")], body, NAMES) == "ours"
    assert explicit_session([theirs, (b"x-palimpsest-session", b"null")], body, NAMES) == "theirs"
    assert explicit_session([], body, NAMES) == "body"
    assert explicit_session([], request(',"session_id":1,"metadata":{"thread_id":"t"}'), NAMES) == "t"


@pytest.mark.parametrize("extra", ['"user":"u"', '"prompt_cache_key":"k"', '"safety_identifier":"s"', '"metadata":"x"'])
def test_nothing_else_chooses_a_session(extra):
    """R3.5, identity case 22."""
    assert explicit_session([], request("," + extra), NAMES) is None
