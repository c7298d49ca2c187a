"""The `coderack` command."""

from typing import Annotated

import typer

from coderack import __version__
from coderack.cli import ask, fleet, keys
from coderack.cli.console import Program

app = Program(
    name="coderack",
    help="Bring up, measure and release a vLLM endpoint on a small fleet of GPU nodes.\n\n"
    "Exit codes: 0 it holds, 1 it does not, 2 bad input, 3 could not find out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(fleet.app, name="fleet")
app.add_typer(keys.app, name="keys")
app.command(name="ask")(ask.ask)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coderack {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    app()
