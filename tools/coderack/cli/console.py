"""What every verb shares: exit codes, errors on stderr, and JSON on stdout."""

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


class Exit(IntEnum):
    HOLDS = 0
    DOES_NOT_HOLD = 1
    BAD_INPUT = 2
    UNKNOWN = 3


def fail(code: Exit, message: object) -> NoReturn:
    """End the command: every line of `message` to stderr, then `code`."""
    for line in str(message).splitlines():
        typer.echo(f"coderack: {printable(line)}", err=True)
    raise typer.Exit(code)


def print_json(schema: str, body: Mapping[str, Any]) -> None:
    typer.echo(json.dumps({"schema": schema, **body}, indent=2, ensure_ascii=False))


def printable(text: str) -> str:
    """Text of others without control characters: a model's answer must not steer the terminal."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t")
