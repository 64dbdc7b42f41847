"""Settings: three sources, one frozen value, errors for people."""

import re
import stat
import threading
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from gateway.models import find_config_dir
from gateway.secret import load_secret
from gateway.settings import FLAT_VARIABLES, RouteSettings, Settings, SettingsError, Upstream, load_settings
from gateway.settings_sources import tables_of

URL = "https://api.example.com/v1"
REFERENCE = find_config_dir() / "gateway.toml"


def problems(environ: dict[str, str], **overrides: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, **overrides)
    return str(caught.value)


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> dict[str, str]:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return {"PALIMPSEST_CONFIG": str(path)}

    return write


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_upstream_alone_is_enough_to_run():  # R15.5
    settings = load_settings({"PALIMPSEST_UPSTREAM": URL})
    assert settings.default_upstream == Upstream(name="default", base_url=URL)
    assert settings.route_for("gpt-4o").name == "default/gpt-4o"


def test_the_reference_file_holds_every_default():  # R15.5
    assert load_settings({"PALIMPSEST_CONFIG": str(REFERENCE)}) == Settings()


@pytest.mark.parametrize("table", [*tables_of(Settings), "upstreams", "routes", ""])
def test_the_reference_file_names_every_setting(table: str):
    """Keys without a default, and those of list entries, stand there commented out."""
    text = REFERENCE.read_text()
    models: dict[str, type[BaseModel]] = {**tables_of(Settings), "upstreams": Upstream, "routes": RouteSettings}
    if table:
        keys = set(models[table].model_fields)
    else:
        keys = set(Settings.model_fields) - set(models) - {"secret"}
        assert "PALIMPSEST_SECRET" in text
    part = re.split(rf"^(?:# )?\[+{table}\]+$", text, flags=re.MULTILINE)[1] if table else text
    section = re.split(r"^(?:# )?\[", part, maxsplit=1, flags=re.MULTILINE)[0]
    assert {key for key in keys if not re.search(rf"^(?:# )?{key} = ", section, re.MULTILINE)} == set()


def test_the_examples_in_the_reference_file_are_valid(toml):
    text = re.sub(r"^# (\[|[a-z_]+ = )", r"\1", REFERENCE.read_text(), flags=re.MULTILINE)
    text = text.replace('upstream = "local"', 'upstream = "openai"')
    # Settings outside of a table stand before the first one, commented or not.
    settings = load_settings({**toml(text), "OPENAI_API_KEY": "sk-1"})
    assert settings.context_window == 128_000
    assert settings.route_for("qwen3").context_window == 32_768


def test_arguments_win_over_environment_over_file_over_defaults(toml):  # R15.5
    environ = toml('[server]\nport = 1\nhost = "a"\nidle_keepalive = 9\n[log]\nlevel = "error"')
    environ |= {"PALIMPSEST_PORT": "2", "PALIMPSEST_HOST": "b"}
    server = load_settings(environ, server={"port": 3}).server
    assert (server.port, server.host, server.idle_keepalive, server.keepalive_every) == (3, "b", 9, 5)


def test_palimpsest_toml_in_the_working_directory_is_read_and_a_named_file_replaces_it(toml):
    Path("palimpsest.toml").write_text('[log]\nlevel = "error"')
    assert load_settings({}).log.level == "error"
    assert load_settings(toml("")).log.level == "info"


@pytest.mark.parametrize(("variable", "loc"), [(v, loc) for v, loc in FLAT_VARIABLES.items() if len(loc) == 2])
def test_short_variables_and_long_ones_set_the_same(variable: str, loc: tuple[str, str]):
    long = f"PALIMPSEST_{loc[0]}__{loc[1]}".upper()
    value = {"port": "81", "level": "debug", "url": "sqlite:///x.db"}.get(loc[1], "x")
    assert load_settings({variable: value}) == load_settings({long: value}) != Settings()
    assert "set twice" in problems({variable: value, long: value})


