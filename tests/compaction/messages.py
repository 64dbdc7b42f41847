"""Messages as JSON values, and how they are read."""

import json

from compaction.canonical import build_path, read_message


def read(message):
    return read_message(message, json.dumps(message).encode())


def canon(message):
    return read(message).canon


def loose(message):
    return read(message).loose


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content=None, *calls, **more):
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def call(arguments="{}", name="look", call_id="c1", **more):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def tool(call_id, content="found", **more):
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def text(value, **more):
    return {"type": "text", "text": value, **more}


def image(url, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def nested(depth):
    return '{"a":' * depth + "1" + "}" * depth


def path(*messages, tenant="t"):
    return build_path(tenant, [read(message).message(1) for message in messages])
