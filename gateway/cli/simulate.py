"""`palimpsest simulate`: a provider with a real context window, on a port."""

from typing import Annotated

import typer
import uvicorn

from gateway.simulator.app import create_simulator
from gateway.simulator.settings import DIALECT_NAMES, DialectName, SimulatorSettings


def dialect_named(value: str) -> DialectName:
    """The dialect of that name, or an error that lists them all."""
    for name in DIALECT_NAMES:
        if name == value:
            return name
    raise typer.BadParameter(f"expected one of {', '.join(DIALECT_NAMES)}")


def simulate(
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 9000,
    window: Annotated[int, typer.Option(min=1, help="Context window, in tokens.")] = 8192,
    dialect: Annotated[str, typer.Option(help=f"Kind of provider: {', '.join(DIALECT_NAMES)}.")] = "openai",
    summariser: Annotated[str, typer.Option(help="How it answers summary requests.")] = "honest",
    latency: Annotated[float, typer.Option(min=0, help="Seconds before each answer.")] = 0.0,
    fault: Annotated[str, typer.Option(help="What goes wrong, e.g. 'cut:3' or '429'; see --fault-rate.")] = "",
    fault_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of chat requests that it hits.")] = 0.0,
    model: Annotated[list[str] | None, typer.Option(help="Listed model; may be given several times.")] = None,
    alternate: Annotated[bool, typer.Option("--alternate", help="Insist that roles alternate.")] = False,
    no_model_info: Annotated[bool, typer.Option("--no-model-info", help="Do not list the window.")] = False,
) -> None:
    """Run a simulated provider. It speaks Chat Completions, needs no key, and refuses what does not fit its window."""
    try:
        settings = SimulatorSettings(
            window=window,
            dialect=dialect_named(dialect),
            summariser=summariser,
            latency=latency,
            fault=fault,
            fault_rate=fault_rate,
            models=tuple(model or ("sim-model",)),
            alternate=alternate,
            model_info=not no_model_info,
        )
        app = create_simulator(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(f"Simulated provider ({dialect}, window {window}) on http://{host}:{port}/v1", err=True)
    uvicorn.run(app, host=host, port=port, access_log=False, log_level="warning", timeout_keep_alive=75)
