"""`coderack fleet`: the machines of an environment."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from coderack.cli.console import Exit, JsonOption, fail, print_json
from coderack.fleet import inventory
from coderack.fleet.contract import parse_fleet
from coderack.spec.checked import SpecError
from coderack.spec.fleet import Fleet, Node

app = typer.Typer(help="Write and show the machines of an environment.", no_args_is_help=True)

EnvOption = Annotated[str, typer.Option("--env", metavar="ENV", help="Environment: a directory of the inventories.")]
InventoriesOption = Annotated[
    Path, typer.Option("--inventories", metavar="DIR", envvar="CODERACK_INVENTORIES", help="Where environments lie.")
]
_DEFAULT_INVENTORIES = Path("inventories")


@app.command()
def write(
    source: Annotated[str, typer.Argument(metavar="FILE|-", help="JSON file, or - for standard input.")],
    env: EnvOption,
    inventories: InventoriesOption = _DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Write inventories/ENV/hosts.yml from Terraform's `fleet` output.

    Refuses input that does not hold together and then leaves the old file as it is.

    Example: terraform -chdir=terraform/stacks/aws output -json fleet | coderack fleet write --env lab -

    For bare metal write the input by hand, as below. Exactly one node has role ops.

    \b
    address          where Ansible connects to: IP address or host name
    private_address  where the other nodes reach it: a private IPv4 address
    fabric.kind      infiniband, efa or none; the same on all GPU nodes
    fabric.devices   RDMA devices to use; empty for all
    instance_id, instance_type and zone may be added.

    \b
    {"version": 1, "stack": "baremetal", "nodes": [
      {"name": "gpu-a", "role": "gpu",
       "address": "gpu-a.example.org", "private_address": "10.0.0.11",
       "gpus": {"model": "NVIDIA H100", "count": 8},
       "fabric": {"kind": "infiniband", "devices": ["mlx5_0", "mlx5_1"]}},
      {"name": "gpu-b", "role": "gpu",
       "address": "gpu-b.example.org", "private_address": "10.0.0.12",
       "gpus": {"model": "NVIDIA H100", "count": 8},
       "fabric": {"kind": "infiniband", "devices": ["mlx5_0", "mlx5_1"]}},
      {"name": "ops", "role": "ops",
       "address": "ops.example.org", "private_address": "10.0.0.10",
       "gpus": {"model": "none", "count": 0},
       "fabric": {"kind": "none", "devices": []}}]}
    """
    try:
        path = inventory.hosts_file(inventories, env)
        fleet = parse_fleet(_input(source))
        changed = inventory.write(fleet, path)
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)
    except OSError as error:
        fail(Exit.UNKNOWN, f"inventory of {env} not written: {error}")
    names = sorted(node.name for node in fleet.nodes)
    if as_json:
        body = {"env": env, "path": str(path), "changed": changed, "nodes": names}
        print_json("coderack.fleet-write/1", body)
    else:
        typer.echo(f"{path} {'written' if changed else 'unchanged'}: {', '.join(names)}")


@app.command()
def show(
    env: EnvOption,
    inventories: InventoriesOption = _DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Show the machines in inventories/ENV/hosts.yml.

    Example: coderack fleet show --env lab
    """
    try:
        fleet = inventory.read(inventory.hosts_file(inventories, env))
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)
    except (inventory.NoInventory, OSError) as error:
        fail(Exit.UNKNOWN, error)
    if as_json:
        print_json("coderack.fleet/1", {"env": env, "fleet": fleet.model_dump(mode="json", exclude_none=True)})
    else:
        _print_table(fleet, env)


def _input(source: str) -> str:
    # Python's own sign for `<&-`.
    if source == "-" and sys.stdin is None:
        raise SpecError("input -", ("standard input is closed; give a file or a pipe",))
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"input {source}", (f"cannot be read: {error}",)) from error


def _print_table(fleet: Fleet, env: str) -> None:
    table = Table(title=f"{env} (stack {fleet.stack})", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("name", "role", "address", "private"):
        table.add_column(heading, no_wrap=True)
    for heading in ("zone", "type", "GPUs", "fabric"):
        table.add_column(heading, overflow="fold")
    for node in sorted(fleet.nodes, key=lambda node: (node.role, node.name)):
        table.add_row(*_row(node))
    # A pipe has no width, and the default of 80 columns would cut what a script looks for.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _row(node: Node) -> tuple[str, ...]:
    gpus = f"{node.gpus.count} x {node.gpus.model}" if node.gpus.count else "-"
    place = (node.zone or "-", node.instance_type or "-")
    return (node.name, node.role, node.address, node.private_address, *place, gpus, node.fabric.kind)
