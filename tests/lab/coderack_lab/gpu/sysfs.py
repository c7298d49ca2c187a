"""A fake sysfs of a GPU node: PCI functions, InfiniBand and EFA devices, network ports.

Kinds of node:
  infiniband  8 GPUs, 4 NVSwitches, 8 ConnectX-7 at NDR, a BlueField bond and an Ethernet port beside them
  efa         8 GPUs, 4 NVSwitches, 32 EFA devices of 100 Gb/s and one ENA (AWS p5.48xlarge)
  pcie        8 H100 PCIe, no switch, no HCA
  vm          one H200 passed through, a virtio network card
  none        no NVIDIA function

Sources: gpud's public `sys-class-infiniband-h100.0` tree (names, firmware, rates, which counters there are and that a
healthy port shows `excessive_buffer_overrun_errors` 15, which is that counter's ceiling); the kernel's EFA driver
(counter names); rdma-core PR #884 (an EFA port has link layer Unknown and firmware 0.0.0.0). PCI topology is made up,
with a GPU and its NIC below one PCIe switch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coderack_lab.errors import BadInput
from coderack_lab.gpu import profiles

NVIDIA, MELLANOX, AMAZON, BROADCOM, INTEL, VIRTIO = 0x10DE, 0x15B3, 0x1D0F, 0x1000, 0x8086, 0x1AF4
# Which driver binds to a function, by vendor and class.
DRIVERS = {
    (0x10DE, 0x030200): "nvidia",
    (0x10DE, 0x068000): "nvidia-nvswitch",
    (0x15B3, 0x020700): "mlx5_core",
    (0x15B3, 0x020000): "mlx5_core",
    (0x1AF4, 0x020000): "virtio-pci",
}
CLASS_3D, CLASS_BRIDGE_OTHER, CLASS_PCI_BRIDGE = 0x030200, 0x068000, 0x060400
CLASS_ETHERNET, CLASS_INFINIBAND = 0x020000, 0x020700

COMPUTE_HCAS = ("mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9")
EFA_COUNT = 32

_IB_COUNTERS = {
    "VL15_dropped": 0,
    "excessive_buffer_overrun_errors": 15,
    "link_downed": 0,
    "link_error_recovery": 0,
    "local_link_integrity_errors": 0,
    "multicast_rcv_packets": 0,
    "multicast_xmit_packets": 0,
    "port_rcv_constraint_errors": 0,
    "port_rcv_data": 230539874932483,
    "port_rcv_errors": 14,
    "port_rcv_packets": 317548853677,
    "port_rcv_remote_physical_errors": 0,
    "port_rcv_switch_relay_errors": 1,
    "port_xmit_constraint_errors": 0,
    "port_xmit_data": 230442669431839,
    "port_xmit_discards": 0,
    "port_xmit_packets": 315487941081,
    "port_xmit_wait": 2489603687,
    "symbol_error": 0,
    "unicast_rcv_packets": 317548853677,
    "unicast_xmit_packets": 315487941081,
}
_IB_HARDWARE_COUNTERS = {
    "duplicate_request": 0,
    "implied_nak_seq_err": 0,
    "lifespan": 12,
    "local_ack_timeout_err": 0,
    "out_of_buffer": 0,
    "out_of_sequence": 0,
    "packet_seq_err": 0,
    "req_cqe_error": 0,
    "req_cqe_flush_error": 0,
    "req_remote_access_errors": 0,
    "req_remote_invalid_request": 0,
    "resp_cqe_error": 0,
    "resp_cqe_flush_error": 0,
    "resp_local_length_error": 0,
    "resp_remote_access_errors": 0,
    "rnr_nak_retry_err": 0,
    "roce_adp_retrans": 3,
    "roce_adp_retrans_to": 0,
    "rx_read_requests": 9187392,
    "rx_write_requests": 3809045607,
}
_EFA_HARDWARE_COUNTERS = {
    "lifespan": 12,
    "tx_bytes": 95367431640625,
    "tx_pkts": 11641532182,
    "rx_bytes": 95367431640625,
    "rx_pkts": 11641532182,
    "rx_drops": 0,
    "send_bytes": 4096000,
    "send_wrs": 1000,
    "recv_bytes": 4096000,
    "recv_wrs": 1000,
    "rdma_read_wrs": 2000,
    "rdma_read_bytes": 8192000,
    "rdma_read_wr_err": 0,
    "rdma_read_resp_bytes": 8192000,
    "rdma_write_wrs": 3000,
    "rdma_write_bytes": 12288000,
    "rdma_write_wr_err": 0,
    "rdma_write_recv_bytes": 12288000,
    "retrans_bytes": 0,
    "retrans_pkts": 0,
    "retrans_timeout_events": 0,
    "unresponsive_remote_events": 0,
    "impaired_remote_conn_events": 0,
}


def _write(file: Path, value: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{value}\n")


def config_space(vendor: int, device: int, class_code: int, acs_control: int | None) -> bytes:
    """PCI configuration space of a function, with an ACS capability when `acs_control` is given.

    The capability is the first extended one, at 0x100: id 0x000d, its control word at 0x106 (PCI Express base
    specification, ACS).
    """
    space = bytearray(4096)
    struct.pack_into("<HH", space, 0, vendor, device)
    struct.pack_into("<I", space, 8, class_code << 8 | 0xA1)
    space[0x0E] = 1 if class_code == CLASS_PCI_BRIDGE else 0
    if acs_control is not None:
        struct.pack_into("<IHH", space, 0x100, 0x0001_000D, 0x005F, acs_control)
    return bytes(space)


@dataclass(frozen=True)
class Function:
    """One PCI function in the tree."""

    folder: Path

    @property
    def address(self) -> str:
        return self.folder.name

    def set(self, name: str, value: object) -> None:
        """Write one attribute file, such as current_link_width."""
        _write(self.folder / name, value)

    def set_acs(self, control: int) -> None:
        """ACS control bits; 0x1d is redirect on, what a switch port shows when nobody turned it off."""
        config = bytearray((self.folder / "config").read_bytes())
        struct.pack_into("<IHH", config, 0x100, 0x0001_000D, 0x005F, control)
        (self.folder / "config").write_bytes(config)

    def stop_answering(self) -> None:
        """The card fell off the bus: configuration space reads all ones."""
        (self.folder / "config").write_bytes(b"\xff" * 4096)
        self.set("current_link_speed", "Unknown")
        self.set("current_link_width", 63)


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device."""

    folder: Path

    def set(self, name: str, value: object) -> None:
        """Write one file of the port: state, phys_state, rate, link_layer, counters/NAME, hw_counters/NAME."""
        _write(self.folder / name, value)

    def down(self) -> None:
        """As a downed NDR port really reads (nccl #1935): not at 400, but DOWN, Disabled and 10 Gb/s."""
        self.set("state", "1: DOWN")
        self.set("phys_state", "3: Disabled")
        self.set("rate", "10 Gb/sec (4X SDR)")
        self.set("lid", "0xffff")


