"""What the verbs about an environment share: options, the source of a contract, and which error is which code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from coderack.cli.console import Exit, fail
from coderack.clients.aws import AwsError, NoRegion
from coderack.clients.terraform import TerraformError, state
from coderack.fleet import inventory
from coderack.fleet.contract import Origin, parse_contract
from coderack.fleet.files import Locked
from coderack.spec.checked import SpecError
from coderack.spec.fleet import Fleet

EnvOption = Annotated[str, typer.Option("--env", metavar="ENV", help="Environment: a directory of the inventories.")]
InventoriesOption = Annotated[
    Path, typer.Option("--inventories", metavar="DIR", envvar="CODERACK_INVENTORIES", help="Where environments lie.")
]
RegionOption = Annotated[
    str | None,
    typer.Option("--region", metavar="REGION", help="AWS region; otherwise that of the inventory, then AWS_REGION."),
]
SourceArgument = Annotated[str | None, typer.Argument(metavar="FILE|-", help="JSON file, or - for standard input.")]
FromOption = Annotated[
    Path | None, typer.Option("--from", metavar="DIR", help="Terraform root whose state is read instead of a file.")
]
DEFAULT_INVENTORIES = Path("inventories")


@contextmanager
def outcomes(unknown: str = "") -> Iterator[None]:
    """Ends the command with 2 for bad input and with 3, after the words `unknown`, for what could not be found out."""
    try:
        yield
    except (SpecError, NoRegion) as error:
        fail(Exit.BAD_INPUT, error)
    except (inventory.NoInventory, AwsError, TerraformError, Locked, OSError) as error:
        fail(Exit.UNKNOWN, f"{unknown}: {error}" if unknown else error)


def read_contract(source: str | None, root: Path | None) -> tuple[Fleet, Origin]:
    """The fleet of FILE, standard input or a Terraform root; exactly one has to be given."""
    if (source is None) == (root is None):
        seen = "neither" if source is None else "both"
        raise SpecError("input", (f"{seen} of FILE (or -) and --from DIR given, wanted one of them",))
    if root is not None:
        return parse_contract(state(root), str(root))
    assert source is not None  # noqa: S101 - for mypy; checked above
    return parse_contract(read_text(source), "standard input" if source == "-" else source)


def read_text(source: str) -> str:
    """The text of a file, or of standard input for `-`. Raises SpecError."""
    # Python's own sign for `<&-`.
    if source == "-" and sys.stdin is None:
        raise SpecError("input -", ("standard input is closed; give a file or a pipe",))
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"input {source}", (f"cannot be read: {error}",)) from error


def region_of(fleet: Fleet | None, option: str | None) -> str | None:
    """The region to ask; None leaves it to the operator's AWS configuration."""
    return option or (fleet.region if fleet else None)
