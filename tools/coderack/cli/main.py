"""The `coderack` command."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coderack import __version__
from coderack.cli.console import Program

# Verb -> its module, imported when the verb is called: nobody waits for, or has to install, what another verb needs.
# A module has an `app` of several commands, or a function with the verb's name.
_VERBS = {
    "fleet": "coderack.cli.fleet",
    "group": "coderack.cli.group",
    "health": "coderack.cli.health",
    "keys": "coderack.cli.keys",
    "nccl": "coderack.cli.nccl",
    "weights": "coderack.cli.weights",
    "plan": "coderack.cli.plan",
    "probe": "coderack.cli.probe",
    "ask": "coderack.cli.ask",
}


class _Verbs(TyperGroup):
    # `Any` since some versions of Typer carry a Click of their own.
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _VERBS:
            return None
        module = import_module(_VERBS[cmd_name])
        verb = getattr(module, "app", None)
        if verb is None:
            verb = typer.Typer(add_completion=False)
            verb.command(cmd_name)(getattr(module, cmd_name))
        command = typer.main.get_command(verb)
        command.name = cmd_name
        return command


app = Program(
    cls=_Verbs,
    name="coderack",
    help="Bring up, measure and release a vLLM endpoint on a small fleet of GPU nodes.\n\n"
    "Exit codes: 0 it holds, 1 it does not, 2 bad input, 3 could not find out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