@dataclass
class Sysfs:
    """The tree at `root` and handles to what tests want to break."""

    root: Path
    gpus: list[Function] = field(default_factory=list)
    switches: list[Function] = field(default_factory=list)
    bridges: list[Function] = field(default_factory=list)
    nics: dict[str, Function] = field(default_factory=dict)
    iommu: bool = False  # whether the kernel has an IOMMU at all; a guest usually has none
    _groups: int = 0

    def port(self, device: str, number: int = 1) -> Port:
        return Port(self.root / "class/infiniband" / device / "ports" / str(number))

    def remove(self, function: Function) -> None:
        """Take a PCI function away, as after a surprise removal; its RDMA device goes too."""
        (self.root / "bus/pci/devices" / function.address).unlink()
        for name in [name for name, owner in self.nics.items() if owner == function]:
            self.remove_device(name)

    def remove_device(self, name: str) -> None:
        """Take an RDMA device away while its PCI function stays: the driver did not bind."""
        (self.root / "class/infiniband" / name).unlink()
        (self.root / "class/infiniband_verbs" / f"uverbs{list(self.nics).index(name)}").unlink()
        (self.nics[name].folder / "driver").unlink()

    # ---- building ----

    def function(
        self, parent: Path, address: str, vendor: int, device: int, class_code: int, *, acs: int | None = None
    ) -> Function:
        folder = parent / address
        speed, width = ("32.0 GT/s PCIe", 16) if class_code != CLASS_ETHERNET else ("16.0 GT/s PCIe", 8)
        attributes = {
            "vendor": f"0x{vendor:04x}",
            "device": f"0x{device:04x}",
            "class": f"0x{class_code:06x}",
            "revision": "0xa1",
            "subsystem_vendor": f"0x{vendor:04x}",
            "subsystem_device": "0x0000",
            "numa_node": 0 if int(address.split(":")[1], 16) < 0x80 else 1,
            "enable": 1,
            "current_link_speed": speed,
            "max_link_speed": speed,
            "current_link_width": width,
            "max_link_width": width,
            "aer_dev_correctable": "RxErr 0\nBadTLP 0\nBadDLLP 0\nRollover 0\nTimeout 0\nTOTAL_ERR_COR 0",
            "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
            "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0",
        }
        for name, value in attributes.items():
            _write(folder / name, value)
        (folder / "config").write_bytes(config_space(vendor, device, class_code, acs))
        self._link(self.root / "bus/pci/devices" / address, folder)
        driver = DRIVERS.get((vendor, class_code), "pcieport" if class_code == CLASS_PCI_BRIDGE else None)
        if driver or vendor == AMAZON:
            self.bind(folder, driver or ("efa" if device >> 8 == 0xEF else "ena"))
        if self.iommu:
            self._iommu_group(folder)
        return Function(folder)

    def bind(self, folder: Path, driver: str) -> None:
        target = self.root / "bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        self._link(folder / "driver", target)

    def _iommu_group(self, folder: Path) -> None:
        """Every function in a group of its own with an identity domain: present, and not translating."""
        group = self.root / "kernel/iommu_groups" / str(self._groups)
        self._groups += 1
        _write(group / "type", "identity")
        self._link(folder / "iommu_group", group)

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        # Relative, as in a real sysfs: the tree can be moved.
        link.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))

    def rdma(
        self, name: str, function: Function, values: dict[str, object], counters: dict[str, dict[str, int]]
    ) -> None:
        """An RDMA device below its PCI function; keys of `values` that start with `ports/` are the port's."""
        folder = function.folder / "infiniband" / name
        for key, value in values.items():
            _write(folder / key, value)
        for group, numbers in counters.items():
            for key, number in numbers.items():
                _write(folder / "ports/1" / group / key, number)
        self._link(folder / "device", function.folder)
        self._link(self.root / "class/infiniband" / name, folder)
        verbs = f"uverbs{len(self.nics)}"
        _write(function.folder / "infiniband_verbs" / verbs / "ibdev", name)
        self._link(self.root / "class/infiniband_verbs" / verbs, function.folder / "infiniband_verbs" / verbs)
        self.nics[name] = function

    def net(self, name: str, function: Function, speed_mbps: int, mtu: int, address: str) -> None:
        folder = function.folder / "net" / name
        for key, value in {
            "operstate": "up",
            "carrier": 1,
            "carrier_changes": 2,
            "speed": speed_mbps,
            "mtu": mtu,
        }.items():
            _write(folder / key, value)
        _write(folder / "address", address)
        self._link(folder / "device", function.folder)
        self._link(self.root / "class/net" / name, folder)


