"""The provider behind the app: takes a request apart, decides, and hands back an answer to send."""

import asyncio
import base64
import hashlib
import random
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.simulator.dialects import DIALECTS, OPENAI, Dialect, Excess, Problem
from gateway.simulator.encodings import decoded
from gateway.simulator.faults import HEADER, NO_FAULTS, Faults, parse_faults
from gateway.simulator.jsonio import decode_json, encode_json
from gateway.simulator.received import Received, ReceivedLog
from gateway.simulator.rendering import Wanted, chunks, completion, usage_of
from gateway.simulator.replies import Reply, answer, make_reply, output_limit, request_seed
from gateway.simulator.script import Script, script_of
from gateway.simulator.sending import EVENT_STREAM, JSON, PacedResponse, data_event, json_pieces, stream_events
from gateway.simulator.settings import SimulatorSettings
from gateway.simulator.strict import check_body
from gateway.simulator.summariser import is_summary_request, parse_summarisers, summarise, summary_task
from gateway.simulator.tokens import PrefixCache, TokenCounter, input_tokens, prefix_items

Work = Callable[[Request, Received], Awaitable[Response]]
_CREATED = 1_700_000_000
_DIMENSIONS = 8
_STATUS_TEXTS = {
    401: "Incorrect API key provided.",
    429: "Rate limit reached for requests. Please try again in 1s.",
    503: "The server is overloaded or not ready yet.",
}
_SERVER_ERROR = "The server had an error while processing your request."


@dataclass(frozen=True, slots=True)
class _Call:
    """One chat request on its way: what arrived, what was read of it, and what goes wrong with its answer."""

    request: Request
    received: Received
    body: dict[str, Any]
    dialect: Dialect
    faults: Faults


