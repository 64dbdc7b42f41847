"""Every setting, with its default: one frozen value, from arguments, environment and one TOML file (R15.5).

`config/gateway.toml` is the reference for people; a test holds both together.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.cache import GenerationCache
from gateway.settings_sources import (
    HIDDEN_INPUT,
    Layers,
    describe,
    read_environment,
    read_file,
    suggestion,
    tables_of,
    variables_of,
)

DEFAULT_UPSTREAM = "default"
UPSTREAM_VARIABLE = "PALIMPSEST_UPSTREAM"
SECRET_VARIABLE = "PALIMPSEST_SECRET"  # noqa: S105 - the name of the variable, not a secret
FLAT_VARIABLES = {
    "PALIMPSEST_HOST": ("server", "host"),
    "PALIMPSEST_PORT": ("server", "port"),
    "PALIMPSEST_STORE_URL": ("store", "url"),
    "PALIMPSEST_LOG_LEVEL": ("log", "level"),
    UPSTREAM_VARIABLE: ("upstream",),
}
LISTS = ("upstreams", "routes", "session_headers")
SESSION_HEADERS = (
    "thread-id",
    "x-session-id",
    "x-session-affinity",
    "x-opencode-session",
    "agent-session-id",
    "x-task-id",
    "session-id",
    "session_id",
    "conversation_id",
    "x-claude-code-session-id",
    "x-openwebui-chat-id",
    "x-conversation-id",
    "x-litellm-session-id",
    "helicone-session-id",
)
CACHED_ROUTES = 1024
MIN_SECRET = 16
SQLITE_PREFIX = "sqlite:///"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class SettingsError(Exception):
    """Settings that cannot be used. The message is for people and lists every problem, one a line."""


def _no_bool(value: Any) -> Any:
    # TOML's `true` is no number, though Python would take it for 1.
    if isinstance(value, bool):
        raise PydanticCustomError("number", "expected a number")
    return value


def _check_base_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PydanticCustomError("base_url", "expected a URL such as https://api.openai.com/v1")
    if parts.username or parts.password or parts.query or parts.fragment or re.search(r"\s", url):
        raise PydanticCustomError("base_url", "expected a URL without user name, query, fragment or blanks")
    return url


def _check_store_url(url: str) -> str:
    if not url.startswith(SQLITE_PREFIX) or url == SQLITE_PREFIX:
        raise PydanticCustomError("store_url", "expected sqlite:///relative/file.db or sqlite:////absolute/file.db")
    return url


def _check_header(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise PydanticCustomError("header", "expected the name of an HTTP header")
    return name.lower()


def _check_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < MIN_SECRET:
        raise PydanticCustomError(HIDDEN_INPUT, "expected at least {count} characters", {"count": MIN_SECRET})
    return secret


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
Tokens = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(_no_bool), Field(gt=0)]
Share = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1)]
Mode = Literal["on", "observe", "off"]
CheckpointRole = Literal["user", "system", "developer"]


class Table(BaseModel):
    """A table of settings: frozen, and a key that nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class ServerSettings(Table):
    """`[server]`: where the gateway listens, and its patience. Times are seconds."""

    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65_535)] = 8080
    max_body_bytes: Tokens = 64 * 1024 * 1024
    json_keepalive: bool = False
    keepalive_after: Seconds = 30.0
    keepalive_every: Seconds = 5.0
    idle_comment_after: Seconds = 15.0
    shutdown_grace: Seconds = 30.0
    idle_keepalive: Seconds = 75.0


class StoreSettings(Table):
    """`[store]`: where the canonical history is kept, and what happens if it cannot be written (R4.4)."""

    url: Annotated[str, AfterValidator(_check_store_url)] = "sqlite:///palimpsest.db"
    on_failure: Literal["serve", "refuse"] = "serve"

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return Path(self.url.removeprefix(SQLITE_PREFIX))


