"""The house's own rules: who may import whom, how large a file may be, and what no file may hold."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("compaction", "store", "gateway")
MAY_IMPORT = {"compaction": {"compaction"}, "store": {"store", "compaction"}, "gateway": set(PACKAGES)}
# What would make the core depend on anything but its arguments.
IMPURE = {
    "asyncio",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
    "uuid",
}
IMPURE_CALLS = {"open", "print", "input", "datetime.now", "datetime.utcnow", "date.today"}
# The loader of commands, so that `--help` is quick, and the loader of a package that takes most of a second.
LAZY_IMPORTS = {"gateway/cli/__init__.py", "gateway/models.py"}
READS_ENVIRONMENT = {"gateway/settings.py", "gateway/cli/serve.py"}
MAX_LINES = 450
TABLES = {"gateway/overflow_patterns.py"}
"""Data in the form of code: as long as there are facts."""
DATA = "tests/data/"
LOCKS = ("requirements.lock", "requirements-dev.lock")
TEXT = {
    "",
    ".cfg",
    ".css",
    ".html",
    ".js",
    ".json",
    ".lock",
    ".md",
    ".py",
    ".sh",
    ".sql",
    ".svg",
    ".toml",
    ".txt",
    ".yml",
}

# Written in parts, so that this file does not hold what it looks for.
HOSTS = ("py" + r"pi\.org", "python" + r"hosted\.org", "arti" + "factory", "/sim" + r"ple/?[\"'\s]", "--index" + "-url")
PLACES = ("/wo" + "rk/", "/tmp/br" + "iefs", "sha" + "red/cases", "iss" + "ues show")
FORBIDDEN = re.compile("|".join((*HOSTS, *PLACES)))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def modules(*packages: str) -> dict[str, ast.Module]:
    """The code of packages by the files' names."""
    paths = sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))
    return {label(path): ast.parse(path.read_text("utf-8"), str(path)) for path in paths}


def offenders(rule: Callable[[str, ast.Module], object], *packages: str) -> dict[str, object]:
    """What a rule finds wrong, by file."""
    found = {name: rule(name, tree) for name, tree in modules(*(packages or PACKAGES)).items()}
    return {name: wrong for name, wrong in found.items() if wrong}


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that is imported, and every name taken from one, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import would need its package to be told from another's.
            module = "." * node.level + (node.module or "")
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def tops(tree: ast.AST) -> set[str]:
    return {name.partition(".")[0] for name, _ in imports(tree)}


def test_imports_point_one_way():
    """`compaction` <- `store` <- `gateway`; nothing shipped needs the tests; all imports are absolute."""

    def rule(name: str, tree: ast.Module) -> object:
        return tops(tree) & {*PACKAGES, "tests", ""} - MAY_IMPORT[name.partition("/")[0]]

    assert offenders(rule) == {}


def test_the_core_imports_the_standard_library_only():
    assert offenders(lambda _, tree: tops(tree) - {"compaction"} - sys.stdlib_module_names, "compaction") == {}


def test_the_core_has_no_clock_chance_or_outside():
    """Values in, values out."""

    def rule(_: str, tree: ast.Module) -> object:
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        return tops(tree) & IMPURE | calls & IMPURE_CALLS

    assert offenders(rule, "compaction") == {}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def needs(tree: ast.Module, known: AbstractSet[str]) -> set[str]:
    """The known modules that must be there when this one runs, so without what only a type checker reads.

    `from package import module` needs the module; that its package is there as well is no detour.
    """
    found: set[str] = set()
    for statement in tree.body:
        for node in ast.walk(statement) if not is_type_checking(statement) else ():
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                taken = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in known else node.module or "" for name in taken}
    return found & known


def in_a_cycle(edges: dict[str, set[str]]) -> set[str]:
    """What is left when modules that import nothing left are taken away again and again."""
    left = dict(edges)
    while leaves := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in leaves}
    return set(left)


def test_modules_form_levels():
    """No module imports itself by a detour."""
    files = modules(*PACKAGES).items()
    code = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): tree for name, tree in files}
    assert in_a_cycle({name: needs(tree, code.keys()) - {name} for name, tree in code.items()}) == set()


def test_a_cycle_would_be_found():
    assert in_a_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": set()}) == {"a", "b", "c", "d"}


def test_nothing_is_imported_inside_functions():
    """A module's imports are what its head says; two loaders are lazy on purpose."""

    def rule(name: str, tree: ast.Module) -> object:
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        inner = {line for function in functions for _, line in imports(function)}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        lazy = {node.lineno for node in calls if re.search(r"\b(import_module|__import__)$", ast.unparse(node.func))}
        return inner | (set() if name in LAZY_IMPORTS else lazy)

    assert offenders(rule) == {}


def test_no_error_is_swallowed_unseen():
    """No bare `except`, and none for everything that only passes on."""

    def swallows(handler: ast.ExceptHandler) -> bool:
        caught = set(re.findall(r"\w+", ast.unparse(handler.type))) if handler.type else set()
        silent = all(isinstance(statement, ast.Pass | ast.Continue) for statement in handler.body)
        return not caught or (silent and bool(caught & {"Exception", "BaseException"}))

    def rule(_: str, tree: ast.Module) -> object:
        handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        suppressed = [c for c in calls if re.search(r"\bsuppress\((Base)?Exception\)", ast.unparse(c))]
        return {node.lineno for node in [*filter(swallows, handlers), *suppressed]}

    assert offenders(rule) == {}


def test_the_environment_is_read_in_one_place():
    """Settings come from `gateway.settings`; the command line hands the environment over."""

    def rule(name: str, tree: ast.Module) -> object:
        reads = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        lines = {node.lineno for node in reads if ast.unparse(node) in {"os.environ", "os.getenv", "os.environb"}}
        return lines - (lines if name in READS_ENVIRONMENT else set())

    assert offenders(rule) == {}


@cache
def tracked() -> dict[str, str]:
    """The text of the repository's files: those that git knows or would add, else (in an archive) the code."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else [*modules(*PACKAGES)]
    paths = [ROOT / name for name in sorted(set(names)) if name and not name.startswith(DATA)]
    return {label(path): path.read_text("utf-8") for path in paths if path.suffix in TEXT and path.is_file()}


def test_no_file_names_a_registry_or_the_place_it_was_written_in():
    assert {name: found[0] for name, text in tracked().items() if (found := FORBIDDEN.search(text))} == {}


def test_a_file_can_be_read_in_one_go():
    """Longer than this is a smell: two concerns in one file."""
    lengths = {name: text.count("\n") for name, text in tracked().items() if name not in {*TABLES, *LOCKS}}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_locks_hold_hashes_and_no_addresses():
    """What is installed is what was tested, from wherever the installer is told to look."""
    for name in LOCKS:
        text = (ROOT / name).read_text("utf-8")
        assert "://" not in text
        pins = re.findall(r"^([a-z0-9][\w.-]*)==", text, re.MULTILINE)
        assert len(pins) > 20
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(pins)
