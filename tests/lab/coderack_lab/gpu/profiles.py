"""Whole, healthy nodes. What is captured and what is put together from public sources is said at each part.

Sources: [own] project capture h200-one-gpu (driver 580.159.04); [table] expected values in the project's facts on GPU
health, which names its own sources (public `nvidia-smi -a` of H100 SXM, NVIDIA Health Validation, NCCL topology dumps);
[est] our estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coderack_lab.errors import BadInput
from coderack_lab.gpu.fields import UINT, field_keys
from coderack_lab.gpu.state import State, Value, error

GPU_COUNT = 8
LINKS = 18
LINK_SPEED_MBPS = 26562  # [table] 26.5625 GB/s, in NVML's MB/s
DRIVER = "580.159.04"

# The node's PCI addresses, shared with the fake sysfs. A GPU and its NIC hang below one PCIe switch (sysfs.py).
GPU_BUS_IDS = tuple(f"{bus:02x}" for bus in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF))
SWITCH_BUS_IDS = tuple(f"{bus:02x}" for bus in (0x05, 0x06, 0x07, 0x08))
SWITCH_DEVICE_ID = 0x22A310DE  # third generation NVSwitch
LINKS_PER_SWITCH = (4, 5, 4, 5)  # [table] in some order, 18 in sum
PCIE_INACTIVE_LINKS = (4, 5, 10, 11, 16, 17)  # [table] H100 PCIe with bridges: 12 of 18 by design


def bus_id(slot: int) -> str:
    return f"00000000:{GPU_BUS_IDS[slot].upper()}:00.0"


def uuid(slot: int) -> str:
    return f"GPU-{slot:08x}-aaaa-bbbb-cccc-{slot:012x}"


def _set_all(state: State, prefix: str, values: Mapping[str, Value]) -> None:
    for key, value in values.items():
        state.set(f"{prefix}{key}", value)


# Common to every Hopper here; all of it [own].
_HOPPER: dict[str, Value] = {
    "brand": 14,
    "architecture": 9,
    "compute_capability.major": 9,
    "compute_capability.minor": 0,
    "multi_gpu_board": 0,
    "minor": 0,
    "gsp.version": DRIVER,
    "gsp.enabled": 1,
    "gsp.default": 1,
    "inforom.oem": "2.1",
    "inforom.ecc": "7.16",
    "inforom.checksum": "0x5ca1ab1e",
    "inforom.valid": 1,
    "pcie.gen": 5,
    "pcie.gen_max": 5,
    "pcie.gen_gpu_max": 5,
    "pcie.width": 16,
    "pcie.width_max": 16,
    "pcie.replay": 0,
    "pcie.replay_rollover": 0,
    "pcie.tx_kbps": 1818,
    "pcie.rx_kbps": 601,
    "pcie.l0_to_recovery": 716,  # this and the next few are what an idle healthy GPU shows: only rates can be judged
    "pcie.correctable": 0,
    "pcie.naks_received": 0,
    "pcie.receiver_error": 36,
    "pcie.bad_tlp": 46,
    "pcie.naks_sent": 33,
    "pcie.bad_dllp": 0,
    "pcie.non_fatal": 0,
    "pcie.fatal": 0,
    "pcie.unsupported_request": 0,
    "pcie.lcrc_error": 0,
    "pcie.lane_error": 79,
    "pcie.tx_bytes": 1120638452,
    "pcie.rx_bytes": 1926964708,
    "persistence_mode": 1,
    "compute_mode": 0,
    "pstate": 0,
    "ecc.mode": 1,
    "ecc.pending": 1,
    "ecc.default": 1,
    "mig.mode": 0,
    "mig.pending": 0,
    "mig.max_devices": 7,
    "utilization.gpu": 0,
    "utilization.memory": 0,
    "processes": "none",
    "graphics_processes": "none",
    "power.usage": 79021,
    "power.average": 79014,
    "power.instant": 79400,
    "power.enforced_limit": 700000,
    "power.limit": 700000,
    "power.default_limit": 700000,
    "power.min_limit": 200000,
    "power.max_limit": 700000,
    "energy": 2208116,
    "clocks.reasons": 1,
    "clocks.reasons_supported": 511,
    "clocks.time.sw_thermal": 0,
    "clocks.current.graphics": 345,
    "clocks.current.sm": 345,
    "clocks.current.video": 765,
    "clocks.max.graphics": 1980,
    "clocks.max.sm": 1980,
    "clocks.max.video": 1545,
    "clocks.application.graphics": 1980,
    "clocks.default_application.graphics": 1980,
    **{f"violation.{policy}": 0 for policy in (0, 1, 2, 3, 5)},
    "violation.4": 16278100256,
    "violation.10": 7016638528,
    "violation.11": 7016638528,
    "temperature.gpu": 36,
    "temperature.memory": 38,
    "temperature.margin": 51,
    "tlimit.shutdown": -8,
    "tlimit.slowdown": -2,
    "tlimit.memory_max": 0,
    "tlimit.gpu_max": 0,
    **{f"ecc.total.{e}.{c}": 0 for e in ("corrected", "uncorrected") for c in ("volatile", "aggregate")},
    # Of the locations only DRAM (2) and SRAM (7) are served on Hopper.
    **{
        f"ecc.location.{e}.{c}.{at}": 0
        for e in ("corrected", "uncorrected")
        for c in ("volatile", "aggregate")
        for at in (2, 7)
    },
    **{
        f"sram.{c}.{e}": 0
        for c in ("volatile", "aggregate")
        for e in ("corrected", "uncorrected_parity", "uncorrected_secded")
    },
    **{f"sram.bucket.{unit}": 0 for unit in ("l2", "sm", "pcie", "mcu", "other")},
    "sram.threshold_exceeded": 0,
    **{f"remapped.{what}": 0 for what in ("corrected", "uncorrected", "pending", "failure")},
    "remapped.corrected_inactive": 0,
    "remapped.uncorrected_inactive": 0,
    **{f"remapped.banks.{what}": 0 for what in ("high", "partial", "low", "none")},
    "repair.channel_pending": 0,
    "repair.tpc_pending": 0,
    "recovery_action": 0,
    # A GPU without NVLink in sight: link calls answer NOT_SUPPORTED up to 17 and INVALID_ARGUMENT from there.
    "links": LINKS,
    "fabric.state": 0,
    "fabric.status": 0,
    "fabric.clique": 0,
    "fabric.cluster_uuid": "0" * 32,
    "fabric.health_mask": 0,
    "fabric.health_summary": 0,
}

_H200: dict[str, Value] = {  # [own]
    "name": "NVIDIA H200",
    "vbios_version": "96.00.A5.00.1A",
    "board_part_number": "692-2G520-0282-001",
    "inforom.image": "G520.0282.02.02",
    "cores": 16896,
    "pci.device_id": "0x233510de",
    "pci.subsystem_id": "0x18bf10de",
    "memory.total": 150754820096,
    "memory.free": 150109880320,
    "memory.used": 644939776,
    "memory.reserved": 616 << 20,
    "bar1.total": 262144 << 20,
    "bar1.free": 262143 << 20,
    "bar1.used": 1 << 20,
    "clocks.current.memory": 3201,
    "clocks.max.memory": 3201,
    "clocks.application.memory": 3201,
    "clocks.default_application.memory": 3201,
    "remapped.banks.max": 3072,
}

_H100_SXM: dict[str, Value] = {  # [table]; part numbers and versions [est]
    "name": "NVIDIA H100 80GB HBM3",
    "vbios_version": "96.00.89.00.01",
    "board_part_number": "692-2G520-0200-000",
    "inforom.image": "G520.0200.00.05",
    "cores": 16896,
    "pci.device_id": "0x233010de",
    "pci.subsystem_id": "0x16c110de",
    "memory.total": 81559 << 20,
    "memory.free": 81004 << 20,
    "memory.used": 555 << 20,
    "memory.reserved": 554 << 20,
    "bar1.total": 131072 << 20,
    "bar1.free": 131071 << 20,
    "bar1.used": 1 << 20,
    "clocks.current.memory": 2619,
    "clocks.max.memory": 2619,
    "clocks.application.memory": 2619,
    "clocks.default_application.memory": 2619,
    "remapped.banks.max": 2560,
}

_H100_PCIE: dict[str, Value] = {  # device id 2331, 350 W, HBM2e at 1593 MHz: NVIDIA's product brief; the rest [est]
    **_H100_SXM,
    "name": "NVIDIA H100 PCIe",
    "board_part_number": "900-21010-0000-000",
    "inforom.image": "1010.0200.00.02",
    "cores": 14592,
    "pci.device_id": "0x233110de",
    "pci.subsystem_id": "0x162610de",
    "power.enforced_limit": 350000,
    "power.limit": 350000,
    "power.default_limit": 350000,
    "power.max_limit": 350000,
    "clocks.max.graphics": 1755,
    "clocks.max.sm": 1755,
    "clocks.application.graphics": 1755,
    "clocks.default_application.graphics": 1755,
    "clocks.current.memory": 1593,
    "clocks.max.memory": 1593,
    "clocks.application.memory": 1593,
    "clocks.default_application.memory": 1593,
    "pcie.l0_to_recovery": 0,
}


def _node(slots: int) -> State:
    """A node with its driver and so many equal Hoppers, each still without a name of its own."""
    state = State()
    _set_all(state, "system.", {"driver_version": DRIVER, "nvml_version": f"13.{DRIVER}", "cuda_version": 13000})
    state.set("slots", " ".join(str(slot) for slot in range(slots)) or "none")
    _set_all(state, "gpu.*.", _HOPPER)
    for key, value in field_keys():
        state.set(key, value)
    return state


def _identities(state: State) -> None:
    for slot in state.slots():
        _set_all(
            state,
            f"gpu.{slot}.",
            {
                "uuid": uuid(slot),
                "serial": 1650000000000 + slot,
                "minor": slot,
                "module_id": slot + 1,
                "board_id": int(GPU_BUS_IDS[slot], 16) << 8,
                "pci.bus_id": bus_id(slot),
            },
        )


def _live_links(state: State) -> None:
    """Every link up at full speed, without an error and with every capability [est]."""
    _set_all(
        state,
        "gpu.*.link.*.",
        {
            "state": 1,
            "version": 6,
            "speed_mbps": LINK_SPEED_MBPS,
            "power_state": 0,
            "replay": 0,
            "recovery": 0,
            "crc": 0,
        }
        | {"crc_data": 0, "ecc_data": 0, **{f"capability.{n}": 1 for n in range(6)}},
    )
    _set_all(state, "gpu.*.p2p.*.", {str(index): 0 for index in range(5)})
    _set_all(state, "gpu.*.field.", {"91": "@links", "91.type": UINT})


def _switched(state: State) -> None:
    """18 links of each GPU go to four NVSwitches, and the fabric manager has done its work."""
    _live_links(state)
    for slot in state.slots():
        link = 0
        for switch, count in enumerate(LINKS_PER_SWITCH):
            for port in range(count):
                remote: dict[str, Value] = {
                    "bus_id": f"00000000:{SWITCH_BUS_IDS[switch].upper()}:00.0",
                    "link": slot * count + port,
                }
                _set_all(state, f"gpu.{slot}.link.{link}.remote.", remote)
                link += 1
    _set_all(state, "gpu.*.link.*.remote.", {"type": 2, "device_id": hex(SWITCH_DEVICE_ID)})
    _set_all(state, "gpu.*.field.", {"147": LINKS, "147.type": UINT})  # 18 on HGX is [est]: never seen by us
    _set_all(state, "gpu.*.fabric.", {"state": 3, "status": 0})  # clique, cluster and health stay zero, as on HGX H100
    state.set("gpu.*.topology.*", 50)


def h100_sxm_8() -> State:
    state = _node(GPU_COUNT)
    _set_all(state, "gpu.*.", _H100_SXM)
    _identities(state)
    _switched(state)
    return state


def h200_sxm_8() -> State:
    state = _node(GPU_COUNT)
    _set_all(state, "gpu.*.", _H200)
    _identities(state)
    _switched(state)
    return state


def h200_vm_1() -> State:
    """One H200 passed through to a VM: no NVLink, no fabric. Every captured call answers as captured [own]."""
    state = _node(1)
    _set_all(state, "gpu.*.", _H200)
    own: dict[str, Value] = {"uuid": "GPU-00000000-1111-2222-3333-444444444444", "serial": 1650000000000}
    _set_all(state, "gpu.0.", own | {"module_id": 5, "board_id": 6, "pci.bus_id": "00000000:00:06.0"})
    return state


def h100_pcie_8() -> State:
    """Eight H100 PCIe, bridged in pairs: 12 links up, 6 that the card does not wire."""
    state = _node(GPU_COUNT)
    _set_all(state, "gpu.*.", _H100_PCIE)
    _identities(state)
    _live_links(state)
    for link in PCIE_INACTIVE_LINKS:
        _set_all(state, f"gpu.*.link.{link}.", {"state": 0, "speed_mbps": 0})
    for slot in state.slots():
        other = slot ^ 1
        for link in PCIE_INACTIVE_LINKS:
            state.set(f"gpu.{slot}.link.{link}.remote.bus_id", error("NOT_SUPPORTED"))  # nobody there [est]
        _set_all(state, f"gpu.{slot}.link.*.remote.", {"bus_id": bus_id(other), "type": 0, "device_id": "0x233110de"})
        for stranger in set(state.slots()) - {slot, other}:
            state.set(f"gpu.{slot}.p2p.{stranger}.2", 5)  # NVLink P2P only within a pair
    state.set("gpu.*.topology.*", 50)
    return state


def no_gpu() -> State:
    """A driver without a GPU, as on a node whose cards are all gone from NVML."""
    return _node(0)


PROFILES: dict[str, Callable[[], State]] = {
    "h100-sxm-8": h100_sxm_8,
    "h200-sxm-8": h200_sxm_8,
    "h200-vm-1": h200_vm_1,
    "h100-pcie-8": h100_pcie_8,
    "none": no_gpu,
}


def profile(name: str) -> State:
    """A new, healthy state. Raises BadInput for a name that is not in PROFILES."""
    try:
        return PROFILES[name]()
    except KeyError:
        raise BadInput(f"GPU profile {name!r}; wanted one of: {', '.join(PROFILES)}") from None
