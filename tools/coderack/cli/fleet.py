"""`coderack fleet`: the machines of an environment."""

import atexit
import datetime
import gc
import json
from dataclasses import asdict
from typing import Annotated

import typer

from coderack.cli import fleet_guard, fleet_host_keys, fleet_reserve
from coderack.cli.console import Exit, JsonOption, fail, print_json, print_table, printable
from coderack.cli.environment import (
    DEFAULT_INVENTORIES,
    EnvOption,
    FromOption,
    InventoriesOption,
    RegionOption,
    SourceArgument,
    outcomes,
    read_contract,
    region_of,
)
from coderack.clients import aws
from coderack.fleet import drift, ec2, inventory
from coderack.spec.checked import SpecError
from coderack.spec.fleet import Fleet, Node

_FEW = 20

app = typer.Typer(
    help="Make, write, show and check the machines of an environment.", no_args_is_help=True, add_completion=False
)

GpuNodesOption = Annotated[
    int | None, typer.Option("--gpu-nodes", metavar="N", min=1, help="Refuse any other number of GPU nodes.")
]
GpusPerNodeOption = Annotated[
    int | None, typer.Option("--gpus-per-node", metavar="N", min=1, help="Refuse any other number of GPUs in a node.")
]


@app.callback()
def _fleet() -> None:
    # A command lives for a second and keeps what it reads; looking for garbage would take a third of its time, also at
    # the end, when Python would go through everything once more.
    gc.disable()
    atexit.register(gc.freeze)


