"""Faults from outside a node: cable, loss, narrow link, power. Each has its repair."""

from __future__ import annotations

from coderack_lab import network, node
from coderack_lab import settings as s
from coderack_lab.errors import BadInput
from coderack_lab.shell import output, succeeds

KINDS = {
    "partition": "pull the node's cable",
    "loss": "drop 30 % of the packets to the node",
    "slow": "narrow the link to the node to 4 Mbit/s",
    "power": "pull the plug (SIGKILL to everything on it); start the instance again through the EC2 API",
    "uplink": "cut the whole lab off from the outside (no NODE)",
}
_LOSS_TABLE = "coderack_fault"


def inject(kind: str, name: str) -> None:
    """Break something. Raises BadInput for an unknown kind."""
    cable = f"vb-{s.machine(name)}"
    if kind == "partition":
        output(network.inside(["ip", "link", "set", cable, "down"]))
    elif kind == "uplink":
        output(network.inside(["ip", "link", "set", s.UPLINK_INSIDE, "down"]))
    elif kind == "slow":
        output(
            network.inside(
                [
                    "tc",
                    "qdisc",
                    "replace",
                    "dev",
                    cable,
                    "root",
                    "tbf",
                    "rate",
                    "4mbit",
                    "burst",
                    "32kb",
                    "latency",
                    "200ms",
                ]
            )
        )
    elif kind == "loss":
        rules = (
            f"table bridge {_LOSS_TABLE} {{ chain forward_{name.replace('-', '_')} {{ "
            f'type filter hook forward priority 0; oifname "{cable}" numgen random mod 100 < 30 drop; }} }}'
        )
        output(network.inside(["nft", rules]))
    elif kind == "power":
        node.pull_the_plug(name)
    else:
        raise BadInput(f"unknown fault {kind!r}; wanted one of: {', '.join(KINDS)}")


def repair(name: str) -> None:
    """Undo what `inject` can leave on a node's cable and on the uplink."""
    if succeeds(network.inside(["nft", "list", "table", "bridge", _LOSS_TABLE])):
        output(network.inside(["nft", "delete", "table", "bridge", _LOSS_TABLE]))
    if name:
        cable = f"vb-{s.machine(name)}"
        succeeds(network.inside(["tc", "qdisc", "delete", "dev", cable, "root"]))
        output(network.inside(["ip", "link", "set", cable, "up"]))
    else:
        output(network.inside(["ip", "link", "set", s.UPLINK_INSIDE, "up"]))
        if not succeeds(network.inside(["ip", "route", "show", "exact", "default", "via", s.UPLINK_HOST_ADDRESS])):
            return
        # Setting a link down takes its default route with it.
        succeeds(network.inside(["ip", "route", "replace", "default", "via", s.UPLINK_HOST_ADDRESS]))
