"""The smallest JSON value that fits a JSON schema, for structured answers and for forced calls."""

from typing import Any

_MAX_DEPTH = 24


def minimal_instance(schema: dict[str, Any]) -> Any:
    """A value that fits the schema; of alternatives the first, of optional members none."""
    return _instance(schema, schema, 0)


def _instance(schema: Any, root: dict[str, Any], depth: int) -> Any:  # noqa: PLR0911 - one for each keyword
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if isinstance(schema.get("$ref"), str):
        return _instance(_resolve(schema["$ref"], root), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _instance(_simplest(schema[key]), root, depth + 1)
    if schema.get("allOf"):
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            value = _instance(part, root, depth + 1)
            merged |= value if isinstance(value, dict) else {}
        return merged
    return _of_type(schema, root, depth)


def _simplest(options: list[Any]) -> Any:
    """A null, where allowed, ends a recursive schema."""
    return next((option for option in options if option == {"type": "null"}), options[0])


def _of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = "null" if "null" in kind else kind[0]
    if kind == "object" or (kind is None and "properties" in schema):
        required = schema.get("required") or ()
        members = schema.get("properties") or {}
        return {name: _instance(members.get(name, {}), root, depth + 1) for name in required}
    if kind == "array":
        return [_instance(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems") or 0)]
    if kind in {"integer", "number"}:
        return max(schema.get("minimum", 0), 0) if "maximum" not in schema else schema.get("minimum", schema["maximum"])
    if kind == "boolean":
        return False
    return "x" * (schema.get("minLength") or 4) if kind == "string" else None


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    node: Any = root
    for step in reference.lstrip("#/").split("/"):
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) and step else node
    return node
