"""Which turns have had an overflow recovery, and how long they were then (R10.2)."""

from __future__ import annotations

from compaction.groups import current_user_run
from gateway.cache import GenerationCache
from gateway.conversation import Conversation
from gateway.settings import Route

REMEMBERED_TURNS = 4096


class Recoveries:
    """A turn is known by the digest of its user message, so a retry of the same turn is the same turn."""

    def __init__(self) -> None:
        self._used: GenerationCache[tuple[bytes, str], int] = GenerationCache(REMEMBERED_TURNS)

    def may_begin(self, conversation: Conversation, route: Route) -> bool:
        """Whether this turn was not sent a second time on this route, or has grown since.

        An agent's turn may be as long as a conversation: one recovery for all of it would leave it stuck.
        """
        return len(conversation.path) > (self._used.get(_turn(conversation, route)) or 0)

    def used(self, conversation: Conversation, route: Route) -> None:
        """Note that the second send took place. A recovery that came to nothing before it does not count."""
        self._used.put(_turn(conversation, route), len(conversation.path))


def _turn(conversation: Conversation, route: Route) -> tuple[bytes, str]:
    run = current_user_run(conversation.path)
    return conversation.path.digests[run[0] if run else 0], route.name
