"""`coderack fleet host-keys`: who the nodes are, fixed before anybody logs in."""

from enum import StrEnum
from typing import Annotated

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, printable
from coderack.cli.environment import (
    DEFAULT_INVENTORIES,
    EnvOption,
    InventoriesOption,
    RegionOption,
    outcomes,
    region_of,
)
from coderack.clients import aws, ssh_keys
from coderack.fleet import inventory, known_hosts
from coderack.spec.checked import SpecError
from coderack.spec.fleet import Fleet, Node


class Via(StrEnum):
    AUTO = "auto"
    CONSOLE = "console"
    KEYSCAN = "keyscan"


def host_keys(
    *,
    env: EnvOption,
    via: Annotated[
        Via, typer.Option("--via", help="Where keys come from; auto: console for EC2 instances.")
    ] = Via.AUTO,
    names: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="Only this node; may be given several times.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept-changed", metavar="NAME", help="This node was replaced: pin its new keys."),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="SSH port of the nodes.")] = 22,
    region: RegionOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Collect the nodes' SSH host keys and pin them in inventories/ENV/known_hosts.

    A key that differs from the pinned one is exit code 1, and the file stays as it is. A node whose keys cannot be had
    is 3, and nothing is written either.

    \b
    console  what cloud-init wrote to the instance's console, read
             through the AWS API: nobody in between can change it
    keyscan  what answers at the node's address now; the first time this
             trusts the network, so run it from the nodes' own, and compare
             the fingerprints with those on the machines

    Example: coderack fleet host-keys --env aws
    """
    with outcomes():
        hosts = inventory.hosts_file(inventories, env)
        fleet = inventory.read(hosts)
        path = hosts.with_name("known_hosts")
        pinned = known_hosts.read(path)
        chosen = _chosen(fleet, names or [], accept or [])
    labels = {node.name: ssh_keys.host_label(node.address, port) for node in fleet.nodes}
    seen, missing = _collect(chosen, via, port, region_of(fleet, region))
    found = {labels[name]: keys for name, keys in seen.items()}
    accepted = {labels[name] for name in accept or []}
    changes = [change for change in known_hosts.changes(pinned, found) if change.host not in accepted]
    new = known_hosts.merge(pinned, found, set(labels.values()))
    written = False
    if not changes and not missing:
        with outcomes(f"{path} not written"):
            written = known_hosts.write(path, new)
    if as_json:
        lists = {"changed": [str(change) for change in changes], "unknown": missing}
        gone = {"removed": sorted(pinned.keys() - new.keys()), "pinned": sorted(found)}
        print_json("coderack.fleet-host-keys/1", {"env": env, "path": str(path), "written": written, **lists, **gone})
    else:
        _print(found, missing)
    if changes:
        lines = "\n".join(map(str, changes))
        remedy = "If the node was replaced, repeat with --accept-changed NAME; if not, somebody may be in between."
        fail(Exit.DOES_NOT_HOLD, f"host keys have changed, {path} is left as it is:\n{lines}\n{remedy}")
    if missing:
        reasons = "\n".join(f"{name}: {reason}" for name, reason in missing.items())
        fail(Exit.UNKNOWN, f"no host keys of {len(missing)} node(s), {path} is left as it is:\n{reasons}")
    if not as_json:
        typer.echo(f"{path} {'written' if written else 'unchanged'}: {len(new)} of {len(fleet.nodes)} nodes pinned")


def _chosen(fleet: Fleet, names: list[str], accepted: list[str]) -> list[Node]:
    known = {node.name: node for node in fleet.nodes}
    strangers = sorted({*names, *accepted} - known.keys())
    if strangers:
        raise SpecError("nodes", (f"{', '.join(strangers)} not in the inventory; known: {', '.join(sorted(known))}",))
    wanted = {*names, *accepted} if names else known.keys()
    return [node for name, node in sorted(known.items()) if name in wanted]


def _collect(
    nodes: list[Node], via: Via, port: int, region: str | None
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Keys by node name, and for the nodes without any the reason."""
    by_console = [node for node in nodes if via is Via.CONSOLE or (via is Via.AUTO and node.instance_id)]
    seen: dict[str, dict[str, str]] = {}
    missing: dict[str, str] = {}
    with outcomes():
        client = aws.client("ec2", region) if any(node.instance_id for node in by_console) else None
    for node in by_console:
        if node.instance_id is None or client is None:
            missing[node.name] = "no instance_id in the inventory, so it has no console; use --via keyscan"
            continue
        try:
            keys = ssh_keys.from_console(client, node.instance_id)
        except aws.AwsError as error:
            missing[node.name] = str(error)
            if not error.code:
                # No answer at all, and there will be none about the next node either: each would be waited for.
                missing |= {one.name: "not asked after that" for one in by_console if one.name not in seen | missing}
                break
            continue
        if keys:
            seen[node.name] = keys
        else:
            missing[node.name] = "its console does not show them; it may still be booting, or try --via keyscan"
    by_scan = [node for node in nodes if node not in by_console]
    if by_scan:
        try:
            scanned = ssh_keys.scan([node.address for node in by_scan], port)
        except ssh_keys.KeyscanError as error:
            fail(Exit.UNKNOWN, error)
        for node in by_scan:
            if node.address in scanned:
                seen[node.name] = scanned[node.address]
            else:
                missing[node.name] = f"nothing answers as SSH at {ssh_keys.host_label(node.address, port)}"
    return seen, missing


def _print(found: dict[str, dict[str, str]], missing: dict[str, str]) -> None:
    for host, keys in sorted(found.items()):
        for kind, key in sorted(keys.items()):
            typer.echo(printable(f"{host} {kind} {ssh_keys.fingerprint(key)}"))
    for name in missing:
        typer.echo(f"{name}: unknown")
