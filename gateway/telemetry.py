"""What an operator can see: JSON log lines without prompt text (R15.4), and figures for Prometheus."""

import json
import logging
import sqlite3
import sys
import traceback
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Literal, Protocol, TextIO

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from gateway.settings import LogSettings

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
Event = MutableMapping[str, Any]

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_ROUTES = 200
OTHER_ROUTE = "other"
WITHHELD = "[withheld]"
CONTENT_KEYS = frozenset({"arguments", "body", "content", "data", "messages", "prompt", "summary", "text", "tools"})
CREDENTIAL_KEYS = frozenset({"api-key", "api_key", "authorization", "cookie", "credential", "secret", "x-api-key"})
# Errors whose messages speak of the machine and never quote a request.
_PLAIN_ERRORS = (OSError, sqlite3.Error, ImportError, MemoryError)
_FAST_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 180)
_SLOW_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


def configure_logging(settings: LogSettings, out: TextIO | None = None) -> None:
    """Send every log line, the standard library's too, to `out` (default: standard output) in the format that is set.

    Of libraries only warnings and worse are logged, since some of them log request bodies below that.
    """
    stream = sys.stdout if out is None else out
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _Withholding(CREDENTIAL_KEYS if settings.content else CREDENTIAL_KEYS | CONTENT_KEYS),
            _TracebackText(messages=settings.content),
            *_rendering(settings.format, stream),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_factory(settings.format, stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_ThroughStructlog()], level=max(level, logging.WARNING), force=True)


def _rendering(form: Literal["json", "console"], stream: TextIO) -> list[Any]:
    if form == "json":
        return [structlog.processors.JSONRenderer(serializer=_to_json)]
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty())]


def _factory(form: Literal["json", "console"], stream: TextIO) -> Any:
    if form == "json":
        return structlog.BytesLoggerFactory(stream.buffer)
    return structlog.PrintLoggerFactory(stream)


def _to_json(event: Event, **options: Any) -> bytes:
    try:
        return orjson.dumps(event, default=options.get("default"))
    except TypeError:
        # Lone surrogates and integers above 64 bits; a log line must never be what fails.
        return json.dumps(event, default=repr).encode()


class _Withholding:
    """Replaces the values of keys that may hold prompt text or a credential, whoever logged them."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys

    def __call__(self, _logger: Any, _method: str, event: Event) -> Event:
        for key in event.keys() & self._keys:
            event[key] = WITHHELD
        return event


class _TracebackText:
    """Replaces `exc_info` by the traceback as text, without local variables.

    Messages of errors often quote what could not be read, so they are left out unless prompt text is allowed.
    """

    def __init__(self, *, messages: bool) -> None:
        self._messages = messages

    def __call__(self, _logger: Any, _method: str, event: Event) -> Event:
        found = event.pop("exc_info", None)
        if isinstance(found, BaseException):
            error: BaseException | None = found
        else:
            error = found[1] if isinstance(found, tuple) else sys.exc_info()[1] if found else None
        if error is not None:
            event["exception"] = "\n\n".join(self._one(each) for each in _chain(error))
        return event

    def _one(self, error: BaseException) -> str:
        frames = "".join(traceback.format_tb(error.__traceback__))
        shown = f": {error}" if self._messages or isinstance(error, _PLAIN_ERRORS) else ""
        return f"{frames}{type(error).__module__}.{type(error).__qualname__}{shown}"


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what led to it, the first cause first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain[::-1]


class _ThroughStructlog(logging.Handler):
    """Hands the standard library's log records to structlog, so that there is one format."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


class _Labelled(Protocol):
    def labels(self, *labelvalues: str) -> Any: ...


class _Children:
    """The children of a metric, kept: finding one costs one dictionary look-up."""

    __slots__ = ("_known", "_metric")

    def __init__(self, metric: _Labelled) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], Any] = {}

    def __getitem__(self, values: tuple[str, ...]) -> Any:
        child = self._known.get(values)
        if child is None:
            child = self._known[values] = self._metric.labels(*values)
        return child


class Metrics:
    """The gateway's figures, in a registry of their own. Times are seconds, sizes are estimated tokens.

    Routes carry names of models, which clients choose: after the first `MAX_ROUTES` they count as one.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._routes: set[str] = set()
        self._requests = self._counter(
            "requests", "Managed requests, by route, status and what the model was sent", "route", "status", "context"
        )
        self._upstream = _Children(
            Histogram(
                "palimpsest_upstream_seconds",
                "From sending to the answer's headers",
                ("route",),
                buckets=_SLOW_SECONDS,
                registry=self._registry,
            )
        )
        self._added = Histogram(
            "palimpsest_added_seconds",
            "What the gateway adds before the first byte, compactions apart",
            buckets=_FAST_SECONDS,
            registry=self._registry,
        )
        self._compactions = self._counter(
            "compactions", "Compactions considered, by how they ended", "trigger", "phase", "outcome"
        )
        self._store_failures = self._counter("store_failures", "Calls of the store that failed", "call")
        self._before = self._counter("tokens_before", "Tokens of requests as received", "route")
        self._after = self._counter("tokens_after", "Tokens of requests as sent", "route")
        self.in_flight = Gauge(
            "palimpsest_requests_in_flight", "Requests that are not answered yet", registry=self._registry
        )

    def _counter(self, name: str, text: str, *labels: str) -> _Children:
        return _Children(Counter(f"palimpsest_{name}", text, labels, registry=self._registry))

    def request(self, route: str, status: int, context: str) -> None:
        """A managed request was answered. `context`: `verbatim`, `projected`, `pending` or `unmanaged`."""
        self._requests[self._bounded(route), str(status), context].inc()

    def upstream(self, route: str, seconds: float) -> None:
        """The upstream's headers are there."""
        self._upstream[self._bounded(route),].observe(seconds)

    def added(self, seconds: float) -> None:
        """The first byte left; `seconds` without the upstream's and without a compaction's."""
        self._added.observe(seconds)

    def compaction(self, trigger: str, phase: str, outcome: str) -> None:
        """A compaction ended, by the words of R13.4."""
        self._compactions[trigger, phase, outcome].inc()

    def store_failure(self, call: str) -> None:
        """A call of the store failed (R4.4)."""
        self._store_failures[call,].inc()

    def tokens(self, route: str, before: int, after: int) -> None:
        """A request was sent: its estimated tokens as received and as projected."""
        name = self._bounded(route)
        self._before[name,].inc(before)
        self._after[name,].inc(after)

    def render(self) -> bytes:
        """All figures in Prometheus' text format (`METRICS_CONTENT_TYPE`)."""
        return generate_latest(self._registry)

    def _bounded(self, route: str) -> str:
        if route in self._routes:
            return route
        if len(self._routes) >= MAX_ROUTES:
            return OTHER_ROUTE
        self._routes.add(route)
        return route
