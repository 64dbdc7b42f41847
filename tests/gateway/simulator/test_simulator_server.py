"""The simulated provider over real sockets, with the official SDK (R17.1)."""

import base64
import gzip
import json
import socket
import threading
import warnings

import brotli
import httpx
import openai
import pytest
import zstandard

from gateway.simulator import SimulatorSettings, ThreadedServer, create_simulator
from gateway.simulator.settings import DIALECT_NAMES
from gateway.simulator.summariser import HEADINGS

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


HTTP = httpx.Client()


@pytest.fixture(scope="module", autouse=True)
def _one_http_client():
    yield
    HTTP.close()


@pytest.fixture(scope="module")
def server():
    with ThreadedServer(create_simulator(SimulatorSettings(window=2000))) as running:
        yield running


@pytest.fixture
def url(server):
    HTTP.post(f"{server.url}/sim/reset").raise_for_status()
    return server.url


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as made:
        yield made


def user(text):
    return [{"role": "user", "content": text}]


def post(url, fault="", **members):
    body = {"model": "m", "messages": user("[[words:30]]"), **members}
    return HTTP.post(f"{url}/v1/chat/completions", json=body, headers={"x-sim-fault": fault})


def events(text):
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def test_a_stream_says_the_same_as_json(client):
    """R17.1"""
    asked = {
        "model": "m",
        "messages": user('[[say:here it is]] [[call:f {"path": "a/long/enough/path"}]] [[call:f]]'),
        "tools": TOOLS,
        "n": 2,
    }
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        stream.until_done()
        streamed = stream.get_final_completion()
    assert (streamed.id, streamed.created) == (whole.id, whole.created)
    for left, right in zip(streamed.choices, whole.choices, strict=True):
        assert left.message.content == right.message.content == "here it is"
        assert [(c.id, c.function.name, c.function.arguments) for c in left.message.tool_calls] == [
            (c.id, c.function.name, c.function.arguments) for c in right.message.tool_calls
        ]
        assert left.finish_reason == right.finish_reason == "tool_calls"


def test_usage_comes_with_a_stream_only_when_asked_for(url):
    """R2.5"""
    plain = events(post(url, stream=True).text)
    asked = events(post(url, stream=True, stream_options={"include_usage": True}).text)
    assert plain[-1] == asked[-1] == "[DONE]"
    assert not any("usage" in event for event in plain)
    last = json.loads(asked[-2])
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert json.loads(asked[0])["choices"][0]["delta"]["role"] == "assistant"


def test_logprobs_and_structured_answers(client):
    """R17.1"""
    choice = client.chat.completions.create(
        model="m", messages=user("[[words:4]]"), logprobs=True, top_logprobs=2
    ).choices[0]
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in choice.logprobs.content)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    answer = client.chat.completions.create(model="m", messages=user("x"), response_format=form)
    assert json.loads(answer.choices[0].message.content).keys() == {"city"}


def test_tool_results_are_read(client):
    """R17.1"""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*user("[[call:f]]"), {"role": "assistant", "content": None, "tool_calls": [call]}]

    def answer(result):
        results = [{"role": "tool", "tool_call_id": "a", "content": result}]
        return client.chat.completions.create(model="m", messages=messages + results, tools=TOOLS).choices[0].message

    assert "digest" in answer("42").content
    assert answer("42").content != answer("43").content


@pytest.mark.parametrize("dialect", DIALECT_NAMES)
def test_the_window_is_real_in_every_dialect(dialect):
    """Too much input is refused with a stated limit; what fits is answered; the model list tells the window (R5.1)."""
    settings = SimulatorSettings(window=1000, dialect=dialect)
    with ThreadedServer(create_simulator(settings)) as running:
        fits = post(running.url, messages=user("word " * 600))
        refused = post(running.url, messages=user("word " * 1100))
        listed = HTTP.get(f"{running.url}/v1/models").json()["data"][0]
        stats = HTTP.get(f"{running.url}/sim/stats").json()
    assert fits.status_code == 200
    assert refused.status_code == 400
    assert "1000" in refused.text
    assert stats["overflows"] == 1
    assert ("1000" in json.dumps(listed)) == (dialect != "openai")


