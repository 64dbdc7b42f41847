"""The straight line: one chat completion, from the client's bytes to the provider's and back (R2.1).

Read `ChatLine.run` from top to bottom; docs/design.md draws the same line.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace

import structlog
from starlette.types import Receive, Scope, Send

from compaction.types import Checkpoint, Trigger
from gateway.answer import Answer
from gateway.client import Client, ClientGoneError
from gateway.compiled import Compiled
from gateway.context import Outlook
from gateway.conversation import Conversation
from gateway.destination import check_credential, destination_for
from gateway.encodings import BodyTooLargeError, CorruptBodyError, UnsupportedEncodingError, decode_body
from gateway.errors import GatewayError, body_too_large, internal_error, unreadable_body, unsupported_encoding
from gateway.exchange import Exchange
from gateway.headers import header, header_list
from gateway.heartbeat import BLANK, COMMENT, EVENT_STREAM, JSON, Heartbeat
from gateway.identity import ANONYMOUS, SINGLE, explicit_session
from gateway.passthrough import PassThrough
from gateway.recording import Outcome, Recording
from gateway.relay import Relay
from gateway.services import Services
from gateway.settings import Mode, Route
from gateway.settlement import Settlement
from gateway.summariser import OnSend, OnUsage, Summariser
from gateway.wire import ChatRequest, dump_frame, frame_of, read_chat_request
from store.rows import RequestRecord

MOST_COMPACTIONS = 4
"""Of one request, one after the other."""
log = structlog.get_logger("palimpsest.request")
_DEPLOYMENT = re.compile(r"/deployments/(?P<model>[^/]+)/chat/completions$")
_MODES: dict[bytes | None, Mode] = {b"on": "on", b"observe": "observe", b"off": "off"}


class ChatEndpoint:
    """`POST .../chat/completions` (R2.1)."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._unmanaged = PassThrough(services.settings, services.upstream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: one request, one canonical log line."""
        client = Client(scope, receive, send)
        line = ChatLine(self._services, client, self._unmanaged)
        client.answer_headers = [(b"x-palimpsest-request", line.request_id.encode())]
        began = time.perf_counter()
        ended = "answered"
        try:
            with self._services.metrics.in_flight.track_inprogress():
                await line.run(await client.read_body(self._services.settings.server.max_body_bytes))
        except ClientGoneError:
            ended = "client_gone"
        except GatewayError as error:
            ended = error.code or error.type
            await client.fail(error)
        except Exception as error:
            ended = "internal_error"
            log.exception("request_failed", request=line.request_id, error=type(error).__name__)
            await client.fail(internal_error())
        finally:
            line.log_line(ended, time.perf_counter() - began)


@dataclass(slots=True)
class Facts:
    """What the canonical log line says of a request."""

    route: str = ""
    session: str = ""
    context: str = "unmanaged"
    retried: bool = False
    degraded: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0

    @property
    def header(self) -> bytes:
        """The value of `x-palimpsest-context` (R2.11)."""
        notes = ["retried"] if self.retried else []
        notes += [f"degraded={self.degraded}"] if self.degraded else []
        return "; ".join([self.context, *notes]).encode()


