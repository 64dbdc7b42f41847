"""The canned upstream: nginx answers every chat completion from its configuration, so that it is never the bottleneck.

The content of an answer is made of the request's `x-bench-reply`, so that the load generator knows it beforehand and can
echo it; its prompt tokens are the request's `x-bench-tokens`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.machine import free_port, tool
from tests.bench.processes import stop, wait_for_port
from tests.bench.workload import LONG_ANSWER, LONG_MARK, SHORT_ANSWER, filler

PIECES = 20
_CONFIG = """
daemon off;
master_process off;
pid nginx.pid;
error_log error.log error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    server_tokens off;
    keepalive_requests 100000000;
    keepalive_timeout 300s;
    client_max_body_size 8m;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    map $http_x_bench_tokens $tokens {{ default $http_x_bench_tokens; "" 10; }}
    map $http_x_bench_reply $filler {{ default "{short}"; "~^{mark}" "{long}"; }}
    map $http_x_bench_reply $deltas {{ default '{short_deltas}'; "~^{mark}" '{long_deltas}'; }}
    map $request_id $head {{ default '"id":"chatcmpl-$request_id","created":1764547200,"model":"gpt-4.1-mini"'; }}
    map $tokens $usage {{ default '{{"prompt_tokens":$tokens,"completion_tokens":12,"total_tokens":$tokens}}'; }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{ default_type application/json; return 404 '{{"error":{{"message":"unknown","code":404}}}}'; }}
        location = /v1/models {{
            default_type application/json;
            return 200 '{{"object":"list","data":[{{"id":"gpt-4.1-mini","object":"model","context_length":1047576}}]}}';
        }}
        location = /v1/chat/completions {{
            if ($http_accept = "text/event-stream") {{ rewrite ^ /stream last; }}
            default_type application/json;
            return 200 '{answer}';
        }}
        location = /stream {{
            internal;
            default_type text/event-stream;
            # A filter that changes nothing: the answer is then chunked, as streams are.
            sub_filter_types text/event-stream;
            sub_filter "no such text" "";
            return 200 '{stream}';
        }}
    }}
}}
"""
_MESSAGE = '{"role":"assistant","content":"Answer $http_x_bench_reply. $filler","refusal":null}'
_ANSWER = (
    '{$head,"object":"chat.completion","choices":[{"index":0,"message":'
    + _MESSAGE
    + ',"logprobs":null,"finish_reason":"stop"}],"usage":$usage}'
)


def _event(delta: str, finish: str = "null") -> str:
    return f'data: {{$head,"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'


def _deltas(text: str) -> str:
    size = -(-len(text) // PIECES)
    return "".join(_event(f'{{"content":"{text[at : at + size]}"}}') for at in range(0, len(text), size))


def _stream() -> str:
    """A stream whose deltas join to the content of the plain answer. Usage comes last, whether asked for or not."""
    first = _event('{"role":"assistant","content":"Answer $http_x_bench_reply. "}')
    last = _event("{}", '"stop"') + 'data: {$head,"choices":[],"usage":$usage}\n\ndata: [DONE]\n\n'
    return f"{first}${{deltas}}{last}"


def config(port: int) -> str:
    """The text of nginx's configuration."""
    short, long = filler(SHORT_ANSWER), filler(LONG_ANSWER)
    return _CONFIG.format(
        port=port,
        answer=_ANSWER,
        stream=_stream(),
        mark=LONG_MARK,
        short=short,
        long=long,
        short_deltas=_deltas(short),
        long_deltas=_deltas(long),
    )


@contextmanager
def canned_upstream(folder: Path) -> Iterator[str]:
    """A running nginx with its files in `folder`; its URL. Raises NotPossibleError if it does not start."""
    port = free_port()
    folder.mkdir()
    (folder / "nginx.conf").write_text(config(port))
    command = [tool("nginx"), "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_for_port(process, port, "nginx")
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)
