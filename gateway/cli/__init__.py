"""The command line `palimpsest`. One file per command, imported only when that command is asked for."""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, NamedTuple

import typer

DISTRIBUTION = "palimpsest-gateway"


class Command(NamedTuple):
    """Where a command's function is, and what `--help` says of it."""

    module: str
    function: str
    help: str


COMMANDS = {
    "serve": Command("gateway.cli.serve", "serve", "Run the gateway."),
    "demo": Command("gateway.cli.demo", "demo", "Drive a long conversation through it, without key and network."),
    "replay": Command(
        "gateway.cli.replay", "replay", "Send recorded conversations through it, and check each request."
    ),
    "simulate": Command("gateway.cli.simulate", "simulate", "Run a simulated provider with a real context window."),
}


def main() -> None:
    """Run the command that the arguments of this process ask for."""
    build(sys.argv[1:])()


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command line with only the command that `arguments` name imported, so that `--help` is quick."""
    # Rich tracebacks would show local variables, and with them credentials.
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_palimpsest)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(_load(command) if name == asked else _not_loaded)
    return app


def _load(command: Command) -> Callable[..., None]:
    function: Callable[..., None] = getattr(importlib.import_module(command.module), command.function)
    return function


def _not_loaded() -> None:
    raise AssertionError("only the command that was asked for can run")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"palimpsest {version(DISTRIBUTION)}")
        raise typer.Exit


def _palimpsest(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """An OpenAI-compatible gateway that keeps whole conversations and sends the model what fits."""
