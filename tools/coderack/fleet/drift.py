"""Where an inventory and the truth differ: against Terraform's state, and against what EC2 says now."""

import datetime
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coderack.spec.fleet import Fleet, Node

# AWS begins to terminate the instances of a capacity block half an hour before its end.
BLOCK_TAKES_NODES = datetime.timedelta(minutes=30)


@dataclass(frozen=True)
class Finding:
    """One difference: the inventory says `wanted`, `source` shows `seen`; empty `node` means the fleet itself."""

    node: str
    field: str
    wanted: str
    seen: str
    source: str

    def __str__(self) -> str:
        subject = self.node or "fleet"
        return f"{subject}: {self.field} is {self.seen} in {self.source}, {self.wanted} in the inventory"


def against_state(inventory: Fleet, state: Fleet) -> list[Finding]:
    """All differences between the two, by node; their order within a fleet does not count."""
    source = "Terraform's state"
    written = {node.name: node for node in inventory.nodes}
    applied = {node.name: node for node in state.nodes}
    findings = _fields("", inventory, state, ("stack", "region", "version"), source)
    for name in sorted(written.keys() | applied.keys()):
        ours, theirs = written.get(name), applied.get(name)
        if ours is None or theirs is None:
            wanted, seen = ("present" if node else "missing" for node in (ours, theirs))
            findings.append(Finding(name, "node", wanted, seen, source))
        else:
            findings += _fields(name, ours, theirs, tuple(Node.model_fields), source)
    return findings


def against_ec2(
    fleet: Fleet,
    instances: Mapping[str, Mapping[str, Any]],
    reservations: Mapping[str, Mapping[str, Any]],
    now: datetime.datetime,
) -> list[Finding]:
    """All differences between the inventory and EC2's own records of its instances and reservations, both by id.

    What the inventory does not say is not compared; nodes without an instance id are not looked at.
    """
    findings: list[Finding] = []
    for node in sorted(fleet.nodes, key=lambda node: node.name):
        if node.instance_id is not None:
            findings += _instance(node, instances.get(node.instance_id))
    holders: dict[str, Node] = {}
    for node in fleet.nodes:
        if node.reservation is not None:
            holders.setdefault(node.reservation.id, node)
    for identifier, holder in sorted(holders.items()):
        findings += _reservation(holder, reservations.get(identifier), now)
    return findings


def not_compared(fleet: Fleet) -> dict[str, int]:
    """Fields that cannot be compared, with the number of such nodes.

    An inventory of an older date does not say them, and EC2 cannot tell where a host name leads to.
    """
    counted = {
        field: sum(1 for node in fleet.nodes if getattr(node, field) is None)
        for field in ("image_id", "instance_type", "zone")
    }
    gpu = sum(1 for node in fleet.gpu_nodes if node.placement_group is None)
    asked = [node for node in fleet.nodes if node.instance_id is not None]
    names = sum(1 for node in asked if node.address != node.instance_id and not _is_ip(node.address))
    return {field: count for field, count in (counted | {"placement_group": gpu, "address": names}).items() if count}


def _fields(name: str, ours: Fleet | Node, theirs: Fleet | Node, fields: tuple[str, ...], source: str) -> list[Finding]:
    return [
        Finding(name, field, _shown(getattr(ours, field)), _shown(getattr(theirs, field)), source)
        for field in fields
        if getattr(ours, field) != getattr(theirs, field)
    ]


def _instance(node: Node, record: Mapping[str, Any] | None) -> list[Finding]:
    if record is None:
        return [Finding(node.name, "instance_id", node.instance_id or "", "unknown", "EC2")]
    state = record["State"]["Name"]
    findings = [] if state == "running" else [Finding(node.name, "state", "running", state, "EC2")]
    if state in ("shutting-down", "terminated"):
        # It has lost its addresses; to list them too would hide what happened.
        return findings
    placement = record.get("Placement", {})
    pairs = {
        "private_address": (node.private_address, record.get("PrivateIpAddress")),
        "instance_type": (node.instance_type, record.get("InstanceType")),
        "image_id": (node.image_id, record.get("ImageId")),
        "zone": (node.zone, placement.get("AvailabilityZone")),
        "placement_group": (node.placement_group, placement.get("GroupName")),
        "reservation.id": (node.reservation.id if node.reservation else None, record.get("CapacityReservationId")),
    }
    findings += [
        Finding(node.name, field, wanted, _shown(seen or None), "EC2")
        for field, (wanted, seen) in pairs.items()
        if wanted is not None and wanted != seen
    ]
    return findings + _address(node, record)


def _address(node: Node, record: Mapping[str, Any]) -> list[Finding]:
    if node.address in (node.instance_id, node.private_address) or not _is_ip(node.address):
        # Reached through Session Manager; compared above; or a name, which EC2 cannot tell.
        return []
    own = [record.get(member) for member in ("PrivateIpAddress", "PublicIpAddress", "Ipv6Address")]
    seen = [address for address in own if address]
    if node.address in seen:
        return []
    return [Finding(node.name, "address", node.address, " and ".join(seen) or "none", "EC2")]


def _reservation(node: Node, record: Mapping[str, Any] | None, now: datetime.datetime) -> list[Finding]:
    reservation = node.reservation
    if reservation is None:
        return []
    label = f"reservation {reservation.id}"
    if record is None:
        return [Finding(node.name, label, "active", "unknown", "EC2")]
    findings = []
    if record["State"] != "active":
        findings.append(Finding(node.name, label, "active", record["State"], "EC2"))
    end = record.get("EndDate")
    if reservation.ends_at is not None and end != reservation.ends_at:
        findings.append(Finding(node.name, f"end of {label}", _shown(reservation.ends_at), _shown(end), "EC2"))
    if end is not None and record["State"] == "active" and end - now <= BLOCK_TAKES_NODES:
        seen = f"{_shown(end)}, which is too close: AWS takes the nodes 30 minutes before it"
        findings.append(Finding(node.name, f"end of {label}", "further off", seen, "EC2"))
    return findings


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if hasattr(value, "model_dump"):
        fields = value.model_dump(mode="json", exclude_none=True)
        return ", ".join(f"{key} {field}" for key, field in fields.items())
    return str(value)