class Upstream(Table):
    """One of `[[upstreams]]`: a provider. `auth = "none"` is a back end that wants no credential (R14.1)."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    base_url: Annotated[str, AfterValidator(_check_base_url)]
    api_key_env: str | None = None
    auth: Literal["credential", "none"] = "credential"
    forward_credential: bool = False
    connect_timeout: Seconds = 10.0
    read_timeout: Seconds = 600.0


class RouteSettings(Table):
    """One of `[[routes]]`: what differs for the models whose name matches. None: as asked, or as set elsewhere."""

    match: Annotated[str, Field(min_length=1)]
    upstream: str | None = None
    model: str | None = None
    context_window: Tokens | None = None
    max_input_tokens: Tokens | None = None
    checkpoint_role: CheckpointRole = "user"
    merge_consecutive: bool = False
    content_parts: bool = True
    supports_tools: bool = True
    include_usage: bool = True
    mode: Mode | None = None


class CompactionSettings(Table):
    """`[compaction]`: when and how much (SPEC 6). Shares are of high water, times are seconds."""

    mode: Mode = "on"
    soft: Share = 0.8
    target: Share = 0.6
    min_gain: Share = 0.1
    keep_recent_turns: Count = 0
    keep_recent_tokens: Share = 0.2
    min_mid_turn_steps: Tokens = 2
    background: bool = True
    model: str | None = None
    fold: bool = True
    summary_timeout: Seconds = 60.0
    timeout: Seconds = 180.0
    on_anchor_change: Literal["session", "append"] = "session"


class ToolResultSettings(Table):
    """`[tool_results]`: above how many tokens a result counts as large (R11.1)."""

    max_tokens: Tokens = 2048


class LogSettings(Table):
    """`[log]`: what is written to standard output. `content = true` allows prompt text in it (R15.4)."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"
    content: bool = False


class TenancySettings(Table):
    """`[tenancy]`: what tells tenants apart: their credential, or nothing on one person's machine (R14.1)."""

    source: Literal["credential", "single"] = "credential"


@dataclass(frozen=True, slots=True)
class Route:
    """Where one model's requests go, with everything that is set for it (SPEC 1: route)."""

    upstream: Upstream
    asked: str | None
    """The model as the client names it."""
    model: str | None
    """The model as the upstream is asked for it; differs from `asked` where a route renames it."""
    api_key: str | None = field(repr=False)
    """The operator's credential for the upstream, from its `api_key_env`."""
    forwards_credential: bool
    """Whether the client's provider credential may go there (R9.8)."""
    context_window: int | None
    max_input_tokens: int | None
    checkpoint_role: CheckpointRole
    merge_consecutive: bool
    content_parts: bool
    supports_tools: bool
    include_usage: bool
    mode: Mode

    @property
    def name(self) -> str:
        """The route's identity, under which everything learned about a provider is kept."""
        return f"{self.upstream.name}/{self.model or ''}"


class Settings(Table):
    """All settings. Build it with `load_settings`, or from keyword arguments in tests."""

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    upstreams: tuple[Upstream, ...] = ()
    routes: tuple[RouteSettings, ...] = ()
    compaction: CompactionSettings = CompactionSettings()
    tool_results: ToolResultSettings = ToolResultSettings()
    log: LogSettings = LogSettings()
    tenancy: TenancySettings = TenancySettings()
    session_headers: tuple[Annotated[str, AfterValidator(_check_header)], ...] = SESSION_HEADERS
    context_window: Tokens | None = None
    secret: Annotated[SecretStr, AfterValidator(_check_secret)] | None = None

    _api_keys: dict[str, str] = PrivateAttr(default_factory=dict)

    @cached_property
    def resolved_routes(self) -> GenerationCache[str | None, Route]:
        """Routes found so far. Bounded, since clients choose the names of models."""
        return GenerationCache(CACHED_ROUTES)

    @property
    def default_upstream(self) -> Upstream | None:
        """The first upstream: where requests go that no route sends elsewhere."""
        return self.upstreams[0] if self.upstreams else None

    def upstream_named(self, name: str) -> Upstream | None:
        """The upstream of that name."""
        return next((upstream for upstream in self.upstreams if upstream.name == name), None)

    def api_key_of(self, upstream: Upstream) -> str | None:
        """The operator's credential for an upstream, read from its `api_key_env` when the settings were loaded."""
        return self._api_keys.get(upstream.name)

    def route_for(self, model: str | None) -> Route:
        """The route of a model, by the first of `[[routes]]` that matches. Raises SettingsError without upstreams."""
        route = self.resolved_routes.get(model)
        if route is None:
            route = self._resolve(model)
            self.resolved_routes.put(model, route)
        return route

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values, which resolves its routes anew."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("resolved_routes", None)
        return copy

    def _resolve(self, model: str | None) -> Route:
        given = next((entry for entry in self.routes if fnmatchcase(model or "", entry.match)), None)
        given = given or RouteSettings(match="*")
        default = self.default_upstream
        upstream = default if given.upstream is None else self.upstream_named(given.upstream)
        if upstream is None:
            raise SettingsError(f"no upstream is set: set {UPSTREAM_VARIABLE}, such as https://api.openai.com/v1")
        return Route(
            upstream=upstream,
            asked=model,
            model=given.model or model,
            api_key=self.api_key_of(upstream),
            forwards_credential=upstream is default or upstream.forward_credential,
            context_window=given.context_window or self.context_window,
            max_input_tokens=given.max_input_tokens,
            checkpoint_role=given.checkpoint_role,
            merge_consecutive=given.merge_consecutive,
            content_parts=given.content_parts,
            supports_tools=given.supports_tools,
            include_usage=given.include_usage,
            mode=given.mode or self.compaction.mode,
        )

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = [upstream.name for upstream in self.upstreams]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise _misfit(("upstreams",), f"each upstream needs its own name, but {twice[0]!r} is used twice")
        for index, route in enumerate(self.routes):
            if route.upstream is not None and route.upstream not in names:
                known = ", ".join(names) or "none"
                hint = suggestion(route.upstream, names) or f"; known: {known}"
                raise _misfit(("routes", index, "upstream"), f"there is no upstream {route.upstream!r}{hint}")
        return self


