"""Network interfaces of multi-card instances: EFA types and card indexes, which moto drops."""

import copy
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import elastic_network_interfaces, instances
from moto.ec2.models.elastic_network_interfaces import Attachment, NetworkInterface
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response

from .addresses import AddressPool

# moto keys the interfaces of an instance by device index alone; this stride leaves room for one such range per card.
CARD_STRIDE = 1000


def slot(card: int, device: int) -> int:
    return card * CARD_STRIDE + device


class FabricInterface(NetworkInterface):
    """An interface that takes its address from the subnet's pool and knows its network card."""

    def __init__(self, ec2_backend: Any, subnet: Any, private_ip_address: Any, *args: Any, **kwargs: Any):
        pool: AddressPool = ec2_backend.get_subnet(subnet) if isinstance(subnet, str) else subnet
        wanted = private_ip_address
        if isinstance(wanted, list):
            wanted = next(iter(wanted), None)
        if wanted:
            pool.request_ip(wanted)
        super().__init__(ec2_backend, pool, wanted or pool.get_available_subnet_ip(), *args, **kwargs)

    @property
    def attachment(self) -> Attachment | None:
        attachment = super().attachment
        if attachment:
            attachment.network_card_index, attachment.device_index = divmod(self.device_index or 0, CARD_STRIDE)
        return attachment

    def drop_address(self) -> None:
        """An EFA-only interface carries no IP traffic and so has no address."""
        self.private_ip_address, self.private_ip_addresses, self.private_dns_name = None, [], ""


class FabricInstance(Instance):
    """An instance with several network cards."""

    def prep_nics(self, nic_spec: list[dict[str, Any]], *args: Any, **kwargs: Any) -> None:
        specs = [dict(spec) for spec in nic_spec]
        for spec in specs:
            spec["DeviceIndex"] = slot(int(spec.get("NetworkCardIndex") or 0), int(spec.get("DeviceIndex") or 0))
            spec.setdefault("DeleteOnTermination", True)
        specs.sort(key=lambda spec: int(spec["DeviceIndex"]))  # the primary one first: its address is chosen already
        super().prep_nics(specs, *args, **kwargs)
        if not nic_spec:
            self.nics[0].delete_on_termination = True
        for spec in specs:
            interface = self.nics[spec["DeviceIndex"]]
            if not spec.get("NetworkInterfaceId"):
                interface.interface_type = spec.get("InterfaceType") or "interface"
            if interface.interface_type == "efa-only" and isinstance(interface, FabricInterface):
                interface.drop_address()

    def terminate(self) -> instances.InstanceState:
        # A repeated request succeeds in EC2; moto would stumble over the interfaces that are gone already.
        if self.state == "terminated":
            return copy.copy(self._state)
        return super().terminate()


class InterfaceActions(EC2Response):
    def create_network_interface(self) -> ActionResult:
        response = super().create_network_interface()
        interface: NetworkInterface = response.result["NetworkInterface"]  # type: ignore[index]
        interface.interface_type = self._get_param("InterfaceType") or "interface"
        return response

    def delete_nat_gateway(self) -> ActionResult:
        response = super().delete_nat_gateway()
        # moto leaves the gateway's interface behind, and with it an address that would never be free again.
        gateway = self.ec2_backend.nat_gateways[self._get_param("NatGatewayId")]
        self.ec2_backend.enis.pop(gateway._eni.id, None)
        return response


def install() -> None:
    elastic_network_interfaces.NetworkInterface = FabricInterface  # type: ignore[misc]
    instances.Instance = FabricInstance  # type: ignore[misc]
