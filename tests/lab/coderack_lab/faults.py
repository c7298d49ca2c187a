"""Faults from outside a node: cable, loss, narrow link, power. Each has its repair."""

from __future__ import annotations

from coderack_lab import network, node
from coderack_lab import settings as s
from coderack_lab.errors import BadInput
from coderack_lab.shell import output

KINDS = {
    "partition": "pull the node's cable",
    "loss": "drop 30 % of the packets to the node",
    "slow": "narrow the link to the node to 4 Mbit/s",
    "power": "pull the plug (SIGKILL to everything on it); start the instance again through the EC2 API",
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
    """Undo one kind of fault on a node. Raises BadInput for power, which only the EC2 API gives back."""
    cable = f"vb-{s.machine(name)}"
    if kind == "power":
        raise BadInput(f"{name} gets its power back through the EC2 API: stop its instance, then start it")
    if kind == "uplink":
        output(network.inside(["ip", "link", "set", s.UPLINK_INSIDE, "up"]))
        # Setting a link down took its default route with it.
        output(network.inside(["ip", "route", "replace", "default", "via", s.UPLINK_HOST_ADDRESS]))
    elif kind == "partition":
        output(network.inside(["ip", "link", "set", cable, "up"]))
    elif kind == "slow":
        output(network.inside(["tc", "qdisc", "delete", "dev", cable, "root"]))
    elif kind == "loss":
        output(network.inside(["nft", "delete", "table", "bridge", _loss_table(name)]))
