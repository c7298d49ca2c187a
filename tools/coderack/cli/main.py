"""The `coderack` command."""

import sys
from typing import Annotated

import typer

from coderack import __version__
from coderack.cli.console import Program

app = Program(
    name="coderack",
    help="Bring up, measure and release a vLLM endpoint on a small fleet of GPU nodes.\n\n"
    "Exit codes: 0 it holds, 1 it does not, 2 bad input, 3 could not find out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_VERBS = ("ask", "fleet", "health")


def _add_verbs(words: list[str]) -> None:
    """Only the verb that is called is imported: the health timer's second must not go into HTTP clients."""
    first = next((word for word in words if not word.startswith("-")), "")
    wanted = (first,) if first in _VERBS else _VERBS
    if "ask" in wanted:
        from coderack.cli import ask  # noqa: PLC0415

        app.command(name="ask")(ask.ask)
    if "fleet" in wanted:
        from coderack.cli import fleet  # noqa: PLC0415

        app.add_typer(fleet.app, name="fleet")
    if "health" in wanted:
        from coderack.cli import health  # noqa: PLC0415

        app.add_typer(health.app, name="health")


_add_verbs(sys.argv[1:])


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