@app.command()
def write(
    source: SourceArgument = None,
    *,
    env: EnvOption,
    root: FromOption = None,
    gpu_nodes: GpuNodesOption = None,
    gpus_per_node: GpusPerNodeOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Write inventories/ENV/hosts.yml from Terraform's `fleet` output.

    Refuses input that does not hold together and then leaves the old file as it is.

    Example: coderack fleet write --env aws --from terraform/stacks/aws
    Example: terraform -chdir=terraform/stacks/aws output -json fleet | coderack fleet write --env lab -

    With --from (or `terraform state pull` on standard input) the header names the state's serial and lineage.

    For bare metal write the input by hand, as below. Exactly one node has role ops.

    \b
    address          where Ansible connects to: IP address or host name
    private_address  where the other nodes reach it: a private IPv4 address
    fabric.kind      infiniband, efa or none; the same on all GPU nodes
    fabric.devices   RDMA devices to use; empty for all
    instance_id, instance_type, image_id, placement_group, zone
    and reservation may be added, and region beside stack.

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
    with outcomes(f"inventory of {env} not written"):
        path = inventory.hosts_file(inventories, env)
        fleet, origin = read_contract(source, root)
        _check_counts(fleet, gpu_nodes, gpus_per_node)
        changed = inventory.write(fleet, path, origin)
    names = sorted(node.name for node in fleet.nodes)
    if as_json:
        known = {key: value for key, value in asdict(origin).items() if value is not None}
        body = {"env": env, "path": str(path), "changed": changed, "origin": known, "nodes": names}
        print_json("coderack.fleet-write/1", body)
    else:
        listed = ", ".join(names) if len(names) <= _FEW else f"{len(names)} nodes"
        typer.echo(f"{path} {'written' if changed else 'unchanged'}: {listed}")


@app.command()
def show(
    env: EnvOption,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Show the machines in inventories/ENV/hosts.yml.

    Example: coderack fleet show --env lab
    """
    with outcomes():
        fleet = inventory.read(inventory.hosts_file(inventories, env))
    if as_json:
        print_json("coderack.fleet/1", {"env": env, "fleet": fleet.model_dump(mode="json", exclude_none=True)})
    else:
        _print_table(fleet, env)


@app.command()
def check(
    source: SourceArgument = None,
    *,
    env: EnvOption,
    root: FromOption = None,
    live: Annotated[bool, typer.Option("--live", help="Compare with what EC2 says now.")] = False,
    region: RegionOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Compare inventories/ENV/hosts.yml with Terraform's state, with EC2, or with both.

    With --live: instance id, state, addresses, type, image, zone, placement group, reservation and its end. Only what
    the inventory says can be compared. Exit code 1 names every difference; 3: something could not be found out.

    Example: coderack fleet check --env aws --from terraform/stacks/aws --live
    """
    with_state = source is not None or root is not None
    if not with_state and not live:
        fail(Exit.BAD_INPUT, "nothing to compare with; give FILE (or -), --from DIR, --live, or a state and --live")
    with outcomes():
        path = inventory.hosts_file(inventories, env)
        fleet = inventory.read(path)
        findings = drift.against_state(fleet, read_contract(source, root)[0]) if with_state else []
        findings += _live_findings(fleet, path.as_posix(), region) if live else []
    unknown = [node.name for node in fleet.nodes if live and node.instance_id is None]
    compared = [name for name, done in (("state", with_state), ("ec2", live)) if done]
    omitted = drift.not_compared(fleet) if live else {}
    if as_json:
        body = {"env": env, "holds": not findings and not unknown, "compared_with": compared}
        details = {"findings": [asdict(one) for one in findings], "unknown": unknown, "not_compared": omitted}
        print_json("coderack.fleet-check/1", body | details)
    else:
        _print_check(fleet, findings, f"{path} agrees with {' and '.join(compared)}", unknown, omitted)
    if findings:
        fail(
            Exit.DOES_NOT_HOLD,
            f"{len(findings)} difference(s); write the inventory again (make fleet) or mend the node",
        )
    if unknown:
        fail(Exit.UNKNOWN, f"no instance_id in {path} for {', '.join(unknown)}: EC2 cannot be asked about them")


@app.command("inventory")
def print_inventory(
    source: SourceArgument = None,
    *,
    env: EnvOption,
    listing: Annotated[bool, typer.Option("--list", help="All groups and hosts.")] = False,
    host: Annotated[str | None, typer.Option("--host", metavar="NAME", help="Variables of one host.")] = None,
    root: FromOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
) -> None:
    """Print the fleet as an Ansible dynamic inventory; from Terraform's state with --from, otherwise from hosts.yml.

    As a script, for an inventory that is never older than the state:

    \b
    #!/bin/sh
    exec coderack fleet inventory --env aws --from terraform/stacks/aws "$@"

    Example: coderack fleet inventory --env lab --list
    """
    if listing == (host is not None):
        fail(Exit.BAD_INPUT, f"{'both' if listing else 'neither'} of --list and --host NAME given, wanted one of them")
    with outcomes():
        path = inventory.hosts_file(inventories, env)
        from_file = source is None and root is None
        fleet = inventory.read(path) if from_file else read_contract(source, root)[0]
    shown = inventory.listing(fleet) if host is None else inventory.host_variables(fleet, host)
    if shown is None:
        fail(
            Exit.BAD_INPUT, f"host {host}: no such node; known: {', '.join(sorted(node.name for node in fleet.nodes))}"
        )
    # Ansible takes this one as it is, so it has no `schema`.
    typer.echo(json.dumps(shown, indent=2, sort_keys=True))


app.command("guard")(fleet_guard.guard)
app.command("host-keys")(fleet_host_keys.host_keys)
app.command("reserve")(fleet_reserve.reserve)
app.command("reservations")(fleet_reserve.reservations)


def _check_counts(fleet: Fleet, gpu_nodes: int | None, gpus_per_node: int | None) -> None:
    problems = []
    if gpu_nodes is not None and len(fleet.gpu_nodes) != gpu_nodes:
        names = ", ".join(sorted(node.name for node in fleet.gpu_nodes))
        problems.append(f"{len(fleet.gpu_nodes)} GPU nodes ({names}), wanted {gpu_nodes} (--gpu-nodes)")
    if gpus_per_node is not None:
        problems += [
            f"node {node.name}: gpus.count is {node.gpus.count}, wanted {gpus_per_node} (--gpus-per-node)"
            for node in fleet.gpu_nodes
            if node.gpus.count != gpus_per_node
        ]
    if problems:
        raise SpecError("fleet output", tuple(problems))


def _live_findings(fleet: Fleet, path: str, region: str | None) -> list[drift.Finding]:
    ids = [node.instance_id for node in fleet.nodes if node.instance_id is not None]
    if not ids:
        problem = (
            f"no node has an instance_id (stack {fleet.stack}); --live asks EC2 and needs a fleet of the aws stack"
        )
        raise SpecError(path, (problem,))
    client = aws.client("ec2", region_of(fleet, region))
    held = {node.reservation.id for node in fleet.nodes if node.reservation is not None}
    records = ec2.instances(client, ids)
    return drift.against_ec2(fleet, records, ec2.reservations(client, held), datetime.datetime.now(datetime.UTC))


def _print_check(
    fleet: Fleet, findings: list[drift.Finding], agreement: str, unknown: list[str], omitted: dict[str, int]
) -> None:
    for finding in findings:
        typer.echo(printable(str(finding)))
    if not findings and not unknown:
        typer.echo(f"{agreement}: {len(fleet.nodes)} nodes")
    if omitted:
        counts = ", ".join(f"{field} of {count} node(s)" for field, count in omitted.items())
        typer.echo(f"not compared, as the inventory does not say it or says a name: {counts}")


def _print_table(fleet: Fleet, env: str) -> None:
    headings = ("name", "role", "address", "private", "zone", "type", "GPUs", "fabric")
    nodes = sorted(fleet.nodes, key=lambda node: (node.role, node.name))
    print_table(headings, map(_row, nodes), title=f"{env} (stack {fleet.stack})", folded=headings[4:])


def _row(node: Node) -> tuple[str, ...]:
    gpus = f"{node.gpus.count} x {node.gpus.model}" if node.gpus.count else "-"
    place = (node.zone or "-", node.instance_type or "-")
    return (node.name, node.role, node.address, node.private_address, *place, gpus, node.fabric.kind)