def test_every_setting_has_a_variable():
    settings = load_settings(
        {
            "PALIMPSEST_COMPACTION__KEEP_RECENT_TURNS": "3",
            "PALIMPSEST_COMPACTION__BACKGROUND": "false",
            "PALIMPSEST_COMPACTION__MODEL": "small",
            "PALIMPSEST_CONTEXT_WINDOW": "8192",
            "PALIMPSEST_SESSION_HEADERS": '["X-Mine"]',
            "PALIMPSEST_UPSTREAMS": f'[{{"name": "a", "base_url": "{URL}"}}]',
        }
    )
    assert (settings.compaction.keep_recent_turns, settings.compaction.background) == (3, False)
    assert (settings.compaction.model, settings.context_window) == ("small", 8192)
    assert settings.session_headers == ("x-mine",)
    assert settings.upstreams[0].name == "a"


def test_an_empty_variable_counts_as_not_set():
    assert load_settings({"PALIMPSEST_PORT": "", "PALIMPSEST_UPSTREAM": " ", "PALIMPSEST_CONFIG": ""}) == Settings()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("PALIMPSEST_HOTS", "PALIMPSEST_HOST"),
        ("PALIMPSEST_UPSTEAM", "PALIMPSEST_UPSTREAM"),
        ("PALIMPSEST_COMPACTION_SOFT", "PALIMPSEST_COMPACTION__SOFT"),
        ("PALIMPSEST_CONFIGURATION", "PALIMPSEST_CONFIG"),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_the_nearest(name: str, hint: str):  # R15.5
    assert f"{name}: unknown variable; did you mean {hint}?" in problems({name: "1"})


def test_variables_of_tests_and_of_others_are_none_of_our_business():
    assert load_settings({"PALIMPSEST_TEST_KILLS": "2", "PATH": "/bin"}) == Settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[compaction]\nsofft = 1", "compaction.sofft ({file}): unknown key; did you mean compaction.soft?"),
        ("[compactoin]\nsoft = 1", "compactoin ({file}): unknown key; did you mean compaction?"),
        ("port = 1", "port ({file}): unknown key; did you mean server.port?"),
        ("server = 5", "server ({file}): expected a table, such as [server]"),
        ("[server]\nport = 70000", "server.port ({file}): expected less than or equal to 65535, got 70000"),
        ("[server]\nport = true", "server.port ({file}): expected a number, got True"),
        ("[compaction]\nsoft = 1.5", "compaction.soft ({file}): expected less than or equal to 1, got 1.5"),
        ("[compaction]\nsoft = nan", "compaction.soft ({file}): expected a finite number, got nan"),
        ('[compaction]\nmode = "x"', "compaction.mode ({file}): expected 'on', 'observe' or 'off', got 'x'"),
        ('[tenancy]\nsource = "key"', "tenancy.source ({file}): expected 'credential' or 'single', got 'key'"),
        ('[store]\nurl = "x.db"', "store.url ({file}): expected sqlite:///relative/file.db or"),
        ('[[upstreams]]\nname = "a"', "upstreams[0].base_url ({file}): missing; it has no default"),
        (
            '[[upstreams]]\nbase_ur = "a"',
            "upstreams[0].base_ur ({file}): unknown key; did you mean upstreams[0].base_u",
        ),
        ('[[routes]]\nmatch = "a"\nupstream = "b"', "routes[0].upstream ({file}): there is no upstream 'b'"),
        ('upstream = "x"', "upstream ({file}): unknown key; did you mean [[upstreams]]?"),
        ('secret = "0123456789abcdef"', "secret ({file}): belongs in no file; set PALIMPSEST_SECRET"),
        ('session_headers = ["a b"]', "session_headers[0] ({file}): expected the name of an HTTP header, got 'a b'"),
        ("a = ", "{file}, named by PALIMPSEST_CONFIG: no valid TOML: Invalid value (at end of document)"),
    ],
)
def test_an_error_names_key_source_and_what_was_expected(toml, text: str, expected: str):  # R15.5
    environ = toml(text)
    assert expected.format(file=environ["PALIMPSEST_CONFIG"]) in problems(environ)


