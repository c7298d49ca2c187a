"""Faults from outside a node: cable, loss, narrow link, power. Each has its repair."""

from __future__ import annotations

import json
from collections.abc import Collection

from coderack_lab import network, node
from coderack_lab import settings as s
from coderack_lab.shell import output

KINDS = {
    "partition": "pull the node's cable",
    "loss": "drop 30 % of the packets to the node",
    "slow": "narrow the link to the node to 4 Mbit/s",
    "power": "pull the plug (SIGKILL to everything on it); the repair starts the instance again through the EC2 API",
    "uplink": "cut the whole lab off from the outside (no NODE)",
}


def _loss_table(name: str) -> str:
    return f"loss_{name.replace('-', '_')}"


def inject(kind: str, name: str) -> None:
    """Break something; `kind` is one of KINDS, `name` a node that is up (nothing for uplink)."""
    cable = f"vb-{s.machine(name)}"
    if kind == "partition":
        output(network.inside(["ip", "link", "set", cable, "down"]))
    elif kind == "uplink":
        output(network.inside(["ip", "link", "set", s.UPLINK_INSIDE, "down"]))
    elif kind == "slow":
        narrow = ["root", "tbf", "rate", "4mbit", "burst", "32kb", "latency", "200ms"]
        output(network.inside(["tc", "qdisc", "replace", "dev", cable, *narrow]))
    elif kind == "loss":
        rules = (
            f"table bridge {_loss_table(name)} {{ chain lossy {{ "
            f'type filter hook forward priority 0; oifname "{cable}" numgen random mod 100 < 30 drop; }}; }}'
        )
        output(network.inside(["nft", rules]))
    elif kind == "power":
        node.pull_the_plug(name)


def repair(kind: str, name: str) -> None:
    """Undo one kind of fault on a node; for power, wait until the node has booted."""
    cable = f"vb-{s.machine(name)}"
    if kind == "power":
        _power_on(name)
    elif kind == "uplink":
        output(network.inside(["ip", "link", "set", s.UPLINK_INSIDE, "up"]))
        # Setting a link down took its default route with it.
        output(network.inside(["ip", "route", "replace", "default", "via", s.UPLINK_HOST_ADDRESS]))
    elif kind == "partition":
        output(network.inside(["ip", "link", "set", cable, "up"]))
    elif kind == "slow":
        output(network.inside(["tc", "qdisc", "delete", "dev", cable, "root"]))
    elif kind == "loss":
        output(network.inside(["nft", "delete", "table", "bridge", _loss_table(name)]))


def _power_on(name: str) -> None:
    """Stop the node's instance and start it, as an operator on AWS would.

    Between the two the supervisor must have seen the stop: until then the crashed machine counts as the running one.
    """
    from coderack_lab import instances, lifecycle  # noqa: PLC0415  boto3 takes a second

    instances.stop(name)
    lifecycle.wait_for_state(name, "stopped")
    instances.start(name)
    lifecycle.wait_for_node(name)


def active(names: Collection[str]) -> list[dict[str, str]]:
    """Which faults the network of these nodes has right now (kind, node): read from the kernel, not remembered.

    Raises LabError when the lab's namespace can't be read. Power is not among them: it is the node's state.
    """
    links = json.loads(output(network.inside(["ip", "-json", "link", "show"])))
    is_down = {link["ifname"] for link in links if "UP" not in link["flags"]}
    narrowed = {
        row["dev"]
        for row in json.loads(output(network.inside(["tc", "-json", "qdisc", "show"])))
        if row["kind"] == "tbf"
    }
    tables = json.loads(output(network.inside(["nft", "-j", "list", "tables"])))["nftables"]
    lossy = {row["table"]["name"] for row in tables if "table" in row}
    found = [{"kind": "uplink", "node": ""}] if s.UPLINK_INSIDE in is_down else []
    for name in sorted(names):
        cable = f"vb-{s.machine(name)}"
        kinds = {"partition": cable in is_down, "slow": cable in narrowed, "loss": _loss_table(name) in lossy}
        found += [{"kind": kind, "node": name} for kind, is_there in kinds.items() if is_there]
    return found
