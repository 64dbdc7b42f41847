"""Which turns have had their one overflow recovery (R10.2)."""

from __future__ import annotations

from compaction.groups import current_user_run
from gateway.cache import GenerationCache
from gateway.conversation import Conversation
from gateway.settings import Route

REMEMBERED_TURNS = 4096


class Recoveries:
    """A turn is known by the digest of its user message, so a retry of the same turn is the same turn."""

    def __init__(self) -> None:
        self._used: GenerationCache[tuple[bytes, str], bool] = GenerationCache(REMEMBERED_TURNS)

    def may_begin(self, conversation: Conversation, route: Route) -> bool:
        """Whether this turn has not been sent a second time on this route."""
        return not self._used.get(_turn(conversation, route))

    def used(self, conversation: Conversation, route: Route) -> None:
        """Note that the second send took place. A recovery that came to nothing before it does not count."""
        self._used.put(_turn(conversation, route), True)


def _turn(conversation: Conversation, route: Route) -> tuple[bytes, str]:
    run = current_user_run(conversation.path)
    return conversation.path.digests[run[0] if run else 0], route.name
