"""The lab's command line, called by the Makefile's lab-* targets."""

from __future__ import annotations

import difflib
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from coderack_lab import cache, cgroups, contact, demo, faults, lifecycle, snapshot
from coderack_lab import settings as s
from coderack_lab.errors import BadInput, Interrupted, LabError, Unknown
from coderack_lab.node import NodeSpec
from coderack_lab.progress import Progress
from coderack_lab.shell import CommandFailed, die_with_parent, stop_on_signals

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
scratch = typer.Typer(no_args_is_help=True, help="Machines beside the cloud's instances, for role tests.")
app.add_typer(scratch, name="scratch")


@app.command("demo")
def demo_command() -> None:
    """The main job end to end. Example: make demo"""
    with lifecycle.locked("demo"):
        demo.run_demo()


@app.command()
def prepare() -> None:
    """Fill the cache (base image, vLLM, models, stand-ins) and nothing else. Example: make lab-cache"""
    with lifecycle.locked("prepare"):
        demo.prepare(Progress(4, s.LOGS))


@app.command()
def up() -> None:
    """Cache, network and cloud, no nodes yet: Terraform makes those. Example: make lab-up"""
    with lifecycle.locked("up"):
        demo.prepare(Progress(4, s.LOGS))
        done, api = lifecycle.up(), f"http://127.0.0.1:{s.AWS_PORT}"
        print(f"lab: {done}; EC2 API at {api}. Next: make provision host-keys configure")


@app.command()
def down() -> None:
    """Take everything down, also what a killed run left. Example: make lab-down"""
    with lifecycle.locked("down", take_over=True):
        _take_down()
    print("lab: down, nothing left (the cache stays: make lab-clean removes it)")


def _take_down() -> None:
    lifecycle.down()
    rest = lifecycle.leftovers()
    if rest:
        raise LabError("could not remove: " + "; ".join(rest))
    s.LOCK.unlink(missing_ok=True)


@app.command()
def wait() -> None:
    """Wait until every node has booted. Example: python -m coderack_lab wait"""
    lifecycle.wait_for_nodes()


@app.command("instances")
def instances_command() -> None:
    """Make the machines without Terraform and print the fleet contract. Example: python -m coderack_lab instances"""
    from coderack_lab import instances  # noqa: PLC0415  boto3 takes a second that other commands need not wait

    print(json.dumps(instances.make()))


@app.command()
def clean() -> None:
    """Take down and remove the cache as well. Example: make lab-clean"""
    with lifecycle.locked("clean", take_over=True):
        _take_down()
        cache.remove_all()
    print(f"lab: down, {s.CACHE} removed")


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """What is up and what is broken. 0 up, 1 down or a node not running, 3 cannot tell. Example: make lab-status"""
    seen = contact.read_status()
    lab = lifecycle.read_lab()
    is_up = lifecycle.is_up()
    nodes = seen.get("nodes", [])
    if seen and not is_up:
        raise Unknown(
            "the lab's cloud has ended without a tear-down; wanted: running, or down. `make lab-down` repairs."
        )
    broken = _faults(nodes) if is_up and isinstance(nodes, list) else []
    if as_json:
        report = {"schema": "coderack.lab.status/1", "up": is_up, **lab, **seen, "faults": broken}
        print(json.dumps(report, indent=2))
    elif not is_up:
        print("lab: down")
    else:
        print(
            f"lab: up, phase {lab.get('phase', 'unknown')}, driven from {lab.get('root')}, EC2 API {seen['endpoint']}"
        )
        for node in nodes if isinstance(nodes, list) else []:
            print(f"  {node['name']:8} {node['address']:14} {node['role']:4} {node['state']:8} {node['instance_id']}")
        _tell_faults_and_pages(broken, lab)
    bad = [n for n in nodes if n["state"] != "running"] if isinstance(nodes, list) else []
    raise typer.Exit(0 if is_up and not bad else 1)


def _faults(nodes: list[dict[str, str]]) -> list[dict[str, str]]:
    """What is broken from outside right now, a pulled plug included: to its node that is an end like any crash."""
    try:
        found = faults.active([node["name"] for node in nodes])
    except CommandFailed as error:
        raise Unknown(f"which faults the lab's network has can't be read: {error}") from error
    return found + [{"kind": "power", "node": node["name"]} for node in nodes if node["state"] == "crashed"]


def _tell_faults_and_pages(broken: list[dict[str, str]], lab: dict[str, str]) -> None:
    for one in broken:
        kind, where = one["kind"], f" NODE={one['node']}" if one["node"] else ""
        print(f"  FAULT {kind} {one['node'] or 'of the lab'}: make lab-fault{where} KIND={kind} REPAIR=1 undoes it")
    if lab.get("phase") == "ready":
        print(f"  endpoint      https://localhost:{s.GATEWAY_PORT}/v1")
        print(f"  Prometheus    http://127.0.0.1:{s.PROMETHEUS_PORT}")
        print(f"  Alertmanager  http://127.0.0.1:{s.ALERTMANAGER_PORT}")


