"""What every verb shares: exit codes, errors on stderr, and JSON on stdout."""

import io
import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
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
    """End the command: every line of `message` to stderr, then `code`, also where nobody can read the message."""
    _complain(str(message))
    raise typer.Exit(code)


def print_json(schema: str, body: Mapping[str, Any]) -> None:
    typer.echo(json.dumps({"schema": schema, **body}, indent=2, ensure_ascii=False))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, folded: Sequence[str] = ()
) -> None:
    """Rows under headings; on a narrow terminal only the columns in `folded` break, the others are to be copied."""
    # Most calls print no table, and this import takes as long as all of their own work.
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading not in folded)
    for row in rows:
        table.add_row(*map(printable, row))
    # A pipe has no width, and the default of 80 columns would cut what a script looks for.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def printable(text: str) -> str:
    """Text of others without control characters: a model's answer must not steer the terminal."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


class Program(typer.Typer):
    """A command that ends with 3 when its output cannot be written or it breaks itself: there is no result then."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Python's own sign for `>&-`.
        if sys.stdout is None:
            typer.echo("coderack: standard output is closed", err=True)
            raise SystemExit(Exit.UNKNOWN)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A model's answer may hold what the terminal's encoding, or any encoding, lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            try:
                return super().__call__(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except SystemExit as end:
            # Typer itself ends with 1 when the pipe is closed, which here would mean "does not hold".
            if isinstance(end.__context__, BrokenPipeError):
                _output_lost(end.__context__)
            raise
        except OSError as error:
            _output_lost(error)
        except Exception:
            # Python itself would end with 1, "it does not hold", and a broken check is no result.
            _complain(f"a fault of coderack itself; nothing was found out\n{traceback.format_exc()}")
            raise SystemExit(Exit.UNKNOWN) from None


def _output_lost(error: OSError) -> NoReturn:
    _to_nowhere(1)
    _complain(f"the output cannot be written: {error}")
    raise SystemExit(Exit.UNKNOWN) from error


def _complain(message: str) -> None:
    try:
        for line in message.splitlines():
            typer.echo(f"coderack: {printable(line)}", err=True)
    except OSError:
        _to_nowhere(2)


def _to_nowhere(stream: int) -> None:
    # What is still buffered would be written, and fail, once more when Python ends, with a code of Python's own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
