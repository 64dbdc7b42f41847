"""JSON as a lenient provider reads it: fast where possible, slower where the text is unusual (R2.12)."""

import json
from typing import Any

import orjson


def decode_json(data: bytes) -> Any:
    """The value of JSON text. Takes lone surrogates, NaN and a BOM. Raises ValueError for anything that is no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data.decode("utf-8-sig", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def encode_json(value: Any) -> bytes:
    """Compact JSON text. Lone surrogates, which UTF-8 cannot hold, are written as escapes."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
