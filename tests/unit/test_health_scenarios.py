"""The fault catalogue as a table: each fault, on a simulated node, gives the finding, severity, action and exit code.

A scenario names everything that is found: one more finding is noise, and fails. Each comes with its source.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from coderack.health.findings import Finding
from coderack.health.kinds import KINDS
from coderack_lab import gpu

from .health import KINDS as PROFILES
from .health import Simulated, load_library, not_synchronised, short

pytestmark = pytest.mark.simulated_node

Break = Callable[[Simulated], object]
BUS = "0000:61:00"  # slot 3


@dataclass(frozen=True)
class Scenario:
    """`found`: what must be found, as `id severity action about`, where `about` is part of the subject."""

    name: str
    source: str
    broken: Break
    found: tuple[str, ...]
    exit: int
    profile: str = "h100-sxm"
    settings: tuple[str, ...] = ()
    then: Break | None = None  # done after a first pass, which must be without findings
    after: float = 60.0  # seconds between both passes
    deadline: float = 20.0


def put(key: str, value: object) -> Break:
    return lambda node: node.state.set(key, value)  # type: ignore[arg-type]


def all_of(*steps: Break) -> Break:
    return lambda node: [step(node) for step in steps]


def xid(number: int, detail: str, bus: str = BUS) -> Break:
    return lambda node: node.log.xid(number, detail, bus)


def xids(*numbers: int) -> Break:
    return lambda node: [node.log.xid(number, "detail", BUS) for number in numbers]


def sxid(number: int, detail: str) -> Break:
    return lambda node: node.log.sxid(number, detail)


def line(text: str) -> Break:
    return lambda node: node.log.add(text)


def links(gpu_slot: int, numbers: range, value: object) -> Break:
    return all_of(*(put(f"gpu.{gpu_slot}.link.{number}.state", value) for number in numbers))


def port(device: str, name: str, value: object) -> Break:
    return lambda node: node.sysfs.port(device).set(name, value)


def unit(name: str, value: str | None) -> Break:
    def change(node: Simulated) -> None:
        if value is None:
            del node.units[name]
        else:
            node.units[name] = value

    return change


def emptied(folder: str) -> Break:
    def change(node: Simulated) -> None:
        for path in (node.root / folder).iterdir():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()

    return change


def package(name: str, version: str | None) -> Break:
    def change(node: Simulated) -> None:
        if version is None:
            del node.packages[name]
        else:
            node.packages[name] = version

    return change


def nothing(_node: Simulated) -> None:
    pass


def lost(error: str) -> Break:
    return put("gpu.3.call.*.error", error)


def _config(switch: int) -> Break:
    return lambda node: node.sysfs.switches[switch].stop_answering()


XID = "NVIDIA Xid catalogue"
SXID = "Fabric Manager User Guide"

INVENTORY = [
    Scenario(
        "library refuses: driver not loaded",
        "NVML error 9",
        put("call.nvmlInitWithFlags.error", "DRIVER_NOT_LOADED"),
        ("driver-not-loaded critical reboot gpu-a",),
        1,
    ),
    Scenario(
        "library and module of two versions",
        "NVML error 18; ubuntu-packaging-nvidia-driver #3",
        put("call.nvmlInitWithFlags.error", "LIB_RM_VERSION_MISMATCH"),
        ("driver-library-mismatch critical reboot gpu-a",),
        1,
    ),
    Scenario(
        "library refuses for want of rights",
        "NVML error 4",
        put("call.nvmlInitWithFlags.error", "NO_PERMISSION"),
        ("nvml-init-failed unknown drain gpu-a",),
        3,
    ),
    Scenario(
        "no driver, and a GPU is missing on the bus",
        "NVSentinel #155",
        all_of(
            put("call.nvmlInitWithFlags.error", "DRIVER_NOT_LOADED"),
            lambda n: n.sysfs.remove(n.sysfs.gpus[3]),
        ),
        ("driver-not-loaded critical reboot gpu-a", "gpu-missing critical reboot gpu-a"),
        1,
    ),
    Scenario(
        "another module is loaded than the library's",
        "gpu-operator #2781",
        lambda n: gpu.fake_proc(n.root / "proc", "infiniband", driver="570.86.15"),
        ("driver-version-module critical reboot gpu-a",),
        1,
    ),
    Scenario(
        "GPU gone from NVML, still on the bus",
        "NVSentinel #155",
        lambda n: n.state.remove_gpu(3),
        (f"gpu-not-in-driver critical reboot GPU at {BUS}",),
        1,
    ),
    Scenario(
        "GPU gone from NVML and from the bus",
        "oci-hpc lspci check",
        all_of(lambda n: n.state.remove_gpu(3), lambda n: n.sysfs.remove(n.sysfs.gpus[3])),
        ("gpu-missing critical reboot gpu-a",),
        1,
    ),
    Scenario(
        "GPU does not answer on the bus",
        "oci-hpc `rev ff`",
        all_of(lost("GPU_IS_LOST"), lambda n: n.sysfs.gpus[3].stop_answering()),
        (f"gpu-off-bus critical reboot GPU at {BUS}", "gpu-lost critical reboot GPU 3"),
        1,
    ),
    Scenario(
        "GPU is lost",
        "NVML error 15; gpud #604",
        put("gpu.3.call.*.error", "GPU_IS_LOST"),
        ("gpu-lost critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "GPU is lost for one call only",
        "NVML error 15",
        put("gpu.3.remapped.pending", gpu.error("GPU_IS_LOST")),
        ("gpu-lost critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "GPU wants a reset",
        "NVML error 16",
        put("gpu.3.call.nvmlDeviceGetHandleByIndex_v2.error", "RESET_REQUIRED"),
        ("gpu-reset-required critical reset GPU 3",),
        1,
    ),
    Scenario(
        "handle answers an unknown error",
        "NVML error 999; cihlab fics-cluster-guide #53",
        put("gpu.3.call.nvmlDeviceGetHandleByIndex_v2.error", "UNKNOWN"),
        ("gpu-unreachable unknown reboot GPU 3",),
        3,
    ),
    Scenario(
        "InfoROM corrupted",
        "NVML error 14; Meta GCM",
        put("gpu.3.call.nvmlDeviceGetHandleByIndex_v2.error", "CORRUPTED_INFOROM"),
        ("gpu-inforom-corrupted warning replace GPU 3",),
        1,
    ),
    Scenario(
        "number of GPUs cannot be had",
        "NVML",
        put("call.nvmlDeviceGetCount_v2.error", "UNKNOWN"),
        ("gpu-count-unknown unknown watch gpu-a", "probe-crashed unknown watch probe pairs"),
        3,
    ),
    Scenario(
        "GPUs on a node that should have none",
        "own rule",
        nothing,
        ("gpu-unexpected warning none gpu-a",),
        1,
        profile="none",
        then=lambda n: gpu.fake_sysfs(n.root / "sys", "vm"),
    ),
    Scenario(
        "PCI bus not visible",
        "own rule",
        emptied("sys/bus/pci/devices"),
        ("pci-bus-unreadable unknown watch gpu-a",),
        3,
        settings=("network.affinity=false",),
    ),
    Scenario(
        "another model", "NVML name", put("gpu.3.name", "NVIDIA H100 PCIe"), ("gpu-model critical none GPU 3",), 1
    ),
    Scenario(
        "right name, wrong device id",
        "PCI device id",
        put("gpu.3.pci.device_id", "0x232910de"),
        ("gpu-model critical none GPU 3",),
        1,
    ),
    Scenario(
        "memory too small",
        "NVML",
        put("gpu.3.memory.total", 80000 << 20),
        ("gpu-memory-size critical replace GPU 3",),
        1,
    ),
    Scenario(
        "one VBIOS differs",
        "Meta GCM; imbue",
        put("gpu.3.vbios_version", "96.00.30.00.01"),
        ("gpu-vbios-differs warning none GPU 3",),
        1,
    ),
]

MODES = [
    Scenario("ECC off", "imbue host health", put("gpu.3.ecc.mode", 0), ("ecc-mode warning reset GPU 3",), 1),
    Scenario(
        "ECC goes off at the next reset",
        "imbue host health",
        put("gpu.3.ecc.pending", 0),
        ("ecc-mode warning reset GPU 3",),
        1,
    ),
    Scenario(
        "ECC mode not supported where it must be",
        "unknown is never healthy",
        put("gpu.3.call.nvmlDeviceGetEccMode.error", "NOT_SUPPORTED"),
        ("ecc-mode unknown watch GPU 3",),
        3,
    ),
    Scenario("MIG on", "DCGM bug 200682374", put("gpu.3.mig.mode", 1), ("mig-mode critical reset GPU 3",), 1),
    Scenario(
        "MIG comes at the next reset", "own rule", put("gpu.3.mig.pending", 1), ("mig-mode critical reset GPU 3",), 1
    ),
    Scenario("persistence off", "gpud", put("gpu.3.persistence_mode", 0), ("persistence-mode warning none GPU 3",), 1),
    Scenario("compute mode prohibited", "NVML", put("gpu.3.compute_mode", 2), ("compute-mode critical none GPU 3",), 1),
]

MEMORY = [
    Scenario(
        "uncorrectable errors",
        "Meta GCM; AzNHC",
        put("gpu.3.ecc.total.uncorrected.volatile", 2),
        ("ecc-uncorrectable critical reset GPU 3",),
        1,
    ),
    Scenario(
        "uncorrectable errors cannot be read",
        "own rule",
        put("gpu.3.ecc.total.uncorrected.volatile", gpu.error("UNKNOWN")),
        ("ecc-uncorrectable unknown watch GPU 3",),
        3,
    ),
    Scenario(
        "storm of corrected errors",
        "NVSentinel #1748: 4,647/s",
        nothing,
        ("ecc-correctable-storm critical drain GPU 3",),
        1,
        then=put("gpu.3.ecc.total.corrected.volatile", 4647 * 60),
    ),
    Scenario(
        "SRAM threshold",
        "nvidia-smi -q; stas00 debug.md",
        put("gpu.3.sram.threshold_exceeded", 1),
        ("sram-threshold critical replace GPU 3",),
        1,
    ),
    Scenario(
        "more than four SRAM errors for life",
        "NVIDIA memory error management",
        put("gpu.3.sram.aggregate.uncorrected_parity", 5),
        ("sram-uncorrectable warning replace GPU 3",),
        1,
    ),
    Scenario(
        "row remapping pending",
        "NVIDIA memory error management",
        put("gpu.3.remapped.pending", 1),
        ("row-remap-pending warning reset GPU 3",),
        1,
    ),
    Scenario(
        "row remapping failed",
        "awsome-distributed-ai #1190",
        put("gpu.3.remapped.failure", 1),
        ("row-remap-failed critical replace GPU 3",),
        1,
    ),
    Scenario(
        "bank without spare rows",
        "NVML row remapper histogram",
        put("gpu.3.remapped.banks.none", 1),
        ("row-remap-banks warning replace GPU 3",),
        1,
    ),
    Scenario(
        "channel repair pending",
        "nvidia-smi -q on 580",
        put("gpu.3.repair.channel_pending", 1),
        ("channel-repair-pending warning reset GPU 3",),
        1,
    ),
    Scenario(
        "TPC repair pending",
        "nvidia-smi -q on 580",
        put("gpu.3.repair.tpc_pending", 1),
        ("tpc-repair-pending warning reset GPU 3",),
        1,
    ),
    *(
        Scenario(
            f"recovery action {name}",
            "NVML field 230; DCGM #263",
            put("gpu.3.recovery_action", value),
            (f"recovery-action critical {action} GPU 3",),
            1,
        )
        for value, name, action in (
            (1, "reset", "reset"),
            (2, "reboot", "reboot"),
            (3, "drain P2P", "drain"),
            (4, "drain and reset", "reset"),
        )
    ),
]

HEAT = [
    Scenario(
        "hardware thermal slowdown",
        "gpud; AzNHC",
        put("gpu.3.clocks.reasons", 0x48),
        ("thermal-slowdown warning drain GPU 3",),
        1,
    ),
    Scenario(
        "software thermal slowdown",
        "gpud",
        put("gpu.3.clocks.reasons", 0x20),
        ("thermal-slowdown warning drain GPU 3",),
        1,
    ),
    Scenario(
        "power brake",
        "gpud #330; NVSentinel #1668",
        put("gpu.3.clocks.reasons", 0x88),
        ("power-brake warning drain GPU 3",),
        1,
    ),
    Scenario(
        "hardware slowdown without a closer reason",
        "NVML",
        put("gpu.3.clocks.reasons", 0x8),
        ("hardware-slowdown warning drain GPU 3",),
        1,
    ),
    Scenario("power cap is normal under load", "DCGM documentation", put("gpu.3.clocks.reasons", 0x4), (), 0),
    Scenario(
        "slowed down between two passes",
        "NVML field 269",
        nothing,
        ("thermal-slowdown warning drain GPU 3",),
        1,
        then=put("gpu.3.clocks.time.sw_thermal", 30_000_000_000),
    ),
    Scenario(
        "at the temperature limit",
        "NVML margin temperature",
        put("gpu.3.temperature.margin", 0),
        ("thermal-margin warning drain GPU 3",),
        1,
    ),
    Scenario(
        "beyond the slowdown temperature",
        "T.Limit of H100: -2",
        put("gpu.3.temperature.margin", -3),
        ("thermal-margin critical drain GPU 3",),
        1,
    ),
    Scenario(
        "power limit lowered",
        "nvidia-smi -q of the model",
        put("gpu.3.power.enforced_limit", 500000),
        ("power-limit warning none GPU 3",),
        1,
    ),
    Scenario(
        "lower highest clock",
        "Meta GCM clock policy",
        put("gpu.3.clocks.max.sm", 1410),
        ("clock-limit warning reset GPU 3",),
        1,
    ),
    Scenario(
        "application clock lowered",
        "Meta GCM clock policy",
        put("gpu.3.clocks.application.memory", 1593),
        ("application-clock warning none GPU 3",),
        1,
    ),
    Scenario(
        "busy at a low clock without a reason",
        "AzNHC #3; NVSentinel #890",
        all_of(put("gpu.3.utilization.gpu", 100), put("gpu.3.clocks.reasons", 0)),
        ("clock-stuck warning reset GPU 3",),
        1,
    ),
]

PCIE = [
    Scenario(
        "PCIe x8", "NVSentinel #890; Meta GCM", put("gpu.3.pcie.width", 8), ("pcie-width warning reboot GPU 3",), 1
    ),
    Scenario(
        "PCIe generation 3 in P0",
        "NVSentinel #890; DCGM asks for 3 and passes",
        put("gpu.3.pcie.gen", 3),
        ("pcie-generation warning reboot GPU 3",),
        1,
    ),
    Scenario(
        "PCIe generation 1 of an idle GPU is normal",
        "nvidia-smi",
        all_of(put("gpu.3.pcie.gen", 1), put("gpu.3.pstate", 8)),
        (),
        0,
    ),
    Scenario(
        "slot allows generation 4 only",
        "NVSentinel #890",
        put("gpu.3.pcie.gen_max", 4),
        ("pcie-generation warning reboot GPU 3",),
        1,
    ),
    Scenario(
        "PCIe replays above the budget",
        "DCGM: 1.92 a minute and lane",
        nothing,
        ("pcie-replay warning drain GPU 3",),
        1,
        then=put("gpu.3.pcie.replay", 40),
    ),
    Scenario(
        "PCIe replays within the budget",
        "DCGM: 1.92 a minute and lane",
        nothing,
        (),
        0,
        then=put("gpu.3.pcie.replay", 20),
    ),
    Scenario(
        "many replays before the first pass",
        "a first sample is a baseline",
        put("gpu.3.pcie.replay", 100000),
        (),
        0,
        then=nothing,
    ),
    Scenario(
        "fatal PCIe errors",
        "NVML field 180",
        nothing,
        ("pcie-fatal critical reboot GPU 3",),
        1,
        then=put("gpu.3.pcie.fatal", 1),
    ),
]

NVLINK = [
    Scenario(
        "one link down",
        "NVIDIA Health Validation; azhpc-diagnostics #73",
        put("gpu.3.link.5.state", 0),
        ("nvlink-down critical reset GPU 3",),
        1,
    ),
    Scenario(
        "17 links down", "NVIDIA Health Validation", links(3, range(17), 0), ("nvlink-down critical reset GPU 3",), 1
    ),
    Scenario(
        "all links down",
        "gpud #1085; AzNHC passes for a letter's case",
        links(3, range(18), 0),
        ("nvlink-all-down critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "no NVLink where 18 should be",
        "our capture",
        all_of(*(put(f"gpu.3.link.{number}.state", gpu.error("NOT_SUPPORTED")) for number in range(18))),
        ("nvlink-absent critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "one link answers an error",
        "gpud skips it",
        put("gpu.3.link.5.state", gpu.error("UNKNOWN")),
        ("nvlink-unknown unknown watch GPU 3",),
        3,
    ),
    Scenario("a link asleep is up", "NVML field 165 value 2", put("gpu.3.link.5.state", 2), (), 0),
    Scenario(
        "six links only", "nccl #1617: NV6 board", put("gpu.3.links", 6), ("nvlink-count critical none GPU 3",), 1
    ),
    Scenario(
        "one link at half speed",
        "NVIDIA Health Validation",
        put("gpu.3.link.5.speed_mbps", 13281),
        ("nvlink-speed critical reset GPU 3",),
        1,
    ),
    Scenario(
        "link at A100's 25 GB/s",
        "oci-hpc passes it",
        put("gpu.3.link.5.speed_mbps", 25000),
        ("nvlink-speed critical reset GPU 3",),
        1,
    ),
    Scenario(
        "link speed cannot be read",
        "own rule",
        put("gpu.3.link.5.speed_mbps", gpu.error("UNKNOWN")),
        ("nvlink-speed unknown watch GPU 3",),
        3,
    ),
    Scenario(
        "link ends at a GPU",
        "nccl #1182",
        put("gpu.3.link.5.remote.type", 0),
        ("nvlink-remote critical drain GPU 3",),
        1,
    ),
    Scenario(
        "links spread otherwise over the switches",
        "nccl #1453",
        put("gpu.3.link.5.remote.bus_id", "00000000:08:00.0"),
        ("nvlink-pattern warning drain GPU 3",),
        1,
    ),
    Scenario(
        "one recovery in five minutes",
        "DCGM health limits",
        nothing,
        ("nvlink-recovery warning watch GPU 3",),
        1,
        then=put("gpu.3.link.5.recovery", 1),
        after=300,
    ),
    Scenario(
        "recoveries every minute",
        "DCGM health limits",
        nothing,
        ("nvlink-recovery critical drain GPU 3",),
        1,
        then=put("gpu.3.link.5.recovery", 3),
    ),
    Scenario(
        "many recoveries before the first pass",
        "a first sample is a baseline",
        put("gpu.3.link.5.recovery", 505),
        (),
        0,
        then=nothing,
    ),
    Scenario(
        "replays every minute",
        "DCGM health limits",
        nothing,
        ("nvlink-replay warning watch GPU 3",),
        1,
        then=put("gpu.3.link.5.replay", 5),
    ),
    Scenario(
        "a few CRC errors",
        "DCGM health limits",
        nothing,
        ("nvlink-crc warning watch GPU 3",),
        1,
        then=put("gpu.3.link.5.crc", 5),
    ),
    Scenario(
        "100 CRC errors a second",
        "DCGM health limits",
        nothing,
        ("nvlink-crc critical drain GPU 3",),
        1,
        then=put("gpu.3.link.5.crc", 6000),
    ),
    Scenario(
        "counters of a link cannot be read",
        "DCGM #173; dcgm-exporter #316",
        put("gpu.3.link.5.recovery", gpu.error("NOT_SUPPORTED")),
        ("nvlink-counters unknown watch GPU 3",),
        3,
    ),
    Scenario(
        "one pair without peer access",
        "gpud fails only when all 28 are bad",
        put("gpu.3.p2p.5.2", 5),
        ("peer-to-peer critical drain GPU 3",),
        1,
    ),
    Scenario(
        "one GPU reaches nobody",
        "nccl #1182",
        all_of(
            *(
                put(key, 4)
                for other in range(8)
                if other != 3
                for key in (f"gpu.3.p2p.{other}.2", f"gpu.{other}.p2p.3.2")
            )
        ),
        ("peer-to-peer critical drain GPU 3",),
        1,
    ),
]

FABRIC = [
    Scenario(
        "three NVSwitches",
        "gpud; nccl #1453",
        lambda n: n.sysfs.remove(n.sysfs.switches[1]),
        ("nvswitch-missing critical reboot gpu-a",),
        1,
    ),
    Scenario(
        "an NVSwitch fell off the bus",
        "PCI configuration of all ones",
        _config(1),
        ("nvswitch-off-bus critical reboot NVSwitch at 0000:06:00.0",),
        1,
    ),
    Scenario(
        "fabric not started",
        "NVSentinel #889: 20 days unnoticed",
        put("gpu.3.fabric.state", 1),
        ("fabric-not-ready critical drain GPU 3",),
        1,
    ),
    Scenario(
        "fabric in progress",
        "huggingface_hub #4128: CUDA 802",
        put("gpu.3.fabric.state", 2),
        ("fabric-not-ready critical drain GPU 3",),
        1,
    ),
    Scenario(
        "fabric in progress just after boot",
        "NVSentinel #1701: false alarms at boot",
        all_of(put("gpu.3.fabric.state", 2), lambda n: n.uptime(90)),
        ("fabric-not-ready unknown watch GPU 3",),
        3,
    ),
    Scenario(
        "a link down for the first time",
        "NVSentinel #1701: debounce",
        nothing,
        ("nvlink-down unknown watch GPU 3",),
        3,
        then=put("gpu.3.link.5.state", 0),
    ),
    Scenario(
        "fabric completed with an error",
        "azhpc-images #506: insufficient resources",
        put("gpu.3.fabric.status", 23),
        ("fabric-failed critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "fabric completed with unknown error",
        "eks-node-monitoring-agent #141",
        put("gpu.3.fabric.status", 999),
        ("fabric-failed critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "fabric not supported where it must be",
        "our capture; gpud #1140",
        put("gpu.3.fabric.state", 0),
        ("fabric-unsupported critical drain GPU 3",),
        1,
    ),
    Scenario(
        "fabric call not supported",
        "gpud #1147",
        put("gpu.3.call.nvmlDeviceGetGpuFabricInfoV.error", "NOT_SUPPORTED"),
        ("fabric-unsupported critical drain GPU 3",),
        1,
    ),
    Scenario(
        "fabric state cannot be read",
        "own rule",
        put("gpu.3.call.nvmlDeviceGetGpuFabricInfoV.error", "UNKNOWN"),
        ("fabric-unknown unknown watch GPU 3",),
        3,
    ),
    Scenario(
        "driver before 550 without the versioned call",
        "gpud: undefined symbol on 535",
        put("call.nvmlDeviceGetGpuFabricInfoV.absent", "yes"),
        (),
        0,
    ),
    Scenario(
        "fabric health: degraded bandwidth",
        "nvml.h",
        put("gpu.3.fabric.health_mask", 0x1),
        ("fabric-bandwidth critical drain GPU 3",),
        1,
    ),
    Scenario(
        "fabric health 0x80 is healthy", "eks-node-monitoring-agent #164", put("gpu.3.fabric.health_mask", 0x80), (), 0
    ),
    Scenario(
        "fabric health: route unhealthy",
        "nvml.h",
        put("gpu.3.fabric.health_mask", 0x10),
        ("fabric-route critical drain GPU 3",),
        1,
    ),
    Scenario(
        "fabric health: route recovery",
        "nvml.h",
        put("gpu.3.fabric.health_mask", 0x4),
        ("fabric-recovering warning watch GPU 3",),
        1,
    ),
    Scenario(
        "fabric health: insufficient NVLinks",
        "nvml.h",
        put("gpu.3.fabric.health_mask", 5 << 8),
        ("fabric-configuration critical drain GPU 3",),
        1,
    ),
    Scenario(
        "one GPU in another partition",
        "torchcomms #936",
        put("gpu.3.fabric.clique", 7),
        ("fabric-partition critical drain GPU 3",),
        1,
    ),
    Scenario(
        "fabric manager killed, state still completed",
        "NVSentinel #883",
        unit("nvidia-fabricmanager", "failed"),
        ("fabric-manager-stopped critical drain nvidia-fabricmanager.service",),
        1,
    ),
    Scenario(
        "fabric manager stopped",
        "gpud #1151",
        unit("nvidia-fabricmanager", "inactive"),
        ("fabric-manager-stopped critical drain nvidia-fabricmanager.service",),
        1,
    ),
    Scenario(
        "fabric manager not installed",
        "gpu-burn #92; pytorch #35710",
        all_of(unit("nvidia-fabricmanager", None), package("nvidia-fabricmanager-580", None)),
        ("fabric-manager-missing critical drain nvidia-fabricmanager.service",),
        1,
    ),
    Scenario(
        "fabric manager of another version",
        "gpu-operator #544: 530.30.02 against 530.41.03",
        package("nvidia-fabricmanager-580", "580.126.16-1"),
        ("fabric-manager-version critical drain nvidia-fabricmanager-580",),
        1,
    ),
    Scenario(
        "NSCQ of another version",
        "DCGM",
        package("libnvidia-nscq-580", "580.126.16-1"),
        ("nscq-version warning none libnvidia-nscq-580",),
        1,
    ),
    Scenario(
        "NSCQ not installed",
        "DCGM",
        package("libnvidia-nscq-580", None),
        ("nscq-version warning none libnvidia-nscq",),
        1,
    ),
    Scenario(
        "systemctl hangs",
        "injected",
        lambda n: n.broken_programs.update(systemctl="exec /bin/sleep 60"),
        (
            "fabric-manager-unknown unknown watch nvidia-fabricmanager",
            "persistenced-stopped unknown watch nvidia-persistenced",
        ),
        3,
        deadline=6.0,
    ),
    Scenario(
        "no dpkg-query",
        "injected",
        lambda n: n.broken_programs.update({"dpkg-query": "absent"}),
        ("packages-unknown unknown watch gpu-a",),
        3,
    ),
    Scenario(
        "persistenced dead",
        "NVSentinel #1382",
        unit("nvidia-persistenced", "failed"),
        ("persistenced-stopped warning none nvidia-persistenced.service",),
        1,
    ),
]

LOG = [
    *(
        Scenario(f"Xid {number}", XID, xid(number, "detail"), (f"xid-{number} {severity} {action} GPU 3",), code)
        for number, severity, action, code in (
            (13, "warning", "watch", 1),
            (31, "warning", "watch", 1),
            (32, "warning", "watch", 1),
            (43, "info", "none", 0),
            (45, "info", "none", 0),
            (54, "critical", "replace", 1),
            (63, "warning", "watch", 1),
            (64, "critical", "replace", 1),
            (79, "critical", "reboot", 1),
            (92, "warning", "watch", 1),
            (93, "info", "none", 0),
            (94, "warning", "reset", 1),
            (121, "warning", "watch", 1),
            (122, "warning", "watch", 1),
            (137, "warning", "watch", 1),
            (145, "critical", "drain", 1),
            (149, "critical", "drain", 1),
            (157, "warning", "replace", 1),
            (167, "critical", "reboot", 1),
            (171, "info", "none", 0),
            (175, "warning", "watch", 1),
        )
    ),
    *(
        Scenario(
            f"Xid {number} on a driver that tells no recovery action",
            XID,
            all_of(xid(number, "detail"), put("gpu.3.recovery_action", gpu.error("NOT_SUPPORTED"))),
            (f"xid-{number} critical {action} GPU 3",),
            1,
        )
        for number, action in (
            (46, "reset"),
            (48, "reset"),
            (62, "reset"),
            (95, "reset"),
            (109, "reset"),
            (110, "reset"),
            (119, "reset"),
            (120, "reset"),
            (136, "reset"),
            (140, "reset"),
            (143, "reset"),
            (158, "reset"),
        )
    ),
    Scenario(
        "a reset is over: the driver asks for nothing",
        "NVML field 230 beats the table",
        xid(119, "Timeout"),
        ("xid-119 warning watch GPU 3",),
        1,
    ),
    Scenario(
        "the driver asks for more than the table",
        "NVML field 230 beats the table",
        all_of(xid(94, "Contained: SM (0x1). RST: No, D-RST: No"), put("gpu.3.recovery_action", 2)),
        ("xid-94 critical reboot GPU 3", "recovery-action critical reboot GPU 3"),
        1,
    ),
    Scenario(
        "Xid 154 without the field",
        XID,
        all_of(
            xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
            put("gpu.3.recovery_action", gpu.error("NOT_SUPPORTED")),
        ),
        ("xid-154 critical reset GPU 3",),
        1,
    ),
    Scenario(
        "Xid 154 back to none",
        XID,
        all_of(
            xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
            put("gpu.3.recovery_action", gpu.error("NOT_SUPPORTED")),
        ),
        (),
        0,
    ),
    Scenario(
        "three Xid 31 on one GPU",
        "NVSentinel #911: never on one event",
        xids(31, 31, 31),
        ("xid-31 critical drain GPU 3",),
        1,
    ),
    Scenario(
        "Xid 74 with a hardware bit",
        "NVSentinel ADR 024",
        xid(74, "NVLink: fatal error detected on link 5(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
        ("xid-74 critical replace GPU 3",),
        1,
    ),
    Scenario(
        "Xid 74 with a marginal signal",
        "NVSentinel ADR 024",
        xid(74, "NVLink: error on link 5(0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
        ("xid-74 critical drain GPU 3",),
        1,
    ),
    Scenario(
        "Xid 74 with bits that mean nothing",
        "NVSentinel ADR 024",
        xid(74, "NVLink: error on link 5(0x800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
        ("xid-74 info none GPU 3",),
        0,
    ),
    Scenario(
        "Xid 74 that asks to reset the fabric",
        "NVSentinel ADR 024",
        xid(74, "NVLink: error on link 5(0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0)"),
        ("xid-74 critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "fallen off the bus without a number",
        "gpud #1209",
        line(f"NVRM: GPU {BUS}.0: GPU has fallen off the bus."),
        ("gpu-off-bus critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "fallen off the bus over three lines",
        "gpud #1209",
        all_of(
            line(f"NVRM: The NVIDIA GPU {BUS}.0"),
            line("NVRM: (PCI ID: 10de:2330) installed in this system has"),
            line("NVRM: fallen off the bus and is not responding to commands."),
        ),
        ("gpu-off-bus critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "memory of one GPU dies",
        "wtdcode/vllm-backport #62",
        all_of(xids(48, 63, 94, 48, 63, 94), put("gpu.3.recovery_action", gpu.error("NOT_SUPPORTED"))),
        (
            "memory-dying critical replace GPU 3",
            "xid-48 critical reset GPU 3",
            "xid-63 warning watch GPU 3",
            "xid-94 warning reset GPU 3",
        ),
        1,
    ),
    *(
        Scenario(f"SXid {number}", SXID, sxid(number, text), (f"sxid-{number} {severity} {action} NVSwitch at",), code)
        for number, text, severity, action, code in (
            (12020, "Fatal, Link 30 egress", "critical", "reboot", 1),
            (23005, "Fatal, Link 3", "critical", "reboot", 1),
            (20034, "Fatal, Link 30 LTSSM Fault Up", "critical", "reboot", 1),
            (19084, "Non-fatal, Link 30 heartbeat", "critical", "reboot", 1),
            (12028, "Non-fatal, Link 4 egress nonposted PRIV error", "critical", "drain", 1),
            (11004, "Non-fatal, Link 4 ingress invalid ACL", "critical", "drain", 1),
            (20012, "Non-fatal, Link 4", "warning", "watch", 1),
            (20001, "Non-fatal, Link 4", "warning", "watch", 1),
            (10004, "Non-fatal, thermal", "warning", "watch", 1),
            (11012, "Non-fatal, Link 4 single bit ECC", "info", "none", 0),
            (22013, "Non-fatal, Link 46 minion", "info", "none", 0),
            (28006, "Non-fatal, Link 46 crumbstore", "warning", "watch", 1),
            (28099, "Fatal, Link 46", "critical", "reboot", 1),
        )
    ),
    Scenario(
        "data lines of an SXid are no events",
        "gpud #338",
        all_of(
            sxid(28006, "Non-fatal, Link 46"), sxid(28006, "Severity 0 Engine instance 46"), sxid(28006, "Data {0x1}")
        ),
        ("sxid-28006 warning watch NVSwitch",),
        1,
    ),
    Scenario(
        "NVLink not detected after training",
        "NVSentinel #1748",
        line("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"),
        ("nvlink-rx-detect warning reboot gpu-a",),
        1,
    ),
    Scenario(
        "the driver cannot start a GPU",
        "NVSentinel #155",
        line(f"NVRM: GPU {BUS}.0: RmInitAdapter failed! (0x22:0x56:894)"),
        ("gpu-init-failed critical reboot GPU 3",),
        1,
    ),
    Scenario(
        "a process is stuck in the driver",
        "gpud #117",
        line("INFO: task nvidia-smi:4711 blocked for more than 120 seconds."),
        ("task-blocked critical reboot gpu-a",),
        1,
    ),
    Scenario(
        "fatal PCIe error line",
        "Linux AER",
        line("pcieport 0000:60:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"),
        ("pcie-fatal critical reboot device at",),
        1,
    ),
    Scenario(
        "slot power too low for a NIC",
        "NVSentinel NIC monitor",
        line("mlx5_core 0000:62:00.0: Detected insufficient power on the PCIe slot (27W)."),
        ("hca-slot-power warning replace device at",),
        1,
    ),
    Scenario(
        "ACCESS_REG lines are noise",
        "gpud #1164",
        line(
            "mlx5_core 0000:62:00.0: mlx5_cmd_out_err:838: ACCESS_REG(0x805) "
            "op_mod(0x1) failed, status bad parameter(0x3)"
        ),
        (),
        0,
    ),
    Scenario(
        "a user's line is not the kernel's",
        "kernel: /dev/kmsg facility",
        lambda n: (n.root / "kmsg").write_text(
            "12,5,1000000,-;NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus.\n"
        ),
        (),
        0,
    ),
    Scenario(
        "lines were overwritten",
        "gpud #1164: floods",
        line("eth0: up"),
        ("kernel-log-gap warning none kernel log",),
        1,
        then=lambda n: (n.log.skip(500), (n.root / "kmsg").write_text(""), n.log.add("eth0: down")),
    ),
    Scenario(
        "kernel log cannot be read",
        "own rule",
        lambda n: (n.root / "kmsg").unlink(),
        ("kernel-log-unreadable unknown watch kernel log",),
        3,
    ),
]

NETWORKS = [
    Scenario(
        "one HCA missing",
        "gpud #200",
        lambda n: n.sysfs.remove_device("mlx5_4"),
        ("hca-missing critical reboot gpu-a",),
        1,
    ),
    Scenario(
        "an HCA of the list missing",
        "gpud #200",
        nothing,
        ("hca-missing critical reboot gpu-a",),
        1,
        settings=("network.count=null", "network.devices=[mlx5_0, mlx5_3]"),
    ),
    Scenario(
        "one HCA too many",
        "infra-controller #3624",
        nothing,
        ("hca-unexpected warning none gpu-a",),
        1,
        settings=("network.count=7",),
    ),
    Scenario(
        "port down, disabled, SDR",
        "nccl #1935",
        lambda n: n.sysfs.port("mlx5_4").down(),
        ("ib-port-down critical drain mlx5_4 port 1",),
        1,
    ),
    Scenario(
        "port polling",
        "rccl #1423; nccl #905",
        all_of(port("mlx5_4", "state", "1: DOWN"), port("mlx5_4", "phys_state", "2: Polling")),
        ("ib-port-down critical drain mlx5_4 port 1",),
        1,
    ),
    Scenario(
        "port without subnet manager",
        "Meta GCM iblink",
        port("mlx5_4", "state", "2: INIT"),
        ("ib-port-init critical drain mlx5_4 port 1",),
        1,
    ),
    Scenario(
        "port state cannot be read",
        "node_exporter #3265",
        port("mlx5_4", "state", ""),
        ("ib-port-unknown unknown watch mlx5_4 port 1",),
        3,
    ),
    Scenario(
        "port at 200 Gb/s",
        "gpud; AzNHC",
        port("mlx5_4", "rate", "200 Gb/sec (4X HDR)"),
        ("ib-rate critical drain mlx5_4 port 1",),
        1,
    ),
    Scenario(
        "port at one lane",
        "gpud; AzNHC",
        port("mlx5_4", "rate", "100 Gb/sec (1X NDR)"),
        ("ib-rate critical drain mlx5_4 port 1",),
        1,
    ),
    Scenario(
        "a listed port in Ethernet mode",
        "node_exporter #3434",
        nothing,
        ("ib-layer critical none mlx5_2 port 1",),
        1,
        settings=(
            "network.count=null",
            "network.devices=[mlx5_0, mlx5_2]",
            "network.affinity=false",
            "network.pcie_width=null",
        ),
    ),
    Scenario(
        "link lost once",
        "gpud flap rule",
        nothing,
        ("ib-flap warning watch mlx5_4",),
        1,
        then=port("mlx5_4", "counters/link_downed", 1),
    ),
    Scenario(
        "link lost three times",
        "gpud flap rule",
        nothing,
        ("ib-flap critical drain mlx5_4",),
        1,
        then=port("mlx5_4", "counters/link_downed", 3),
    ),
    Scenario(
        "symbol errors",
        "NVSentinel NIC monitor",
        nothing,
        ("ib-errors warning watch mlx5_4",),
        1,
        then=port("mlx5_4", "counters/symbol_error", 6000),
    ),
    Scenario(
        "link error recoveries",
        "NVSentinel NIC monitor",
        nothing,
        ("ib-errors warning watch mlx5_4",),
        1,
        then=port("mlx5_4", "counters/link_error_recovery", 20),
    ),
    Scenario(
        "link integrity errors",
        "NVSentinel NIC monitor",
        nothing,
        ("ib-errors warning watch mlx5_4",),
        1,
        then=port("mlx5_4", "counters/local_link_integrity_errors", 1),
    ),
    Scenario(
        "a counter at its end",
        "gpud #943",
        port("mlx5_4", "counters/link_downed", 255),
        ("ib-counter-full warning none mlx5_4",),
        1,
    ),
    Scenario(
        "counter is not a number",
        "node_exporter #966",
        port("mlx5_4", "counters/symbol_error", "N/A (no PMA)"),
        ("ib-counters unknown watch mlx5_4",),
        3,
    ),
    Scenario(
        "one firmware differs",
        "Meta GCM",
        lambda n: (n.root / "sys/class/infiniband/mlx5_4/fw_ver").write_text("28.39.1002\n"),
        ("hca-firmware-differs warning none mlx5_4",),
        1,
    ),
    Scenario(
        "HCA at x8",
        "imbue host health",
        lambda n: n.sysfs.nics["mlx5_4"].set("current_link_width", 8),
        ("hca-pcie-width warning reboot mlx5_4",),
        1,
    ),
    Scenario(
        "no way for GPUDirect",
        "nccl #1676: 180 became 10",
        all_of(
            lambda n: n.proc("modules", "nvidia 1 0 - Live 0x0\n"),
            lambda n: n.proc(
                "driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue\n"
            ),
        ),
        ("gpu-direct warning drain gpu-a",),
        1,
    ),
    Scenario(
        "GPUs far from their NICs",
        "AzNHC topology",
        lambda n: n.sysfs.remove_device("mlx5_4"),
        ("gpu-nic-distance warning none gpu-a",),
        1,
        settings=("network.count=7",),
    ),
    Scenario(
        "31 EFA devices",
        "aws-ofi-nccl #1020",
        lambda n: n.sysfs.remove_device("rdmap28s0"),
        ("hca-missing critical reboot gpu-a",),
        1,
        profile="h100-sxm-efa",
    ),
    Scenario(
        "no verbs interface",
        "nccl #1597",
        emptied("sys/class/infiniband_verbs"),
        ("efa-verbs critical drain gpu-a",),
        1,
        profile="h100-sxm-efa",
    ),
    Scenario(
        "EFA device down",
        "AWS EFA guide",
        port("rdmap28s0", "state", "1: DOWN"),
        ("efa-port-down critical replace rdmap28s0",),
        1,
        profile="h100-sxm-efa",
    ),
    Scenario(
        "EFA time-outs",
        "EKS node monitoring agent",
        nothing,
        ("efa-errors warning drain rdmap28s0",),
        1,
        profile="h100-sxm-efa",
        then=port("rdmap28s0", "hw_counters/retrans_timeout_events", 100_000),
    ),
    Scenario(
        "EFA errors before the first pass",
        "EKS's false alarm at its start",
        port("rdmap28s0", "hw_counters/rx_drops", 10**9),
        (),
        0,
        profile="h100-sxm-efa",
        then=nothing,
    ),
]

HOST = [
    Scenario(
        "IOMMU translates",
        "nccl #489",
        lambda n: (n.root / "sys/kernel/iommu_groups/0/type").write_text("DMA-FQ\n"),
        ("iommu warning reboot gpu-a",),
        1,
    ),
    Scenario(
        "access control redirects",
        "nccl #489; NCCL troubleshooting",
        lambda n: n.sysfs.bridges[1].set_acs(0x1D),
        ("acs warning reboot gpu-a",),
        1,
    ),
    Scenario(
        "clock not synchronised",
        "EKS node monitoring agent",
        lambda n: setattr(n, "clock", not_synchronised()),
        ("clock-unsynchronised warning none gpu-a",),
        1,
    ),
    Scenario(
        "chrony does not answer",
        "EKS node monitoring agent",
        lambda n: n.broken_programs.update(chronyc="exit 3"),
        ("clock-unknown unknown watch gpu-a",),
        3,
    ),
]

SCENARIOS = [*INVENTORY, *MODES, *MEMORY, *HEAT, *PCIE, *NVLINK, *FABRIC, *LOG, *NETWORKS, *HOST]


@pytest.fixture(scope="session", autouse=True)
def _library(tmp_path_factory: pytest.TempPathFactory) -> None:
    load_library(tmp_path_factory.mktemp("nvml"))


@pytest.mark.parametrize("profile", PROFILES)
def test_a_healthy_node_has_no_finding(tmp_path: Path, profile: str) -> None:
    node = Simulated(tmp_path, profile)
    first = node.look()
    second = node.look(after=60)
    assert (short(first.report.findings), first.report.exit_code) == ([], 0)
    assert (short(second.report.findings), second.report.exit_code) == ([], 0)
    assert all(probe.complete for probe in second.report.probes if probe.outcome != "skipped")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_fault(tmp_path: Path, scenario: Scenario) -> None:
    node = Simulated(tmp_path, scenario.profile, list(scenario.settings), deadline=scenario.deadline)
    scenario.broken(node)
    done = node.look()
    if scenario.then is not None:
        assert short(done.report.findings) == [], "the first pass is a baseline"
        scenario.then(node)
        done = node.look(after=scenario.after)
    _check(done.report.findings, scenario.found)
    assert done.report.exit_code == scenario.exit


def _check(findings: tuple[Finding, ...], wanted: tuple[str, ...]) -> None:
    """Every finding is wanted, and every wanted one is there, with its severity, action and subject."""
    seen = [f"{one.id} {one.severity.value} {one.action.value} {one.subject}" for one in findings]
    missing = [want for want in wanted if not any(text.startswith(want) for text in seen)]
    extra = [text for text in seen if not any(text.startswith(want) for want in wanted)]
    assert (missing, extra) == ([], []), short(findings)


def test_every_finding_of_a_gpu_names_it_by_index_uuid_and_bus_id(tmp_path: Path) -> None:
    node = Simulated(tmp_path)
    node.look()
    node.state.set("gpu.3.call.*.error", "GPU_IS_LOST")
    lost_gpu = next(one for one in node.look(after=60).report.findings if one.id == "gpu-lost")
    assert str(lost_gpu.subject) == f"GPU 3 (GPU-00000003-aaaa-bbbb-cccc-000000000003, {BUS}.0)"


def test_there_are_enough_scenarios_and_each_has_a_source() -> None:
    assert len(SCENARIOS) >= 80
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert all(scenario.source for scenario in SCENARIOS)


def test_every_kind_of_finding_about_a_node_is_made_by_some_scenario() -> None:
    """Those that are not are named here, with the test that makes them."""
    elsewhere = {
        "probe-hung",
        "history-damaged",
        "history-not-kept",
        "history-unreadable",
        "clock-jumped",
        "probe-busy",  # test_health_node
        "nvml-binding-missing",
        "nvml-library-missing",  # test_health_node
        "nvlink-recovery-trend",
        "nvlink-flapping",  # test_health_node
        "acs-unknown",  # test_health_probes
        "nodes-differ",
        "node-unreachable",
        "node-garbled",  # test_health_cluster
    }
    made = {want.split()[0] for scenario in SCENARIOS for want in scenario.found}
    assert set(KINDS) - made - elsewhere == set()
