"""Where settings come from: a TOML file, the environment, arguments; merged with the origin of each value kept.

Knows nothing of what is set, only of its shape: tables of keys, given as pydantic models (R15.5).
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Loc: TypeAlias = tuple[str | int, ...]

PREFIX = "PALIMPSEST_"
IGNORED_PREFIX = "PALIMPSEST_TEST_"
CONFIG_VARIABLE = "PALIMPSEST_CONFIG"
HIDDEN_INPUT = "hidden_input"
"""The type of validation error whose input must not be shown."""
DEFAULT_FILE = Path("palimpsest.toml")


@dataclass(slots=True)
class Layers:
    """Values merged so far, later layers over earlier ones, where each came from, and what was wrong."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Loc, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, loc: tuple[str, ...], value: Any, origin: str) -> None:
        """Set the key at `loc` (table and key, or key alone)."""
        table = self.values
        for name in loc[:-1]:
            table = table.setdefault(name, {})
        table[loc[-1]] = value
        self.origins[loc] = origin

    def put_tree(self, tree: Mapping[str, Any], tables: Iterable[str], origin: str) -> None:
        """Set every key of a tree; the named `tables` are merged key by key, anything else is replaced whole."""
        known = set(tables)
        for name, value in tree.items():
            if name not in known:
                self.put((name,), value, origin)
            elif isinstance(value, Mapping):
                for key, inner in value.items():
                    self.put((name, key), inner, origin)
            else:
                self.problems.append(f"{name} ({origin}): expected a table, such as [{name}]")

    def origin_of(self, loc: Loc) -> str:
        """The source of the value at `loc`, or of the nearest one around it."""
        return next(
            (self.origins[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in self.origins), "arguments"
        )


def tables_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields of a model that are tables of their own."""
    return {
        name: info.annotation
        for name, info in model.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }


def variables_of(model: type[BaseModel], flat: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Every environment variable that sets something, with the key that it sets; `flat` are the short ones."""
    tables = tables_of(model)
    long = {
        f"{PREFIX}{name}__{key}".upper(): (name, key) for name, table in tables.items() for key in table.model_fields
    }
    plain = {f"{PREFIX}{name}".upper(): (name,) for name in model.model_fields if name not in tables}
    return {**plain, **long, **flat}


def read_file(
    environ: Mapping[str, str], layers: Layers, tables: Iterable[str], not_in_file: Mapping[str, str]
) -> None:
    """Read the TOML file that the environment names, or the default one if it is there.

    `not_in_file` maps keys that no file may hold to the variable that sets them.
    """
    named = environ.get(CONFIG_VARIABLE, "")
    path = Path(named) if named else DEFAULT_FILE
    if not named and not path.is_file():
        return
    origin = f"{path}, named by {CONFIG_VARIABLE}" if named else str(path)
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        layers.problems.append(f"{origin}: cannot be read ({error.strerror})")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        layers.problems.append(f"{origin}: no valid TOML: {error}")
    else:
        for name in tree.keys() & not_in_file.keys():
            del tree[name]
            layers.problems.append(f"{name} ({path}): belongs in no file; set {not_in_file[name]} in the environment")
        layers.put_tree(tree, tables, str(path))


def read_environment(
    environ: Mapping[str, str], layers: Layers, variables: Mapping[str, tuple[str, ...]], lists: Iterable[str]
) -> None:
    """Read the known variables; an unknown one with the gateway's prefix is a problem. Empty ones count as not set."""
    as_json = set(lists)
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name.startswith(IGNORED_PREFIX) or name == CONFIG_VARIABLE:
            continue
        if name not in variables:
            layers.problems.append(f"{name}: unknown variable{suggestion(name, [*variables, CONFIG_VARIABLE])}")
        elif value := environ[name].strip():
            _put_variable(layers, name, variables[name], value, as_list=variables[name][0] in as_json)


def _put_variable(layers: Layers, name: str, loc: tuple[str, ...], value: str, *, as_list: bool) -> None:
    earlier = layers.origins.get(loc, "")
    if earlier.startswith(PREFIX):
        layers.problems.append(f"{'.'.join(loc)}: set twice, by {earlier} and by {name}; keep one")
    elif not as_list:
        layers.put(loc, value, name)
    else:
        try:
            layers.put(loc, json.loads(value), name)
        except ValueError:
            layers.problems.append(f"{'.'.join(loc)} ({name}): expected a list as JSON, such as [...]")


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing where nothing known is near."""
    # The cut-off is low: a hint that is a little off does less harm than none.
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def describe(error: ValidationError, model: type[BaseModel], layers: Layers) -> list[str]:
    """What is wrong, one line for each problem: key, source, and what was expected."""
    return [_describe(details, model, layers) for details in error.errors(include_url=False)]


def _describe(details: ErrorDetails, model: type[BaseModel], layers: Layers) -> str:
    context = details.get("ctx", {})
    loc: Loc = details["loc"] or tuple(context.get("loc", ()))
    key = _dotted(loc)
    source = layers.origin_of(loc)
    if details["type"] == "extra_forbidden":
        return f"{key} ({source}): unknown key{suggestion(key, _known_keys(model, loc))}"
    if details["type"] == "missing":
        return f"{key} ({source}): missing; it has no default"
    message = details["msg"].replace("Input should be", "expected").partition(", unable to parse")[0]
    shown = "" if details["type"] == HIDDEN_INPUT else _got(details["input"])
    return f"{key} ({source}): {message}{shown}"


def _got(value: Any) -> str:
    # Only plain values are shown: a table would drown the message, and a URL may carry a password.
    if not isinstance(value, str | int | float) or "@" in str(value):
        return ""
    shown = repr(value)
    return f", got {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _dotted(loc: Loc) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _known_keys(model: type[BaseModel], loc: Loc) -> Sequence[str]:
    """Keys that may have been meant by `loc`: those of the same list item, else all keys of all tables."""
    if len(loc) > 1 and isinstance(loc[1], int):
        item = get_args(model.model_fields[str(loc[0])].annotation)[0]
        return [_dotted((*loc[:2], key)) for key in item.model_fields]
    tables = tables_of(model)
    return [*model.model_fields, *(f"{name}.{key}" for name, table in tables.items() for key in table.model_fields)]