def test_a_bad_variable_is_named_as_the_source():  # R15.5
    assert "server.port (PALIMPSEST_PORT): expected a valid integer, got 'abc'" in problems({"PALIMPSEST_PORT": "abc"})
    assert "(PALIMPSEST_ROUTES): expected a list as JSON" in problems({"PALIMPSEST_ROUTES": "x"})


def test_a_missing_file_is_an_error():
    assert "cannot be read (No such file or directory)" in problems({"PALIMPSEST_CONFIG": "no.toml"})


def test_all_problems_are_told_at_once(toml):
    text = problems({**toml("a = 1\nb = 2"), "PALIMPSEST_PORT": "x", "PALIMPSEST_X": "1"})
    assert text.startswith("4 problems in the settings:\n")


@pytest.mark.parametrize(
    "url", ["api.example.com/v1", "ftp://h/v1", "https://", "https://u:p@h/v1", "https://h/v1?a=1", "https://h/v 1"]
)
def test_a_base_url_is_a_plain_http_url_and_its_password_is_not_shown(url: str):
    text = problems({"PALIMPSEST_UPSTREAM": url})
    assert "(PALIMPSEST_UPSTREAM): expected a URL" in text
    assert "u:p" not in text


def test_the_upstream_variable_comes_first_and_keeps_what_the_file_says_of_default(toml):
    environ = toml(
        '[[upstreams]]\nname = "other"\nbase_url = "http://o"\n'
        '[[upstreams]]\nname = "default"\nbase_url = "http://d"\nread_timeout = 7'
    )
    settings = load_settings({**environ, "PALIMPSEST_UPSTREAM": URL})
    assert [upstream.name for upstream in settings.upstreams] == ["default", "other"]
    assert settings.default_upstream == Upstream(name="default", base_url=URL, read_timeout=7)


def test_upstreams_need_different_names(toml):
    entry = '[[upstreams]]\nname = "a"\nbase_url = "http://h"\n'
    environ = toml(entry * 2)
    assert f"upstreams ({environ['PALIMPSEST_CONFIG']}): each upstream needs its own name" in problems(environ)


ROUTES = f"""
context_window = 1000
[[upstreams]]
name = "main"
base_url = "{URL}"
[[upstreams]]
name = "local"
base_url = "http://127.0.0.1:9/v1"
auth = "none"
[[upstreams]]
name = "trusted"
base_url = "http://127.0.0.1:8/v1"
forward_credential = true
[[routes]]
match = "qwen*"
upstream = "local"
model = "Qwen/Qwen3"
context_window = 2000
mode = "observe"
[[routes]]
match = "qwen-never"
[[routes]]
match = "t-*"
upstream = "trusted"
[compaction]
mode = "off"
"""


def test_the_first_route_that_matches_counts_and_the_rest_comes_from_defaults(toml):
    settings = load_settings(toml(ROUTES))
    route = settings.route_for("qwen-never")
    assert (route.name, route.asked, route.model) == ("local/Qwen/Qwen3", "qwen-never", "Qwen/Qwen3")
    assert (route.context_window, route.mode, route.include_usage) == (2000, "observe", True)
    plain = settings.route_for("gpt-4o")
    assert (plain.name, plain.context_window, plain.mode) == ("main/gpt-4o", 1000, "off")
    assert settings.route_for(None).name == "main/"
    assert settings.route_for("gpt-4o") is plain


def test_the_credential_goes_to_the_default_upstream_or_where_it_may(toml):  # R9.8
    settings = load_settings(toml(ROUTES))
    forwarded = {model: settings.route_for(model).forwards_credential for model in ("gpt", "qwen", "t-1")}
    assert forwarded == {"gpt": True, "qwen": False, "t-1": True}