def test_model_info_can_be_withheld():
    """R17.1"""
    with ThreadedServer(create_simulator(SimulatorSettings(dialect="vllm", model_info=False))) as running:
        listed = HTTP.get(f"{running.url}/v1/models").json()["data"][0]
        assert listed == HTTP.get(f"{running.url}/v1/models/sim-model").json()
        assert HTTP.get(f"{running.url}/models/other").status_code == 404
    assert listed.keys() == {"id", "object", "created", "owned_by"}


def test_cached_tokens_are_the_shared_prefix(client):
    """R17.1"""
    first = user("word " * 300)
    longer = [*first, {"role": "assistant", "content": "yes"}, *user("more")]

    def cached(messages):
        usage = client.chat.completions.create(model="m", messages=messages).usage
        return usage.prompt_tokens_details.cached_tokens

    assert [cached(first), cached(longer), cached(user("other"))] == [0, 256, 0]


def test_the_received_bytes_are_shown_as_they_came(url):
    """`GET /sim/requests` returns the exact bodies, before any decoding (issue 2)."""
    body = b'{ "model":"m", "messages":[{"role":"user","content":"caf\\u00e9"}],"x":1.0}'
    packed = {"gzip": gzip.compress(body), "br": brotli.compress(body), "zstd": zstandard.compress(body), "": body}
    for encoding, data in packed.items():
        headers = {"content-encoding": encoding} if encoding else {}
        assert HTTP.post(f"{url}/v1/chat/completions?a=%20b", content=data, headers=headers).status_code == 200
    shown = HTTP.get(f"{url}/sim/requests").json()
    assert [base64.b64decode(entry["body_base64"]) for entry in shown] == list(packed.values())
    assert shown[0]["path"] == "/v1/chat/completions?a=%20b"
    assert shown[0]["headers"]["content-encoding"] == "gzip"
    assert {"status": 200, "summary": False}.items() <= shown[0].items()
    assert shown[0]["input_tokens"] > 0
    later = HTTP.get(f"{url}/sim/requests", params={"after": shown[1]["n"], "limit": 1}).json()
    assert later == shown[2:3]
    HTTP.delete(f"{url}/sim/requests")
    assert HTTP.get(f"{url}/sim/requests").json() == []


@pytest.mark.parametrize("streaming", [False, True])
def test_a_cut_answer_has_no_end(url, streaming):
    """R17.1"""
    with pytest.raises(httpx.RemoteProtocolError):
        post(url, fault="cut:2", stream=streaming)
    assert HTTP.get(f"{url}/sim/requests").json()[-1]["outcome"] == "cut"


def test_stream_faults_change_what_they_name(url):
    """R17.1"""
    whole = post(url, stream=True)
    bytewise = post(url, fault="split:1", stream=True)
    assert bytewise.content == whole.content
    assert post(url, fault="gzip", stream=True).content == whole.content
    assert post(url, fault="slow:1", stream=True).content == whole.content
    assert post(url, fault="no-done", stream=True).content == whole.content.removesuffix(b"data: [DONE]\n\n")
    assert post(url, fault="crlf", stream=True).content == whole.content.replace(b"\n", b"\r\n")
    assert post(url, fault="cr", stream=True).content == whole.content.replace(b"\n", b"\r")
    commented = post(url, fault="comments", stream=True).text
    assert commented.startswith(": still here")
    assert events(commented) == events(whole.text)
    broken = events(post(url, fault="malformed", stream=True).text)
    assert sum(not event.endswith(("}", "]")) for event in broken) == 1
    beside = events(post(url, fault="usage-beside", stream=True, stream_options={"include_usage": True}).text)
    assert json.loads(beside[-2])["choices"][0]["finish_reason"] == "stop"
    assert json.loads(beside[-2])["usage"]["total_tokens"] > 0
    after_two = events(post(url, fault="error-event:2", stream=True).text)
    assert len(after_two) == 3
    assert "error" in json.loads(after_two[-1])


def test_error_faults(url):
    """R17.1"""
    limited = post(url, fault="429")
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "1")
    assert post(url, fault="500").status_code == 500
    assert post(url, messages=user("[[status:503]]")).status_code == 503
    first = post(url, fault="error-first-event", stream=True)
    assert (first.status_code, list(json.loads(events(first.text)[0]))) == (200, ["error"])
    assert post(url, fault="200-error").json().keys() == {"error"}
    assert post(url, fault="overflow-200").json()["choices"]
    too_long = post(url, fault="overflow-first-event", stream=True, messages=user("word " * 3000))
    assert too_long.status_code == 200
    assert json.loads(events(too_long.text)[0])["error"]["code"] == "context_length_exceeded"
    assert post(url, fault="nonsense").status_code == 400