class ChatLine:
    """One request on its way down the line."""

    def __init__(self, services: Services, client: Client, unmanaged: PassThrough) -> None:
        self.services = services
        self.client = client
        self._random = os.urandom(16).hex()
        self.request_id = f"req_{self._random}"
        self.facts = Facts()
        self._unmanaged = unmanaged

    async def run(self, received: bytes) -> None:
        """The straight line of docs/design.md."""
        services, client = self.services, self.client
        body = self._decoded(received)
        request = read_chat_request(body)
        if request is None:
            await self._forward_unmanaged(received)
            return
        async with client.watched():
            route = self._route(request)
            destination = destination_for(
                route.upstream, client.scope, api_key=route.api_key, forwards_credential=route.forwards_credential
            )
            window = services.routes.window(route)
            conversation = await services.reader.read(self._tenant(route), request, route.model, window)
            outlook = await services.context.look(conversation, route, Trigger.BUDGET)
            compiled = services.context.compile(outlook, outlook.checkpoint)
            recording = self._recording(conversation, route, compiled)
            exchange = Exchange(services.upstream, services.routes, route, destination, request, received)
            try:
                compiled = await self._relieved(outlook, compiled, recording, exchange)
                answer, compiled = await self._asked(compiled, exchange, recording)
                if answer.refused:
                    answer, compiled = await self._recovered(answer, compiled, outlook, recording, exchange)
                await self._announce(compiled, recording)
                if route.context_window is None:
                    services.model_lists.refresh(route.upstream, destination)
                await self._relay(answer, compiled, route, recording)
            finally:
                recording.abandon(Outcome(client.status, interrupted=True, error="ended without an answer"))
                await exchange.close()

    # --- stops of the line, in their order ---

    def _decoded(self, received: bytes) -> bytes:
        encoding = header_list(self.client.headers, b"content-encoding")
        if encoding is None:
            return received
        limit = self.services.settings.server.max_body_bytes
        try:
            return decode_body(received, encoding, limit)
        except BodyTooLargeError as error:
            raise body_too_large(limit) from error
        except UnsupportedEncodingError as error:
            raise unsupported_encoding(encoding.decode("latin-1")) from error
        except CorruptBodyError as error:
            raise unreadable_body(str(error)) from error

    async def _forward_unmanaged(self, received: bytes) -> None:
        """What the gateway cannot read, the provider may (R2.12)."""
        self.facts.degraded = "unmanaged"
        self.client.answer_headers.append((b"x-palimpsest-context", b"verbatim; degraded=unmanaged"))
        await self._unmanaged.forward(self.client, received)

    def _route(self, request: ChatRequest) -> Route:
        route = self.services.settings.route_for(request.model or _model_in_path(self.client.scope["path"]))
        mode = _MODES.get(header(self.client.headers, b"x-palimpsest-mode"))
        self.facts.route = route.name
        return route if mode is None else replace(route, mode=mode)

    def _tenant(self, route: Route) -> str:
        credential = check_credential(self.client.headers, route.upstream)
        if self.services.settings.tenancy.source == "single":
            return SINGLE
        return ANONYMOUS if credential is None else self.services.tenants.of(credential)

    def _recording(self, conversation: Conversation, route: Route, compiled: Compiled) -> Recording:
        """Begin to write the request, beside everything that follows (R4.2)."""
        headers, request = self.client.headers, conversation.request
        retries = header(headers, b"x-stainless-retry-count") or b"0"
        record = RequestRecord(
            tenant=conversation.tenant,
            session=explicit_session(headers, request, self.services.session_headers),
            fresh_session=f"ses_{self._random}",
            request_id=self.request_id,
            route=route.name,
            path=conversation.path,
            bodies=conversation.history,
            preamble=conversation.preamble,
            frame=dump_frame(frame_of(request)),
            at=time.time(),
            retry_count=int(retries) if retries.isdigit() and len(retries) < 10 else 0,
            sent=compiled.sent.to_log(),
        )
        refuse = self.services.settings.store.on_failure == "refuse"
        services = self.services
        return Recording(services.store, services.tasks, services.metrics, record, refuse=refuse)

    async def _relieved(
        self, outlook: Outlook, compiled: Compiled, recording: Recording, exchange: Exchange
    ) -> Compiled:
        """What is sent once a compaction that must come first has been tried (R6.1, R13.1)."""
        if not outlook.compacts and not outlook.is_over(compiled):
            return compiled
        if outlook.compacts:
            outlook = await self._compacted(outlook, recording, exchange)
            compiled = self.services.context.compile(outlook, outlook.checkpoint)
        if outlook.is_over(compiled):
            compiled = self.services.context.shorten(outlook, compiled) or compiled
        await recording.dispatch(compiled.sent.to_log())
        return compiled

    async def _asked(self, compiled: Compiled, exchange: Exchange, recording: Recording) -> tuple[Answer, Compiled]:
        """The provider's answer. The gateway's own errors say as well where the request was recorded (R2.11)."""
        try:
            return await exchange.ask(compiled)
        except GatewayError:
            await self._announce(compiled, recording)
            raise

    async def _recovered(
        self, first: Answer, compiled: Compiled, outlook: Outlook, recording: Recording, exchange: Exchange
    ) -> tuple[Answer, Compiled]:
        """One compaction and one more send after an input overflow; else the first error as it came (R10.2)."""
        services, route = self.services, outlook.route
        services.routes.learn_limit(route, first.verdict, compiled.after)
        if route.mode != "on" or not services.recoveries.may_begin(outlook.conversation, route):
            return first, compiled
        forced = await services.context.look(outlook.conversation, route, Trigger.PROVIDER)
        after = await self._compacted(forced, recording, exchange)
        relieved = services.context.compile(after, after.checkpoint)
        if relieved.sent == compiled.sent or after.is_over(relieved):
            # Recovery must not depend on a model (R10.3).
            relieved = services.context.shorten(after, relieved) or relieved
        if relieved.sent == compiled.sent:
            return first, compiled
        services.recoveries.used(outlook.conversation, route)
        # The first answer may have to be given yet, so what there is of it is read before its connection is given up.
        await first.hold()
        await exchange.close()
        await recording.dispatch(relieved.sent.to_log())
        second, sent = await exchange.ask(relieved)
        if second.refused:
            services.routes.learn_limit(route, second.verdict, sent.after)
            return first, compiled
        self.facts.retried = True
        return second, sent

    async def _compacted(self, outlook: Outlook, recording: Recording, exchange: Exchange) -> Outlook:
        """The outlook once all that is worth trying has been tried; a plan that had to retreat may leave more to do."""
        for _ in range(MOST_COMPACTIONS):
            if not outlook.compacts or await self._compact(outlook, recording, exchange) is None:
                break
            outlook = await self.services.context.look(outlook.conversation, outlook.route, Trigger.BUDGET)
        return outlook

    async def _compact(self, outlook: Outlook, recording: Recording, exchange: Exchange) -> Checkpoint | None:
        """Wait for a compaction, with signs of life for the client (R2.6)."""
        settings = self.services.settings

        def summariser(on_send: OnSend, on_usage: OnUsage) -> Summariser:
            return exchange.summariser(settings, on_send, on_usage)

        with self._waiting(outlook.conversation.request):
            return await self.services.context.compact(outlook, await recording.recorded(), summariser)

    async def _announce(self, compiled: Compiled, recording: Recording) -> None:
        """Wait until the request is committed, then say what was done with it (R2.11, R4.2)."""
        recorded = await recording.recorded()
        facts = self.facts
        facts.context = compiled.context
        facts.tokens_before, facts.tokens_after = compiled.before, compiled.after
        if compiled.sent.shortened:
            # No tool is offered yet that could read the rest (R11.4).
            facts.degraded = "unreadable_result"
        if recorded is None:
            facts.degraded = "store"
        else:
            facts.session = recorded.session
            self.client.answer_headers.append((b"x-palimpsest-session", _header_text(recorded.session)))
        self.client.answer_headers.append((b"x-palimpsest-context", facts.header))

    async def _relay(self, answer: Answer, compiled: Compiled, route: Route, recording: Recording) -> None:
        settlement = Settlement(self.services.routes, route, compiled)
        with self._alive(answer) as heartbeat:
            relay = Relay(
                client=self.client,
                recording=recording,
                heartbeat=heartbeat,
                settle=settlement,
                streams=compiled.conversation.request.stream,
                withholds_usage=compiled.withholds_usage,
                upstream=route.upstream.name,
            )
            await relay.run(answer)

    # --- signs of life ---

    def _waiting(self, request: ChatRequest) -> Heartbeat:
        """While nothing has been sent: after 30 s the headers leave (R2.6)."""
        server = self.services.settings.server
        after: float | None
        pending = [(b"x-palimpsest-context", b"pending")]
        if request.stream:
            beat, headers, after = COMMENT, [*EVENT_STREAM, *pending], server.keepalive_after
        else:
            beat, headers = BLANK, [*JSON, *pending]
            after = server.keepalive_after if server.json_keepalive else None
        return Heartbeat(self.client, self.services.tasks, beat, headers, after=after, every=server.keepalive_every)

    def _alive(self, answer: Answer) -> Heartbeat:
        """While a begun stream's upstream is silent (R2.6)."""
        server = self.services.settings.server
        after = server.idle_comment_after if answer.events is not None else None
        return Heartbeat(
            self.client, self.services.tasks, COMMENT, EVENT_STREAM, after=after, every=server.keepalive_every
        )

    def log_line(self, ended: str, seconds: float) -> None:
        """The one canonical line of this request (R15.4): no prompt text, no credential."""
        facts, client = self.facts, self.client
        kind = facts.context.split(";", 1)[0]
        self.services.metrics.request(facts.route, client.status, kind)
        self.services.metrics.tokens(facts.route, facts.tokens_before, facts.tokens_after)
        log.info(
            "request",
            request=self.request_id,
            session=facts.session,
            route=facts.route,
            status=client.status,
            ended=ended,
            context=facts.header.decode("utf-8", "replace"),
            tokens_before=facts.tokens_before,
            tokens_after=facts.tokens_after,
            bytes=client.delivered,
            milliseconds=round(seconds * 1000, 2),
        )


def _model_in_path(path: str) -> str | None:
    """The model that an Azure path names, for bodies that name none (R2.1)."""
    found = _DEPLOYMENT.search(path)
    return found["model"] if found else None


def _header_text(text: str) -> bytes:
    """Session ids are the client's own words: what no header can carry is replaced."""
    return "".join(char if " " <= char <= "~" else "?" for char in text).encode()
