"""Private addresses as AWS gives them out.

moto draws the address of most interfaces at random: outside the subnet (NAT gateways), equal to another one, or the
network's own. In the lab an address decides which machine boots where, so it has to be free, valid and predictable.
"""

import ipaddress
from collections.abc import Iterable
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import nat_gateways, subnets, vpcs

RESERVED_AT_START = 4  # network, router, DNS and one kept by AWS


def lowest_free(network: ipaddress.IPv4Network, taken: Iterable[str]) -> str | None:
    """The first assignable address of the network that is not taken, None if there is none."""
    used = set(taken)
    first, last = int(network.network_address) + RESERVED_AT_START, int(network.broadcast_address) - 1
    candidates = (str(ipaddress.IPv4Address(number)) for number in range(first, last + 1))
    return next((address for address in candidates if address not in used), None)


def assignable(network: ipaddress.IPv4Network, address: str) -> bool:
    """Whether AWS would let an interface have this address."""
    candidate = ipaddress.IPv4Address(address)
    offset = int(candidate) - int(network.network_address)
    return candidate in network and offset >= RESERVED_AT_START and candidate != network.broadcast_address


class AddressPool(subnets.Subnet):
    """A subnet whose free addresses follow from the interfaces that exist, so that none is lost or given twice."""

    def taken(self) -> set[str]:
        return {
            entry["PrivateIpAddress"]
            for interface in self.ec2_backend.enis.values()
            if interface.subnet.id == self.id
            for entry in interface.private_ip_addresses
        }

    def get_available_subnet_ip(self, instance: Any = None) -> str:
        address = lowest_free(ipaddress.IPv4Network(self.cidr_block), self.taken())
        if address is None:
            raise EC2ClientError(
                "InsufficientFreeAddressesInSubnet",
                f"The subnet '{self.id}' has no free address left in {self.cidr_block}.",
            )
        return address

    def request_ip(self, ip: str, instance: Any = None) -> None:
        if not assignable(ipaddress.IPv4Network(self.cidr_block), ip):
            raise EC2ClientError(
                "InvalidParameterValue", f"Address {ip} cannot be assigned in subnet '{self.id}' ({self.cidr_block})."
            )
        if ip in self.taken():
            raise EC2ClientError("InvalidIPAddress.InUse", f"Address {ip} is in use.")

    def del_subnet_ip(self, ip: str) -> None:
        """Nothing to do: a deleted interface no longer counts."""


def install() -> None:
    subnets.Subnet = AddressPool  # type: ignore[misc]
    # These ask for a random address; an empty one makes the interface take a free one of its subnet.
    for module in (nat_gateways, vpcs):
        vars(module)["random_private_ip"] = lambda *_args, **_kwargs: ""