def test_a_copy_with_other_values_resolves_its_routes_anew():
    settings = load_settings({"PALIMPSEST_UPSTREAM": URL})
    assert settings.route_for("a").context_window is None
    assert settings.model_copy(update={"context_window": 5}).route_for("a").context_window == 5


def test_names_of_models_cannot_fill_the_memory():  # R16.2
    settings = load_settings({"PALIMPSEST_UPSTREAM": URL})
    for number in range(5000):
        settings.route_for(f"model-{number}")
    assert len(settings.resolved_routes) <= 2048


def test_an_operators_key_comes_from_its_variable_and_is_never_shown(toml):
    environ = toml(f'[[upstreams]]\nname = "a"\nbase_url = "{URL}"\napi_key_env = "THE_KEY"')
    assert "upstreams[0].api_key_env" in problems(environ)
    assert "the variable THE_KEY is not set" in problems(environ)
    settings = load_settings({**environ, "THE_KEY": "sk-12345"})
    route = settings.route_for("x")
    assert route.api_key == "sk-12345"
    assert "sk-12345" not in repr(settings) + repr(route) + settings.model_dump_json()


def test_settings_are_frozen():
    with pytest.raises(ValidationError):
        Settings().server.port = 1  # type: ignore[misc]


def test_without_an_upstream_there_is_no_route():
    with pytest.raises(SettingsError, match="PALIMPSEST_UPSTREAM"):
        Settings().route_for("x")


def test_the_store_url_gives_a_file():
    assert load_settings({"PALIMPSEST_STORE_URL": "sqlite:////data/a.db"}).store.path == Path("/data/a.db")
    assert load_settings({}).store.path == Path("palimpsest.db")


def test_a_secret_that_is_set_is_used_and_never_shown(tmp_path: Path):  # R14.1
    settings = load_settings({"PALIMPSEST_SECRET": "0123456789abcdef"})
    assert load_secret(settings) == b"0123456789abcdef"
    assert not list(tmp_path.iterdir())
    assert "0123456789abcdef" not in repr(settings)


def test_a_short_secret_is_refused_and_not_shown():
    text = problems({"PALIMPSEST_SECRET": "tiny"})
    assert "secret (PALIMPSEST_SECRET): expected at least 16 characters" in text
    assert "tiny" not in text


def test_a_secret_is_made_at_first_start_beside_the_store_and_stays(tmp_path: Path):  # R14.1
    settings = load_settings({"PALIMPSEST_STORE_URL": f"sqlite:///{tmp_path}/data/p.db"})
    secret = load_secret(settings)
    path = tmp_path / "data" / "palimpsest.secret"
    assert len(secret) == 64
    assert load_secret(settings) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["palimpsest.secret"]


def test_workers_that_start_together_agree_on_the_secret(tmp_path: Path):  # R14.1, R16.1
    settings = load_settings({"PALIMPSEST_STORE_URL": f"sqlite:///{tmp_path}/p.db"})
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(load_secret(settings))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_secret_file_is_an_error_and_not_replaced(tmp_path: Path, content: str):
    (tmp_path / "palimpsest.secret").write_text(content)
    with pytest.raises(SettingsError, match="is empty"):
        load_secret(Settings())


def test_a_secret_that_cannot_be_made_is_an_error_for_people(tmp_path: Path):
    (tmp_path / "file").write_text("")
    settings = load_settings({"PALIMPSEST_STORE_URL": f"sqlite:///{tmp_path}/file/p.db"})
    with pytest.raises(SettingsError, match="set PALIMPSEST_SECRET"):
        load_secret(settings)


def test_the_reference_file_is_plain_toml():
    assert set(tomllib.loads(REFERENCE.read_text())) >= set(tables_of(Settings))