def _misfit(loc: tuple[str | int, ...], message: str) -> PydanticCustomError:
    return PydanticCustomError("misfit", "{message}", {"loc": loc, "message": message})


def load_settings(environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Read all settings: `overrides` over `PALIMPSEST_*` variables over the TOML file over defaults.

    The file is what `PALIMPSEST_CONFIG` names, else `palimpsest.toml` in the working directory if there is one. In
    `overrides` a table is a dict that is merged key by key. Raises SettingsError with every problem found (R15.5).
    """
    environ = os.environ if environ is None else environ
    tables = tables_of(Settings)
    layers = Layers()
    read_file(environ, layers, tables, not_in_file={"secret": SECRET_VARIABLE})
    read_environment(environ, layers, variables_of(Settings, FLAT_VARIABLES), LISTS)
    _place_upstream(layers)
    layers.put_tree(overrides, tables, "arguments")
    try:
        settings = Settings.model_validate(layers.values)
    except ValidationError as error:
        layers.problems += describe(error, Settings, layers)
    else:
        _read_api_keys(settings, environ, layers)
    if layers.problems:
        count = len(layers.problems)
        lines = "".join(f"\n  {problem}" for problem in layers.problems)
        raise SettingsError(f"{count} problem{'s' if count > 1 else ''} in the settings:{lines}")
    return settings


def _place_upstream(layers: Layers) -> None:
    """Let `PALIMPSEST_UPSTREAM` be the first upstream, over one of the file that has the same name."""
    url = layers.values.pop("upstream", None)
    origin = layers.origins.pop(("upstream",), "")
    if url is None:
        return
    if origin != UPSTREAM_VARIABLE:
        layers.problems.append(f"upstream ({origin}): unknown key; did you mean [[upstreams]]?")
        return
    listed = layers.values.get("upstreams", [])
    items = listed if isinstance(listed, list) else []
    same = next((i for i in items if isinstance(i, dict) and i.get("name") == DEFAULT_UPSTREAM), {})
    first = {**same, "name": DEFAULT_UPSTREAM, "base_url": url}
    layers.values["upstreams"] = [first, *(item for item in items if item is not same)]
    layers.origins["upstreams", 0, "base_url"] = origin


def _read_api_keys(settings: Settings, environ: Mapping[str, str], layers: Layers) -> None:
    for index, upstream in enumerate(settings.upstreams):
        if (variable := upstream.api_key_env) is None:
            continue
        if key := environ.get(variable, "").strip():
            settings._api_keys[upstream.name] = key  # noqa: SLF001 - keys are no field, so that no dump can show them
        else:
            loc = ("upstreams", index, "api_key_env")
            layers.problems.append(
                f"upstreams[{index}].api_key_env ({layers.origin_of(loc)}): the variable {variable} is not set"
            )