@app.command("ssh")
def ssh_command(node: str, command: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """A shell on a node, or one command. Example: make lab-ssh NODE=gpu-a CMD='systemctl status vllm'"""
    spec = _node(node)
    arguments = ["ssh", *contact.ssh_options(), f"{s.USER}@{spec['address']}", *(command or [])]
    os.execvp("ssh", arguments)  # noqa: S606  an interactive program takes over the terminal


@app.command()
def fault(
    kind: str,
    node: Annotated[str, typer.Argument(help="The node; empty for uplink.")] = "",
    repair: Annotated[bool, typer.Option("--repair", help="Undo instead.")] = False,
) -> None:
    """Break something from outside. Example: make lab-fault NODE=gpu-b KIND=partition [REPAIR=1]"""
    if kind not in faults.KINDS:
        raise BadInput(
            f"unknown fault {kind!r}; wanted one of: " + ", ".join(f"{k} ({v})" for k, v in faults.KINDS.items())
        )
    if kind != "uplink":
        _node(node)
    if repair:
        faults.repair(kind, node)
    else:
        faults.inject(kind, node)
    print(f"lab: {'repaired' if repair else 'injected'} {kind} {node}".rstrip())


def _node(name: str) -> dict[str, str]:
    nodes = contact.read_status().get("nodes")
    known = {n["name"]: n for n in nodes} if isinstance(nodes, list) else {}
    if name not in known:
        raise BadInput(f"no node {name!r} in the lab; wanted one of: {', '.join(sorted(known)) or '(the lab is down)'}")
    return dict(known[name])


@scratch.command("up")
def scratch_up(
    name: str, role: Annotated[str, typer.Option(help="gpu binds vLLM, models and NVIDIA's packages.")] = "ops"
) -> None:
    """Boot one more machine and print how to reach it as JSON. Example: python -m coderack_lab scratch up mol"""
    if not lifecycle.is_up():
        raise LabError("the lab is down; wanted: up. Run `make lab-up` first.")
    known = contact.scratch_requests()
    taken = {spec.address for spec in known.values()}
    address = known[name].address if name in known else next((a for a in s.SCRATCH_ADDRESSES if a not in taken), None)
    if address is None:
        raise LabError("no address is left for another machine; `scratch down` one first.")
    key = s.SSH_KEY.with_suffix(".pub").read_text()
    contact.request_scratch(NodeSpec(name, address, role, key, f"scratch-{name}"))
    lifecycle.wait_for_node(name)
    options = contact.ssh_options()
    print(json.dumps({
        "instance": name, "address": address, "user": s.USER, "port": 22, "identity_file": str(s.SSH_KEY),
        "ssh_args": " ".join(f"'{o}'" if " " in o else o for o in options),
    }))  # fmt: skip


@scratch.command("down")
def scratch_down(name: str) -> None:
    """Stop and wipe such a machine; fine if there is none. Example: python -m coderack_lab scratch down mol"""
    contact.withdraw_scratch(name)
    lifecycle.wait_for_no_node(name)


@app.command("snapshot")
def snapshot_command(
    compare: Annotated[
        Path | None, typer.Option(help="An earlier snapshot: print what differs, exit 1 if anything does.")
    ] = None,
) -> None:
    """Everything on this host that a lab could leave behind, one line each. Example: make lab-snapshot > before.txt"""
    now = snapshot.take()
    if compare is None:
        print("\n".join(now))
        return
    rows = list(difflib.unified_diff(compare.read_text().splitlines(), now, "before", "now", lineterm="", n=0))
    print("\n".join(rows) if rows else "snapshot: nothing differs")
    raise typer.Exit(1 if rows else 0)


def main() -> None:
    """Run a command; errors become one message and an exit code, never a traceback."""
    stop_on_signals()
    die_with_parent(os.getppid())  # a killed make must not leave a demo at work that nobody sees
    try:
        if os.geteuid() != 0 and "--help" not in sys.argv:
            raise Unknown("only root can see and change the lab; run it with sudo")
        app(standalone_mode=True)
    except Interrupted as error:
        print(
            f"\nlab: {error}. `make demo` starts over where needed; `make lab-down` removes everything.",
            file=sys.stderr,
        )
        sys.exit(error.exit_code)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # no space, no permission: the host's, not ours
        print(f"lab: the host refused: {error}. `make lab-down` removes what was begun.", file=sys.stderr)
        sys.exit(1)
    finally:
        cgroups.remove("build")