def test_a_client_that_leaves_is_noticed(url):
    """R2.9"""
    for fault in ("hang", "slow:5000"):
        with pytest.raises(httpx.TimeoutException):
            HTTP.post(
                f"{url}/v1/chat/completions",
                json={"model": "m", "messages": user("x")},
                headers={"x-sim-fault": fault},
                timeout=0.1,
            )
    for _ in range(100):
        outcomes = [entry["outcome"] for entry in HTTP.get(f"{url}/sim/requests").json()]
        if "open" not in outcomes:
            break
        threading.Event().wait(0.02)
    assert outcomes == ["disconnected", "disconnected"]


def test_a_hanging_stream_begins_and_falls_silent(url):
    """R17.1"""
    body = {"model": "m", "messages": user("x"), "stream": True}
    headers = {"x-sim-fault": "hang:1"}
    with HTTP.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=0.3) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        with pytest.raises(httpx.ReadTimeout):
            list(lines)


def test_faults_and_summarisers_come_in_sequence():
    """R17.1"""
    instruction = {"role": "system", "content": "\n".join(HEADINGS)}
    summary = [instruction, *user("[user]\nPlease book HAT123 for me.\n" * 20)]
    settings = SimulatorSettings(faults=("429", "", "500"), summariser="four_sections,honest", latency=0.001)
    with ThreadedServer(create_simulator(settings)) as running:
        assert [post(running.url).status_code for _ in range(4)] == [429, 200, 500, 200]
        texts = [
            post(running.url, messages=summary, max_tokens=500).json()["choices"][0]["message"]["content"]
            for _ in range(3)
        ]
        assert [text.count("## ") for text in texts] == [4, 5, 5]
        assert HTTP.get(f"{running.url}/sim/stats").json()["by_kind"] == {"chat": 4, "summary": 3, "other": 0}
        changed = HTTP.put(f"{running.url}/sim/settings", json={"fault": "503", "fault_rate": 1, "faults": []})
        assert changed.status_code == 200
        assert post(running.url).status_code == 503
        assert HTTP.put(f"{running.url}/sim/settings", json={"nonsense": 1}).status_code == 400


def test_the_rest_of_the_api(url, client):
    """R2.1: what a gateway passes through unmanaged."""
    one, two = client.embeddings.create(model="e", input=["a", "b"]).data
    floats = client.embeddings.create(model="e", input="a", encoding_format="float").data[0]
    assert one.embedding == pytest.approx(floats.embedding)
    assert one.embedding != two.embedding
    echoed = HTTP.put(f"{url}/v1/echo?x=%2F", content=b"body").json()
    assert (echoed["method"], echoed["target"], echoed["body_bytes"]) == ("PUT", "/v1/echo?x=%2F", 4)
    missing = HTTP.get(f"{url}/v1/files")
    assert missing.status_code == 404
    assert missing.json()["error"].keys() == {"message", "type", "param", "code"}
    azure = f"{url}/openai/deployments/gpt/chat/completions?api-version=1"
    assert HTTP.post(azure, json={"messages": user("x")}).json()["model"] == "gpt"
    assert HTTP.post(f"{url}/chat/completions", content=b"[1").status_code == 400


def test_a_key_is_asked_for_where_one_is_set():
    """R17.1"""
    with ThreadedServer(create_simulator(SimulatorSettings(api_key="right"))) as running:
        statuses = [
            HTTP.get(f"{running.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code
            for key in ("wrong", "right")
        ]
    assert statuses == [401, 200]


def test_a_server_stops_though_a_request_is_open_and_without_warnings():
    """A test that leaves a request behind can still end."""
    before = threading.active_count()
    body = json.dumps({"model": "m", "messages": user("x")}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-sim-fault: hang\r\ncontent-length: {len(body)}\r\n\r\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        running = ThreadedServer(create_simulator(SimulatorSettings())).start()
        with socket.create_connection((running.host, running.port)) as held:
            held.sendall(head.encode() + body)
            while not HTTP.get(f"{running.url}/sim/stats").json()["received"]:
                pass
            running.stop()
            while held.recv(4096):
                pass
    assert threading.active_count() == before


def test_an_app_that_cannot_start_is_an_error():
    """Nobody waits for a server that will never answer."""

    async def broken(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(RuntimeError, match="did not start"):
        ThreadedServer(broken).start()