def _branch(tree: Sysfs, bus: int, ports: int) -> list[Path]:
    """A root port and a PCIe switch on it; the folders of its downstream ports. ACS redirect is off everywhere."""
    domain = tree.root / f"devices/pci0000:{bus - 3:02x}"
    upstream = domain
    for depth in (2, 1):
        vendor = INTEL if depth == 2 else BROADCOM
        address = f"0000:{bus - 3 if depth == 2 else bus - 2:02x}:0{1 if depth == 2 else 0}.0"
        bridge = tree.function(upstream, address, vendor, 0x0001, CLASS_PCI_BRIDGE, acs=0)
        tree.bridges.append(bridge)
        upstream = bridge.folder
    downstream = [
        tree.function(upstream, f"0000:{bus - 1:02x}:{port:02x}.0", BROADCOM, 0xC030, CLASS_PCI_BRIDGE, acs=0)
        for port in range(ports)
    ]
    tree.bridges.extend(downstream)
    return [port.folder for port in downstream]


def _nvswitches(tree: Sysfs) -> None:
    for bus in profiles.SWITCH_BUS_IDS:
        parent = tree.root / "devices/pci0000:00"
        tree.switches.append(tree.function(parent, f"0000:{bus}:00.0", NVIDIA, 0x22A3, CLASS_BRIDGE_OTHER))


def _gpu_branches(tree: Sysfs, device: int, extra_ports: int) -> list[list[Path]]:
    """Eight GPUs, each below a PCIe switch of its own; the free downstream ports beside each GPU."""
    free = []
    for bus in profiles.GPU_BUS_IDS:
        first, *others = _branch(tree, int(bus, 16), 1 + extra_ports)
        tree.gpus.append(tree.function(first, f"0000:{bus}:00.0", NVIDIA, device, CLASS_3D))
        free.append(others)
    return free


def _ib_port(rate: str, layer: str, lid: str) -> dict[str, object]:
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": layer, "lid": lid}
    return {f"ports/1/{key}": value for key, value in {**port, "sm_lid": "0x1", "cap_mask": "0xa751e848"}.items()}


