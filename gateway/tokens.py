"""Token counting: tiktoken's table says which encoding a model has, toktok counts (R5.3).

toktok carries its vocabularies in the wheel, so nothing is fetched, and counts any input in linear time.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache

import tiktoken
import toktok  # type: ignore[import-untyped]  # has no stubs

DEFAULT_ENCODING = "o200k_base"
ENCODINGS = frozenset({"o200k_base", "cl100k_base", "o200k_harmony"})
"""Those of tiktoken's encodings that toktok has."""
THREAD_CHARACTERS = 64 * 1024
"""Above this much text counting would hold up the event loop, and goes to a thread: 64 kB take about 1 ms."""


@lru_cache(maxsize=1024)
def encoding_for(model: str | None) -> str:
    """The encoding of a model, whatever provider's prefix its name has; `o200k_base` if it is not known here."""
    try:
        encoding = tiktoken.encoding_name_for_model((model or "").rpartition("/")[2])
    except KeyError:
        return DEFAULT_ENCODING
    return encoding if encoding in ENCODINGS else DEFAULT_ENCODING


class TokenCounter:
    """Counts the tokens of texts. Holds no state of its own and may be shared by tasks and threads."""

    def encoding_for(self, model: str | None) -> str:
        """The encoding to count a model's tokens with."""
        return encoding_for(model)

    def count(self, texts: Sequence[str], encoding: str = DEFAULT_ENCODING) -> list[int]:
        """One count per text, in order. A lone surrogate counts as replacement characters; special tokens are text."""
        # One by one: `batch_count` sets up a pool for each call, which costs a hundred times what a short text does.
        count = toktok._encoding(encoding).count  # noqa: SLF001 - documented for those who want the tokenizer itself
        return [_count(count, text) for text in texts]

    async def count_async(self, texts: Sequence[str], encoding: str = DEFAULT_ENCODING) -> list[int]:
        """As `count`, without holding up the event loop."""
        if sum(map(len, texts)) <= THREAD_CHARACTERS:
            return self.count(texts, encoding)
        return await asyncio.to_thread(count_apart, texts, encoding)

    def warm(self, encodings: Sequence[str] = (DEFAULT_ENCODING, "cl100k_base")) -> None:
        """Load vocabularies, 0.2 to 0.6 s each, before the first request needs them."""
        for encoding in encodings:
            self.count(["warm"], encoding)


def count_apart(texts: Sequence[str], encoding: str) -> list[int]:
    """For a thread: `batch_count` lets other threads run meanwhile."""
    counts: list[int] = toktok.batch_count([_replaced(text) for text in texts], encoding, threads=1)
    return counts


def _count(count: Callable[[str], int], text: str) -> int:
    try:
        return count(text)
    except UnicodeEncodeError:
        return count(_replaced(text))


def _replaced(text: str) -> str:
    """The text with each lone surrogate replaced, as it has no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
