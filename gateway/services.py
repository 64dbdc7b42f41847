"""The parts that a request needs, constructed once in `gateway.app`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.context import ContextCompiler
from gateway.conversation import ConversationReader
from gateway.identity import Tenants
from gateway.model_lists import ModelLists
from gateway.recoveries import Recoveries
from gateway.routes import RouteBook
from gateway.settings import Settings
from gateway.tasks import Supervisor
from gateway.telemetry import Metrics
from gateway.upstream import UpstreamClient
from store.protocol import Store


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that outlives a request."""

    settings: Settings
    session_headers: tuple[bytes, ...]
    upstream: UpstreamClient
    store: Store
    tenants: Tenants
    reader: ConversationReader
    routes: RouteBook
    model_lists: ModelLists
    context: ContextCompiler
    recoveries: Recoveries
    tasks: Supervisor
    metrics: Metrics
    warm: tuple[Callable[[], None], ...]
    """These read vocabularies and tables that the first request would have to wait for; call them in a thread."""