class Provider:
    """The state of one simulated provider and its endpoints."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.received = ReceivedLog(settings.requests_kept, settings.bytes_kept)
        self._counter = TokenCounter()
        self._use(settings)

    def _use(self, settings: SimulatorSettings) -> None:
        """Takes settings on; sequences of faults and summarisers start anew, the prefix cache is empty."""
        self._summarisers = parse_summarisers(settings.summariser)
        self._faults = [parse_faults(text) for text in settings.faults]
        self._fault = parse_faults(settings.fault)
        self._chats = self._summaries = 0
        self._prefixes = PrefixCache()
        self.settings = settings

    def recorded(self, work: Work) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint whose requests `/sim/requests` shows."""

        async def endpoint(request: Request) -> Response:
            body = await request.body()
            path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1").partition("?")[0]
            query = request.scope["query_string"].decode("latin-1")
            headers: dict[str, str] = {}
            for name, value in request.headers.items():
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
            target = f"{path}?{query}" if query else path
            received = self.received.add(request.method, target, headers, body)
            if self.settings.api_key and not _carries_key(headers, self.settings.api_key):
                response: Response = self._refusal(Problem(401, _STATUS_TEXTS[401]), received)
            else:
                response = await work(request, received)
            received.status = response.status_code
            if not isinstance(response, PacedResponse):
                received.outcome = "complete"
            return response

        return endpoint

    # -- chat ---------------------------------------------------------------------------------------------------

    async def chat(self, request: Request, received: Received) -> Response:
        """`POST .../chat/completions`."""
        dialect = DIALECTS[self.settings.dialect]
        try:
            faults = parse_faults(request.headers.get(HEADER, ""))
            body = decode_json(decoded(received.body, request.headers.get("content-encoding", "")))
        except ValueError as error:
            return self._refusal(Problem(400, f"We could not parse the JSON body of your request. ({error})"), received)
        if isinstance(body, dict) and "model" in request.path_params:
            body.setdefault("model", request.path_params["model"])
        settings = self.settings
        problem = check_body(body, dialect, alternate=settings.alternate, refuse=settings.refuse_members)
        if problem:
            return self._refusal(problem, received, "strict")
        received.summary = is_summary_request(body)
        if not received.summary:
            faults = self._next_faults(faults)
        call = _Call(request, received, body, dialect, faults)
        return self._summary(call) if received.summary else await self._ordinary(call)

    def _next_faults(self, asked: Faults) -> Faults:
        """The faults of this ordinary request: asked by header, else next in the sequence, else drawn."""
        index, self._chats = self._chats, self._chats + 1
        if asked != NO_FAULTS:
            return asked
        if index < len(self._faults):
            return self._faults[index]
        drawn = random.Random(index).random() < self.settings.fault_rate
        return self._fault if drawn else NO_FAULTS

    async def _ordinary(self, call: _Call) -> Response:
        script = script_of(call.body["messages"])
        await asyncio.sleep(self.settings.latency + script.number("delay", 0))
        problem = _asked_problem(call.faults, script)
        if problem:
            return self._refusal(problem, call.received, "asked")
        admitted = self._admit(call)
        if isinstance(admitted, Response):
            return admitted
        tokens, cached, room = admitted
        if call.faults.error_first_event or call.faults.error_200:
            return self._disguised(call, Problem(500, _SERVER_ERROR), first_event=call.faults.error_first_event)
        reply = answer(call.body, request_seed(call.body), room)
        return self._answer(call, reply, usage_of(reply, tokens, cached))

    def _admit(self, call: _Call) -> tuple[int, int, int] | Response:
        """Input tokens, cached tokens and room for output; or the dialect's overflow error (the window is real)."""
        body, dialect = call.body, call.dialect
        factor = self.settings.token_factor or dialect.token_factor
        tokens = input_tokens(body, self._counter, factor)
        call.received.input_tokens = tokens.total
        window = self.settings.window_of(body["model"])
        excess = Excess(tokens.total, tokens.tools, output_limit(body), window)
        if dialect.exceeds(excess):
            call.received.problem = "overflow"
            if call.faults.overflow_first_event or call.faults.overflow_200:
                return self._disguised(call, dialect.overflow(excess), first_event=call.faults.overflow_first_event)
            return self._refusal(dialect.overflow(excess), call.received, "overflow")
        cached = 0
        if self.settings.prefix_cache:
            scope = f"{body['model']}\0{_credential(call.received.headers)}"
            cached = self._prefixes.cached_tokens(scope, prefix_items(body, tokens))
        return tokens.total, cached, max(window - tokens.total, 1)

    def _summary(self, call: _Call) -> Response:
        admitted = self._admit(call)
        if isinstance(admitted, Response):
            return admitted
        tokens, cached, _ = admitted
        name = self._summarisers[min(self._summaries, len(self._summarisers) - 1)]
        self._summaries += 1
        seed = request_seed(call.body)
        outcome = summarise(name, summary_task(call.body, tokens, seed))
        if outcome.faults:
            if outcome.faults.status:
                return self._refusal(_status_problem(outcome.faults.status), call.received, "asked")
            call = replace(call, faults=outcome.faults)
        reply = make_reply(call.body, seed, (outcome.choice,) if outcome.choice else ())
        return self._answer(call, reply, usage_of(reply, tokens, cached))

    def _answer(self, call: _Call, reply: Reply, usage: dict[str, Any]) -> Response:
        wanted = Wanted.of(call.body)
        headers = {"x-request-id": f"req_{reply.id[-24:]}", "x-ratelimit-limit-requests": "10000"}
        if call.faults.cookie:
            headers["set-cookie"] = f"sim={call.received.n}; Path=/"
        if call.body.get("stream"):
            error = _event_error(call.dialect, Problem(500, _SERVER_ERROR))
            parts = chunks(reply, usage, wanted)
            events = stream_events(parts, call.faults, call.dialect.comment, error)
            media_type = EVENT_STREAM
        else:
            events = json_pieces(encode_json(completion(reply, usage, wanted)), call.faults)
            media_type = JSON
        return self._paced(call.received, events, media_type=media_type, headers=headers, faults=call.faults)

    def _disguised(self, call: _Call, problem: Problem, *, first_event: bool) -> Response:
        """An error behind a status of 200: as the first event of a stream, or as JSON."""
        call.received.problem = call.received.problem or "asked"
        error = _event_error(call.dialect, problem)
        if first_event and call.body.get("stream"):
            return self._paced(call.received, [data_event(error)], media_type=EVENT_STREAM)
        return self._paced(call.received, [encode_json(error)])

    def _refusal(
        self, problem: Problem, received: Received, why: str = "refused", dialect: Dialect | None = None
    ) -> Response:
        received.problem = why
        dialect = dialect or DIALECTS[self.settings.dialect]
        headers = {"x-request-id": f"req_{hashlib.sha256(received.body).hexdigest()[:24]}"}
        if problem.status in {429, 503}:
            headers["retry-after"] = "1"
        body = encode_json(dialect.envelope(problem))
        return self._paced(received, [body], status=problem.status, headers=headers)

    def _paced(self, received: Received, pieces: list[bytes], **form: Any) -> Response:
        def on_end(outcome: str) -> None:
            received.outcome = outcome

        return PacedResponse(pieces, on_end=on_end, **form)

    # -- the rest of the API ------------------------------------------------------------------------------------

    async def list_models(self, _: Request, received: Received) -> Response:
        """`GET /models`, with the window where this dialect tells it."""
        data = [self._model(name) for name in (*self.settings.models, *self.settings.model_windows)]
        return self._paced(received, [encode_json({"object": "list", "data": data})])

    async def show_model(self, request: Request, received: Received) -> Response:
        """`GET /models/{model}`."""
        name = request.path_params["model"]
        if name not in {*self.settings.models, *self.settings.model_windows}:
            problem = Problem(404, f"The model '{name}' does not exist", code="model_not_found", param="model")
            return self._refusal(problem, received)
        return self._paced(received, [encode_json(self._model(name))])

    def _model(self, name: str) -> dict[str, Any]:
        dialect = DIALECTS[self.settings.dialect]
        shown = dialect.window_field(self.settings.window_of(name)) if self.settings.model_info else {}
        return {"id": name, "object": "model", "created": _CREATED, "owned_by": dialect.owner} | shown

    async def embeddings(self, _: Request, received: Received) -> Response:
        """`POST /embeddings`: small vectors that are functions of the text."""
        try:
            body = decode_json(decoded(received.body, received.headers.get("content-encoding", "")))
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        except (ValueError, KeyError, TypeError):
            return self._refusal(Problem(400, "'$.input' is invalid.", param="input"), received)
        packed = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(text, packed=packed)}
            for index, text in enumerate(texts)
        ]
        tokens = sum(self._counter.count([text if isinstance(text, str) else str(text) for text in texts]))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        value = {"object": "list", "data": data, "model": body.get("model"), "usage": usage}
        return self._paced(received, [encode_json(value)])

    async def echo(self, _: Request, received: Received) -> Response:
        """`/echo`, any method: what arrived, for tests of pass-through."""
        value = {
            "method": received.method,
            "target": received.path,
            "headers": received.headers,
            "body_bytes": len(received.body),
            "body_sha256": hashlib.sha256(received.body).hexdigest(),
        }
        return self._paced(received, [encode_json(value)])

    async def unknown(self, request: Request, received: Received) -> Response:
        """Everything else: 404 in OpenAI's envelope."""
        problem = Problem(404, f"Invalid URL ({request.method} {request.url.path})")
        return self._refusal(problem, received, dialect=OPENAI)

    # -- for tests ----------------------------------------------------------------------------------------------

    async def show_requests(self, request: Request) -> Response:
        """`GET /sim/requests?after=N&limit=M`."""
        query = request.query_params
        limit = int(query["limit"]) if query.get("limit", "").isdigit() else None
        after = int(query["after"]) if query.get("after", "").isdigit() else 0
        return _json([entry.as_json() for entry in self.received.after(after, limit)])

    async def clear_requests(self, _: Request) -> Response:
        """`DELETE /sim/requests`."""
        self.received.clear()
        return _json({"cleared": True})

    async def show_stats(self, _: Request) -> Response:
        """`GET /sim/stats`."""
        return _json(self.received.stats())

    async def reset(self, _: Request) -> Response:
        """`POST /sim/reset`: forgets requests and prefixes, starts sequences anew."""
        self.received.clear()
        self._use(self.settings)
        return _json({"reset": True})

    async def change_settings(self, request: Request) -> Response:
        """`PUT /sim/settings` with some members of `SimulatorSettings`."""
        known = {field.name for field in fields(SimulatorSettings)}
        try:
            changes = decode_json(await request.body())
            values: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()
            }
            self._use(replace(self.settings, **values))
        except (ValueError, TypeError, AttributeError) as error:
            return _json({"error": {"message": f"{error}; known settings: {', '.join(sorted(known))}"}}, 400)
        return _json({"changed": sorted(changes)})


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode_json(value), status, media_type=JSON)


def _event_error(dialect: Dialect, problem: Problem) -> Any:
    error = dialect.envelope(problem)
    return error[0] if isinstance(error, list) else error


def _status_problem(status: int) -> Problem:
    return Problem(status, _STATUS_TEXTS.get(status, _SERVER_ERROR if status >= 500 else "Bad request."))


def _asked_problem(faults: Faults, script: Script) -> Problem | None:
    status = faults.status or int(script.number("status", 0))
    return _status_problem(status) if 400 <= status <= 599 else None


def _credential(headers: dict[str, str]) -> str:
    return headers.get("authorization") or headers.get("x-api-key") or headers.get("api-key") or ""


def _carries_key(headers: dict[str, str], key: str) -> bool:
    return _credential(headers).removeprefix("Bearer ") == key


def _vector(text: Any, *, packed: bool) -> Any:
    digest = hashlib.sha256(encode_json(text)).digest()
    values = [round(byte / 255 - 0.5, 4) for byte in digest[:_DIMENSIONS]]
    return base64.b64encode(struct.pack(f"<{_DIMENSIONS}f", *values)).decode() if packed else values