def _infiniband(tree: Sysfs) -> None:
    _nvswitches(tree)
    counters = {"counters": _IB_COUNTERS, "hw_counters": _IB_HARDWARE_COUNTERS}
    for rail, (ports, name) in enumerate(zip(_gpu_branches(tree, 0x2330, 1), COMPUTE_HCAS, strict=True)):
        bus = int(profiles.GPU_BUS_IDS[rail], 16) + 1
        nic = tree.function(ports[0], f"0000:{bus:02x}:00.0", MELLANOX, 0x1021, CLASS_INFINIBAND)
        about: dict[str, object] = {"hca_type": "MT4129", "board_id": "MT_0000000838", "fw_ver": "28.41.1000"}
        about |= {"node_guid": f"b83f:d203:00e7:{rail:04x}", "node_type": "1: CA"}
        tree.rdma(name, nic, about | _ib_port("400 Gb/sec (4X NDR)", "InfiniBand", f"0x{0x20 + rail:x}"), counters)
        tree.net(f"ibs{rail}", nic, 400000, 4092, f"00:00:10:49:fe:80:00:00:00:00:00:{rail:02x}")
    root = tree.root / "devices/pci0000:00"
    bluefield = tree.function(root, "0000:0a:00.0", MELLANOX, 0xA2DC, CLASS_ETHERNET)
    about = {"hca_type": "MT41692", "board_id": "MT_0000000884", "fw_ver": "32.38.3056", "node_type": "1: CA"}
    tree.rdma("mlx5_bond_0", bluefield, about | _ib_port("200 Gb/sec (2X NDR)", "Ethernet", "0x0"), counters)
    storage = tree.function(root, "0000:0b:00.0", MELLANOX, 0x1021, CLASS_ETHERNET)
    about = {"hca_type": "MT4129", "board_id": "MT_0000000834", "fw_ver": "28.41.1000", "node_type": "1: CA"}
    tree.rdma("mlx5_2", storage, about | _ib_port("100 Gb/sec (4X EDR)", "Ethernet", "0x0"), counters)
    tree.net("eth0", storage, 100000, 9000, "02:00:00:00:00:0b")
    _write(tree.root / "module/nvidia_peermem/version", profiles.DRIVER)


def _efa(tree: Sysfs) -> None:
    _nvswitches(tree)
    for slot, ports in enumerate(_gpu_branches(tree, 0x2330, EFA_COUNT // 8)):
        for number, port in enumerate(ports):
            bus = int(profiles.GPU_BUS_IDS[slot], 16) + 1 + number
            nic = tree.function(port, f"0000:{bus:02x}:00.0", AMAZON, 0xEFA2, CLASS_ETHERNET)
            about: dict[str, object] = {"fw_ver": "0.0.0.0", "node_type": "7: unspecified"}
            about |= {"node_guid": f"0000:0000:00{slot:02x}:{number:04x}"} | _ib_port(
                "100 Gb/sec (4X EDR)", "Unknown", "0x0"
            )
            tree.rdma(f"rdmap{bus}s0", nic, about, {"hw_counters": _EFA_HARDWARE_COUNTERS})
    ena = tree.function(tree.root / "devices/pci0000:00", "0000:00:05.0", AMAZON, 0xEC20, CLASS_ETHERNET)
    tree.net("ens5", ena, 100000, 9001, "02:00:00:00:00:05")


def _pcie(tree: Sysfs) -> None:
    _gpu_branches(tree, 0x2331, 0)


def _vm(tree: Sysfs) -> None:
    root = tree.root / "devices/pci0000:00"
    tree.gpus.append(tree.function(root, "0000:00:06.0", NVIDIA, 0x2335, CLASS_3D))
    card = tree.function(root, "0000:00:02.0", VIRTIO, 0x1041, CLASS_ETHERNET)
    tree.net("eth0", card, -1, 1500, "02:00:00:00:00:02")


def _nothing(tree: Sysfs) -> None:
    """A node without any of it."""


KINDS: dict[str, Callable[[Sysfs], None]] = {
    "infiniband": _infiniband,
    "efa": _efa,
    "pcie": _pcie,
    "vm": _vm,
    "none": _nothing,
}


def fake_sysfs(into: Path, kind: str) -> Sysfs:
    """Make the tree of a healthy node of that kind below `into`. Raises BadInput for an unknown kind."""
    if kind not in KINDS:
        raise BadInput(f"kind of node {kind!r}; wanted one of: {', '.join(KINDS)}")
    tree = Sysfs(into, iommu=kind in ("infiniband", "pcie"))  # bare metal; the others are guests
    for folder in ("bus/pci/devices", "class/net", "class/infiniband", "kernel/iommu_groups", "devices"):
        (into / folder).mkdir(parents=True, exist_ok=True)
    KINDS[kind](tree)
    if not any((into / "class/infiniband").iterdir()):
        (into / "class/infiniband").rmdir()  # the folder is there only with an RDMA driver
    return tree
