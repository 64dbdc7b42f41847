"""Windows as the upstreams' own model lists state them (R5.1)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import structlog

from gateway.destination import Destination
from gateway.settings import Upstream
from gateway.targets import target
from gateway.tasks import Supervisor
from gateway.upstream import UpstreamClient, UpstreamError
from gateway.wire import decode_message

FIELDS = ("context_length", "max_model_len", "context_window", "max_context_length")
KEPT_FOR = 3600.0
LARGEST_LIST = 16 << 20

log = structlog.get_logger("palimpsest.models")


class ModelLists:
    """Fetches each upstream's list beside a request, with that request's credential, and keeps it for an hour."""

    def __init__(self, upstream: UpstreamClient, tasks: Supervisor) -> None:
        self._upstream = upstream
        self._tasks = tasks
        self._windows: dict[str, Mapping[str, int]] = {}
        self._asked_at: dict[str, float] = {}

    def window(self, upstream: str, model: str | None) -> int | None:
        """The window of a model in tokens, if its upstream's list is known and states it."""
        return self._windows.get(upstream, {}).get(model or "")

    def refresh(self, upstream: Upstream, destination: Destination) -> None:
        """Fetch the list in the background, if it was not asked for within the last hour."""
        now = time.monotonic()
        asked_at = self._asked_at.get(upstream.name)
        if asked_at is not None and now - asked_at < KEPT_FOR:
            return
        self._asked_at[upstream.name] = now
        self._tasks.spawn(self._fetch(upstream, destination), "model_list")

    async def _fetch(self, upstream: Upstream, destination: Destination) -> None:
        url = target(upstream.base_url, b"/models" if _has_path(upstream) else b"/v1/models", b"")
        headers = destination.headers_for(changed=True, again=False)
        headers = [pair for pair in headers if pair[0].lower() not in {b"content-type", b"idempotency-key"}]
        try:
            response = await self._upstream.send("GET", url, headers, b"", destination.timeouts)
            try:
                body = await response.read()
            finally:
                await response.close()
        except UpstreamError as error:
            log.info("model_list_unavailable", upstream=upstream.name, reason=str(error.failure))
            return
        if response.status < 300 and len(body) <= LARGEST_LIST:
            self._windows[upstream.name] = windows_of(decode_message(body))


def windows_of(listing: Any) -> dict[str, int]:
    """The windows that a model list states, by model id. Numbers or numeric strings; anything else is passed over."""
    entries = listing.get("data", listing.get("models")) if isinstance(listing, dict) else listing
    found: dict[str, int] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        window = _stated(entry)
        for name in (entry.get("id"), entry.get("name")):
            if window is not None and isinstance(name, str):
                found.setdefault(name, window)
    return found


def _stated(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    values = [entry.get(name) for name in FIELDS]
    values.append(meta.get("n_ctx") if isinstance(meta, dict) else None)
    return next((tokens for value in values if (tokens := _tokens(value)) is not None), None)


def _tokens(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return value if type(value) is int and value > 0 else None


def _has_path(upstream: Upstream) -> bool:
    return upstream.base_url.rstrip("/").count("/") > 2
