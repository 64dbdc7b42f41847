"""A reply as it is kept: whatever can be relayed (R2.4, R2.12)."""

import json

import pytest

from gateway.replies import reply_bodies, reply_keys
from gateway.reply import ReplyFold


def reply(content):
    fold = ReplyFold()
    message = {"role": "assistant", "content": content}
    fold.add_json({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    return fold.result()


@pytest.mark.parametrize("content", ["plain", "lone \ud83d", "\ude00", "é 🙂"])
def test_any_text_is_kept(content):
    """An answer with a lone surrogate is an answer: recording never takes it with it."""
    [body] = reply_bodies(reply(content))
    assert json.loads(body)["content"] == content


def test_integers_above_64_bits_are_kept_exactly():
    fold = ReplyFold()
    message = {"role": "assistant", "content": "x", "vendor": 2**70}
    fold.add_json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    [body] = reply_bodies(fold.result())
    assert json.loads(body)["vendor"] == 2**70


def test_a_choice_is_recognised_by_its_echo():
    """R3.7: the text is kept only for the comparison with a cut echo."""
    whole, cut = reply_keys(reply("said"), interrupted=False), reply_keys(reply("said"), interrupted=True)
    assert (whole[0].canon, whole[0].loose) == (cut[0].canon, cut[0].loose)
    assert (whole[0].text, cut[0].text) == ("", "said")
    assert reply_bodies(None) == reply_keys(None, interrupted=False) == []
