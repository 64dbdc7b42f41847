"""Token counting: the ids of tiktoken, without its downloads, in linear time (R5.3)."""

import asyncio
import threading
import time

import pytest
import tiktoken
import toktok
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import tokens
from gateway.tokens import ENCODINGS, THREAD_CHARACTERS, TokenCounter

PATTERNS = {
    "cl100k_base": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ),
    "o200k_base": (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
        r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
        r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
    ),
}
TEXTS = [
    "",
    "hello world",
    "  leading, trailing  \n\n\n",
    "It's the users' data; we'll DON'T 12345678 3.14159",
    "def f(x):\n\treturn {'a': [1, 2, 3]}\r\n",
    "Ünïcödé — „Zitat“ 漢字かな 한국어 عربى हिन्दी 👩‍👩‍👧‍👦🧠",
    '{"path": "/a/b.py", "line": 10, "text": "\\u00e9\\n"}',
    "<|endoftext|> is text",
    "=" * 1000,
    "a" * 1000,
    " " * 1000,
    "\x00\x01\u200b\ufeff",
]


def reference(encoding):
    """tiktoken itself, with the vocabulary that toktok carries."""
    ranks = {value: rank for rank, value in enumerate(toktok._encoding(encoding).token_byte_values())}
    special = {"<|endoftext|>": max(ranks.values()) + 10}
    return tiktoken.Encoding(encoding, pat_str=PATTERNS[encoding], mergeable_ranks=ranks, special_tokens=special)


@pytest.fixture(scope="module", params=sorted(PATTERNS))
def tokenizer(request):
    return reference(request.param)


def test_counts_are_those_of_tiktoken(tokenizer):
    """R5.3: by the model's encoding."""
    counts = TokenCounter().count(TEXTS, tokenizer.name)
    assert counts == [len(tokenizer.encode_ordinary(text)) for text in TEXTS]


@given(st.lists(st.text(max_size=40), max_size=5))
@settings(max_examples=50)
def test_counts_of_any_text_are_those_of_tiktoken(tokenizer, texts):
    """R5.3."""
    counts = TokenCounter().count(texts, tokenizer.name)
    assert counts == [len(tokenizer.encode_ordinary(text)) for text in texts]


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-2024-08-06", "o200k_base"),
        ("openai/gpt-4-turbo", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("gpt-oss-120b", "o200k_harmony"),
        ("text-davinci-003", "o200k_base"),  # an encoding that is not carried
        ("some-model", "o200k_base"),
        ("", "o200k_base"),
        (None, "o200k_base"),
        ("\ud800", "o200k_base"),
    ],
)
def test_the_encoding_follows_from_the_model(model, encoding):
    """R5.3: else o200k_base."""
    assert TokenCounter().encoding_for(model) == encoding


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_every_encoding_that_a_model_can_have_counts(encoding):
    """R5.3."""
    assert TokenCounter().count(["hello world", ""], encoding) == [2, 0]


def test_lone_surrogates_are_counted_and_change_nothing_else():
    """R2.12: JSON escapes can hold them."""
    counter = TokenCounter()
    counts = counter.count(["hello world", "\ud800", "a\udfff\ud800b", "👍"])
    assert counts[0] == 2
    assert counts[3] == counter.count(["👍"])[0]
    assert 1 <= counts[1] <= 3
    assert counts[2] > 2


@pytest.mark.parametrize("unit", ["=", " ", "a", "\n", "é", "<|", "1", "\ud800"])
def test_a_megabyte_of_anything_counts_in_linear_time(unit):
    """R5.3: the bound leaves room for a busy machine."""
    counter = TokenCounter()
    counter.warm()
    start = time.perf_counter()
    counter.count([unit * (1_000_000 // len(unit))])
    assert time.perf_counter() - start < 1.5


async def test_much_text_is_counted_beside_the_event_loop(monkeypatch):
    """R5.3: the same figures, in a thread above 64 kB."""
    counter = TokenCounter()
    seen = []
    count, apart = counter.count, tokens.count_apart

    def watched(texts, encoding):
        seen.append(threading.current_thread() is threading.main_thread())
        return apart(texts, encoding)

    monkeypatch.setattr(tokens, "count_apart", watched)
    small, large = ["word " * 10], ["word " * 10, "word " * (THREAD_CHARACTERS // 5)]
    assert await counter.count_async(small) == [11]
    assert await counter.count_async(large) == count(large)
    assert seen == [False]


async def test_counters_may_be_shared():
    """R5.3: by tasks and threads."""
    counter = TokenCounter()
    texts = ["some words " * 10_000]
    counts = await asyncio.gather(*(counter.count_async(texts) for _ in range(4)))
    assert counts == [counter.count(texts)] * 4
