"""What is sent: each case in numbers, and the texts that the load generator and the canned upstream share.

A **growing** case is conversations without a session id, as an SDK sends them: each request is a longer stage of one of
`conversations` conversations that take turns, its assistant messages are what the upstream answered, and all its texts
are its own. A **repeated** case is one body, byte for byte the same, in a session of its own per request
(`x-palimpsest-session`). All requests carry the headers of the `openai` SDK.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

WORDS = (
    "the pallet in the cold room was moved before noon and the scanner near gate four reported no errors so please "
    "compare the weight on the label with the reading in the log and tell me which of the orders may leave today "
)
SHORT_ANSWER, LONG_ANSWER = 40, 490
"""Characters of the canned answers behind their mark."""
LONG_MARK = "L"
"""Marks that begin so get the long answer."""
EXPECTED_RATE = 2_000
"""Requests a second that a seeded case is prepared for; above that its conversations are begun anew, all of it new."""


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of requests. A growing case has stages of `first`, `first + 2`, ... messages after the preamble."""

    name: str
    mark: str
    """Begins the names of its conversations: `S` gets short answers, `L` long ones."""
    text: int
    """Characters of a user message behind its mark."""
    first: int
    stages: int
    conversations: int = 128
    """So many take turns, that a stage is answered long before the next is sent."""
    seeded: bool = False
    """The conversations' beginnings are recorded before the measurement, as those of a long conversation are."""
    repeated: bool = False
    stream: bool = False

    @property
    def messages(self) -> float:
        """Mean number of messages, the preamble's included."""
        return self.first + self.stages

    def arguments(self, tag: str, **more: object) -> list[str]:
        """The case for the Lua script; `tag` tells apart the conversations of different runs."""
        fillers = {"question": filler(self.text), "answer": filler(answer_length(self.mark))}
        numbers = {"first": self.first, "stages": self.stages, "conversations": self.conversations}
        flags = {"repeated": int(self.repeated), "stream": int(self.stream)}
        values = {"name": f"{self.mark}{tag}", **fillers, **numbers, **flags, **more}
        return [f"{key}={value}" for key, value in values.items()]

    def prepared_for(self, seconds: float, rate: float = EXPECTED_RATE) -> Case:
        """With as many seeded conversations as a run of that length can use up."""
        if not self.seeded:
            return self
        return replace(self, conversations=max(self.conversations, math.ceil(seconds * rate / self.stages)))


# 6 messages and 101 messages in the mean, the system message included.
SMALL = Case("0.6 kB growing", "S", 40, first=1, stages=5)
LARGE = Case("55 kB growing", LONG_MARK, 487, first=69, stages=32, seeded=True)
CASES = (
    SMALL,
    LARGE,
    replace(SMALL, name="0.6 kB repeated", first=5, stages=1, repeated=True),
    replace(LARGE, name="55 kB repeated", first=100, stages=1, seeded=False, repeated=True),
)
STREAMS = (
    replace(SMALL, name="0.6 kB stream", stream=True),
    replace(LARGE, name="55 kB stream", stream=True),
)


# 400 messages; sent one at a time.
HUGE = Case("800 kB growing", LONG_MARK, 3_440, first=391, stages=9, conversations=16, seeded=True)


def compared_with(case: Case) -> Case:
    """The case whose bare figures a case is held against: the same size; what it repeats is nothing to a bare one."""
    return next(other for other in (*CASES, *STREAMS) if (other.mark, other.stream) == (case.mark, case.stream))


def answer_length(mark: str) -> int:
    """Characters of the canned answer to a conversation whose name begins with `mark`."""
    return LONG_ANSWER if mark == LONG_MARK else SHORT_ANSWER


def filler(length: int) -> str:
    """Plain words of that length in all."""
    return (WORDS * (length // len(WORDS) + 1))[:length]
