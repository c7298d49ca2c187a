"""The fleet: which machines exist, what is in them and how they are reached.

This is the one contract between what makes machines (Terraform, or a hand-written list of bare-metal hosts) and
everything that configures or measures them. Secrets never belong in it; unknown keys are refused.
"""

import ipaddress
import re
from collections import Counter, defaultdict
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, StrictInt, StringConstraints, field_validator, model_validator

from coderack.spec.checked import Frozen

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
# Values end up in an inventory that Ansible templates: nothing that could read as an expression gets through.
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/()+-]{0,99}$")]

# Names that Ansible itself gives a meaning to. Those of our groups have an underscore, which no node name has.
_ANSIBLE_NAMES = ("all", "localhost", "ungrouped")

# Version 4 only: the roles' firewalls and downloads are.
PRIVATE_NETWORKS = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",  # RFC 6598; AWS allows it as a VPC range
    )
)
_HOSTNAME = re.compile(r"(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DIGITS_AND_DOTS = re.compile(r"[0-9.]+")
# What addresses and host names are made of. Python also takes `fd00::1%zone`, in which a zone can be any text.
_ADDRESS_CHARACTERS = re.compile(r"[A-Za-z0-9.:-]+")


class Gpus(Frozen):
    """The GPUs of one node; a node without any has model `none` and count 0."""

    model: Label
    count: Annotated[StrictInt, Field(ge=0, le=16)]


class Fabric(Frozen):
    """The network that collectives between GPU nodes use; `devices` are the RDMA devices to pin, empty for all."""

    kind: Literal["infiniband", "efa", "none"]
    devices: tuple[Label, ...] = ()


class Reservation(Frozen):
    """Reserved capacity: a capacity block takes its nodes away at `ends_at`, an on-demand reservation has no end."""

    id: Label
    ends_at: AwareDatetime | None = None


class Node(Frozen):
    """One machine. `address` is where Ansible connects to, `private_address` where the other nodes reach it (IPv4)."""

    name: Name
    role: Literal["gpu", "ops"]
    address: str
    private_address: str
    instance_id: Label | None = None
    instance_type: Label | None = None
    image_id: Label | None = None
    placement_group: Label | None = None
    zone: Label | None = None
    gpus: Gpus
    fabric: Fabric
    reservation: Reservation | None = None

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        problems = []
        if self.name in _ANSIBLE_NAMES:
            problems.append("the name has a meaning of its own in Ansible, wanted another such as gpu-a")
        if not _is_ip_or_hostname(self.address):
            problems.append(
                f"address is {self.address!r:.120}, wanted an IP address in its usual spelling or a host name"
            )
        if not _is_private_ipv4(self.private_address):
            wanted = ", ".join(str(network) for network in PRIVATE_NETWORKS)
            problems.append(
                f"private_address is {self.private_address!r:.80}, wanted the IPv4 address of a host in one of {wanted}"
            )
        if self.role == "gpu" and self.gpus.count == 0:
            problems.append("role is gpu and gpus.count is 0, wanted at least 1 (or role ops)")
        if self.role == "ops" and self.gpus.count > 0:
            problems.append(f"role is ops and gpus.count is {self.gpus.count}, wanted 0 (or role gpu)")
        if self.fabric.kind == "none" and self.fabric.devices:
            problems.append(f"fabric.kind is none and fabric.devices is {list(self.fabric.devices)}, wanted no devices")
        if problems:
            raise ValueError("; ".join(f"node {self.name}: {problem}" for problem in problems))
        return self


class Fleet(Frozen):
    """All machines of one environment."""

    version: Literal[1]
    stack: Name
    region: Name | None = None
    nodes: tuple[Node, ...]

    @field_validator("version", mode="before")
    @classmethod
    def _version_is_a_number(cls, value: object) -> object:
        # Literal[1] compares, and True == 1.0 == 1.
        if type(value) is not int:
            raise ValueError(f"version is {value!r:.80}, wanted the number 1")
        return value

    @property
    def gpu_nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role == "gpu")

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        problems = [
            *self._roles(),
            *self._doubles(),
            *self._mixed_fabric(),
            *self._mixed_gpus(),
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _roles(self) -> list[str]:
        problems = [] if self.gpu_nodes else ["no node has role gpu, wanted at least one"]
        ops = [node.name for node in self.nodes if node.role == "ops"]
        if len(ops) != 1:
            problems.append(f"nodes of role ops: {_some(ops) or 'none'}; wanted exactly one")
        return problems

    def _doubles(self) -> list[str]:
        names = [node.name for node in self.nodes]
        instances = Counter(node.instance_id for node in self.nodes if node.instance_id)
        holders: dict[str, list[str]] = defaultdict(list)
        for node in self.nodes:
            # One node may use the same address for both purposes; two nodes may share none.
            for address in sorted({node.address.lower(), node.private_address.lower()}):
                holders[address].append(node.name)
        return [
            *(f"node name {name} is used {times} times, wanted once" for name, times in sorted(Counter(names).items())
              if times > 1),
            *(f"instance_id {one} is used {times} times, wanted once" for one, times in sorted(instances.items())
              if times > 1),
            *(f"address {address} belongs to nodes {_some(nodes)}, wanted one node per address"
              for address, nodes in holders.items() if len(nodes) > 1),
        ]  # fmt: skip

    def _mixed_fabric(self) -> list[str]:
        kinds = {node.name: node.fabric.kind for node in self.gpu_nodes}
        if len(set(kinds.values())) <= 1:
            return []
        seen = _some([f"{name} has {kind}" for name, kind in sorted(kinds.items())])
        return [f"GPU nodes differ in fabric.kind ({seen}), wanted the same on all: one group cannot mix them"]

    def _mixed_gpus(self) -> list[str]:
        gpus = {node.name: f"{node.gpus.count} x {node.gpus.model}" for node in self.gpu_nodes}
        if len(set(gpus.values())) <= 1:
            return []
        seen = _some([f"{name} has {kind}" for name, kind in sorted(gpus.items())])
        return [f"GPU nodes differ in gpus ({seen}), wanted the same on all: a group's ranks are alike"]


def _some(names: list[str]) -> str:
    """The first of many: an error about 10,000 nodes shall still be readable."""
    more = len(names) - 10
    return ", ".join(names[:10]) + (f" and {more} more" if more > 0 else "")


def _is_ip_or_hostname(text: str) -> bool:
    if _ADDRESS_CHARACTERS.fullmatch(text) is None:
        return False
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        # 10.0.0.300 would pass as a host name; it is a misspelt address.
        return _DIGITS_AND_DOTS.fullmatch(text) is None and _HOSTNAME.fullmatch(text.lower()) is not None
    return str(address) == text and not _means_several_or_none(address)


def _means_several_or_none(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return address.is_unspecified or address.is_multicast or mapped


def _is_private_ipv4(text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    # First and last address of a block are never a host's, whatever the subnet; a .0 within may well be.
    return str(address) == text and any(
        address in network and address not in (network.network_address, network.broadcast_address)
        for network in PRIVATE_NETWORKS
    )
