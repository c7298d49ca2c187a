"""Whether the collectives of a node, or of several, are as fast as they have been, and take the way they should.

A bandwidth alone does not say that, and an all-reduce that lost NVLS or fell back to sockets still ends with the right
sums. So a verdict needs the table *and* NCCL's log, and what neither of them tells is unknown, never fine.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from coderack.clients.nccl_tests import Run

Network = Literal["infiniband", "efa", "none"]

# How NCCL names what it uses between nodes: its own InfiniBand transport, the same from a plugin (nccl #1357: IBext),
# and aws-ofi-nccl (nccl_ofi_interface_nvidia.cpp; until 1.13 with AWS in front).
_NETWORKS: dict[Network, re.Pattern[str]] = {
    "infiniband": re.compile(r"IB(ext\w*)?"),
    "efa": re.compile(r"(AWS )?Libfabric"),
}
# How far from the rate without NVLS a rate may be to be taken for it: H100 370 (nccl-tests #212), H200 367.61
# (stas00/ml-engineering, network/README.md).
_RING_BAND = 0.06
# What of a measured rate becomes the floor: repeated runs differ by a few percent, a lost NIC of eight by 12.
FLOOR_SHARE = 0.9


class Weight(StrEnum):
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Expectation:
    """What the inventory says about this test. Bandwidths in GB/s (10^9 bytes per second) of bus bandwidth."""

    ranks: int
    nodes: int
    floor: float | None
    nvls: bool
    network: Network
    hcas: tuple[str, ...] = ()  # InfiniBand devices that NCCL has to use, all and no others; empty for any
    efa_devices: int | None = None  # how many EFA devices libfabric has to find
    min_bytes: int = 8 * 2**30  # 256 MiB is too small to reach the peak (nccl-tests #212)
    without_nvls: float = 370.0  # what eight NVLink 4 GPUs reach without NVLS (nccl-tests #212)


@dataclass(frozen=True)
class Finding:
    """One thing that is not as expected, or not known."""

    id: str
    weight: Weight
    seen: str
    wanted: str
    cause: str
    action: str


@dataclass(frozen=True)
class Verdict:
    """`busbw` is None where no row is large enough to be judged."""

    busbw: float | None
    size: int | None
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        weights = {finding.weight for finding in self.findings}
        if Weight.BROKEN in weights:
            return 1
        return 3 if weights else 0


def judge(run: Run, wanted: Expectation) -> Verdict:
    """Compare a run with what is expected of it."""
    row = max((row for row in run.rows if row.size >= wanted.min_bytes), key=lambda row: row.size, default=None)
    findings = [*_ending(run), *_place(run, wanted), *_sums(run)]
    if run.rows and row is None and run.complete:
        findings.append(_too_small(run, wanted))
    if wanted.nvls:
        findings.extend(_nvls(run, wanted))
    if wanted.nodes > 1:
        findings.extend(_network(run, wanted))
    if row is not None:
        findings.extend(_rate(row.busbw, wanted, [finding.id for finding in findings]))
    return Verdict(row.busbw if row else None, row.size if row else None, tuple(findings))


def proposed_floor(busbw: float) -> int:
    """The floor to record after a run that nothing else is wrong with."""
    return int(busbw * FLOOR_SHARE)


# What ended a test, by the words that NCCL or CUDA find for it: (words, cause, action).
_ENDINGS = (
    (
        "system not yet initialized",
        "CUDA error 802: the GPUs wait for the fabric manager (missing, dead, or of another version than the driver)",
        "systemctl status nvidia-fabricmanager; its version must be the driver's. Then coderack health node",
    ),
    (
        "Failed to bind NVLink SHARP (NVLS) Multicast memory",
        "NVLS lost: the NVSwitches refuse multicast groups (nccl #1562)",
        "drain the node and restart nvidia-fabricmanager, or reset all GPUs; NCCL_NVLS_ENABLE=0 gets by without",
    ),
    (
        "Cannot allocate memory",
        "memory could not be registered for RDMA: the limit for locked memory, or no huge pages left for EFA",
        "run it as a unit with LimitMEMLOCK=infinity; grep Huge /proc/meminfo",
    ),
    (
        "no CUDA-capable device",
        "CUDA sees no GPU",
        "coderack health node",
    ),
    (
        "out of memory",
        "the GPUs are in use, most likely by vLLM",
        "make stop, then run the gate again",
    ),
)


def _ending(run: Run) -> Iterator[Finding]:
    if run.complete and run.rows:
        return
    said = "\n".join((*run.log.warnings, *run.last_lines))
    seen = "; ".join((run.log.warnings or run.last_lines)[-2:]) or "no output"
    for words, cause, action in _ENDINGS:
        if words.lower() in said.lower():
            yield Finding("not-finished", Weight.BROKEN, seen[:300], "a whole table", cause, action)
            return
    yield Finding(
        "not-finished",
        Weight.UNKNOWN,
        seen[:300],
        "a whole table with its closing lines",
        "the test crashed, hung until its time was over, or did not start",
        "read the log from its first NCCL WARN; coderack health node on every node",
    )


def _place(run: Run, wanted: Expectation) -> Iterator[Finding]:
    if not run.devices:
        return
    seen = (len(run.devices), len(run.hosts))
    if seen != (wanted.ranks, wanted.nodes):
        yield Finding(
            "another-test",
            Weight.UNKNOWN,
            f"{seen[0]} ranks on {seen[1]} nodes ({', '.join(run.hosts)})",
            f"{wanted.ranks} ranks on {wanted.nodes} nodes",
            "it ran over other GPUs than those to be judged",
            "run it over all GPUs of the inventory; a node that shows fewer: coderack health node",
        )


def _sums(run: Run) -> Iterator[Finding]:
    wrong = sum(row.wrong or 0 for row in run.rows) or run.out_of_bounds or 0
    if wrong:
        yield Finding(
            "wrong-sums",
            Weight.BROKEN,
            f"{wrong} wrong elements",
            "0",
            "data is corrupted on its way (GPU memory, NVLink, PCIe, NIC)",
            "drain the node; coderack health node (ECC, NVLink, PCIe counters); repeat by halves to find the GPU",
        )
    elif run.rows and any(row.wrong is None for row in run.rows):
        yield Finding(
            "sums-not-checked",
            Weight.UNKNOWN,
            "#wrong is N/A",
            "a check of every sum",
            "the test ran without validation (-c 0)",
            "run it with -c 1",
        )


def _too_small(run: Run, wanted: Expectation) -> Finding:
    return Finding(
        "sizes-too-small",
        Weight.UNKNOWN,
        f"largest size {max(row.size for row in run.rows)} bytes",
        f"at least {wanted.min_bytes}",
        "smaller messages do not reach the peak, so they say nothing about the links",
        "run it with -e 16G",
    )


_NVLS_ACTION = (
    "drain the node; systemctl status nvidia-fabricmanager and its log; reset all GPUs and switches together, or "
    "reboot; NCCL_NVLS_ENABLE and NCCL_ALGO must not be set (roles/nccl)"
)


def _nvls(run: Run, wanted: Expectation) -> Iterator[Finding]:
    log = run.log
    without = sorted(f"{host} GPU {device}" for (host, device), there in log.multicast.items() if not there)
    largest = max((size for size in log.algorithms if size >= wanted.min_bytes), default=None)
    taken = log.algorithms[largest] if largest is not None else frozenset()
    switched_off = {name: log.overrides[name] for name in ("NCCL_NVLS_ENABLE", "NCCL_ALGO") if name in log.overrides}
    seen = None
    if switched_off.get("NCCL_NVLS_ENABLE") == "0":
        seen = "NCCL_NVLS_ENABLE is 0"
    elif without:
        seen = f"no NVLS multicast on {', '.join(without)}"
    elif 0 in log.nvls_channels:
        seen = "0 nvls channels"
    elif taken and not all(name.replace("_", "").startswith("NVLS") for name in taken):
        seen = f"an all-reduce of {largest} bytes took {', '.join(sorted(taken))}"
        seen += f" (NCCL_ALGO is {switched_off['NCCL_ALGO']})" if "NCCL_ALGO" in switched_off else ""
    if seen is not None:
        yield Finding("nvls-lost", Weight.BROKEN, seen, "NVLS on every GPU", "NVLS lost", _NVLS_ACTION)
    elif not log.nvls_channels or len(log.multicast) < wanted.ranks:
        yield Finding(
            "nvls-unknown",
            Weight.UNKNOWN,
            f"NCCL's log names {len(log.multicast)} GPUs with multicast and "
            f"{'no' if not log.nvls_channels else 'some'} nvls channels",
            f"{wanted.ranks} GPUs",
            "the log is not there or not whole",
            "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING",
        )


def _network(run: Run, wanted: Expectation) -> Iterator[Finding]:
    log, pattern = run.log, _NETWORKS.get(wanted.network)
    if pattern is None:
        return
    if not log.networks:
        yield Finding(
            "network-unknown",
            Weight.UNKNOWN,
            'NCCL\'s log has no "Using network"',
            wanted.network,
            "the log is not there or not whole",
            "run it with NCCL_DEBUG=INFO",
        )
        return
    others = sorted(name for name in log.networks if pattern.fullmatch(name) is None)
    if others:
        yield Finding("network-not-used", Weight.BROKEN, f"NCCL uses {', '.join(others)}", wanted.network, *_FALLBACK)
        return
    yield from _infiniband(run, wanted) if wanted.network == "infiniband" else _efa(run, wanted)
    yield from _direct(run)


_FALLBACK = (
    "NCCL fell back silently: no RDMA device, libibverbs or plugin found (nccl #952, awsome-distributed-ai #386)",
    "the role fabric checks devices and libraries; on EFA the role nccl puts the plugin's folder on LD_LIBRARY_PATH",
)


def _infiniband(run: Run, wanted: Expectation) -> Iterator[Finding]:
    hcas = run.log.hcas
    ethernet = sorted(name for name, layer in hcas.items() if layer != "IB")
    if ethernet:
        yield Finding(
            "hca-not-infiniband",
            Weight.BROKEN,
            f"{', '.join(ethernet)} as Ethernet (RoCE)",
            "InfiniBand ports only",
            "a storage or management port carries collectives",
            "take it out of the inventory's fabric devices; NCCL_IB_HCA has to begin with =",
        )
    if wanted.hcas and hcas and set(hcas) != set(wanted.hcas):
        missing, more = sorted(set(wanted.hcas) - set(hcas)), sorted(set(hcas) - set(wanted.hcas))
        yield Finding(
            "hcas-differ",
            Weight.BROKEN,
            f"{len(hcas)} HCAs; missing {', '.join(missing) or 'none'}, not wanted {', '.join(more) or 'none'}",
            ", ".join(wanted.hcas),
            "an HCA is down or has another name, or NCCL_IB_HCA is not set",
            "ibstat on every node; the role fabric names the port",
        )
    elif not hcas:
        yield Finding(
            "hcas-unknown",
            Weight.UNKNOWN,
            'NCCL\'s log has no "NET/IB : Using"',
            ", ".join(wanted.hcas) or "the HCAs in use",
            "the log is not whole",
            "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING",
        )


def _efa(run: Run, wanted: Expectation) -> Iterator[Finding]:
    log = run.log
    if log.ofi_providers - {"efa", "efa-direct"}:
        yield Finding(
            "provider-not-efa",
            Weight.BROKEN,
            f"libfabric provider {', '.join(sorted(log.ofi_providers))}",
            "efa",
            "no EFA device was found, so the plugin took another provider",
            "fi_info -p efa on every node; FI_PROVIDER must not be set",
        )
    elif not log.ofi_providers:
        yield Finding(
            "provider-unknown",
            Weight.UNKNOWN,
            "the plugin does not say which provider it selected",
            "efa",
            "the log is not whole",
            "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING",
        )
    if wanted.efa_devices is not None and log.ofi_nics and log.ofi_nics != {wanted.efa_devices}:
        yield Finding(
            "efa-devices-differ",
            Weight.BROKEN,
            f"{', '.join(str(count) for count in sorted(log.ofi_nics))} EFA devices",
            str(wanted.efa_devices),
            "an interface is missing: the launch template's layout, or a driver that did not load for all",
            "fi_info -p efa and ls /sys/class/infiniband on every node",
        )


def _direct(run: Run) -> Iterator[Finding]:
    log = run.log
    if log.channels and log.direct_channels < log.channels:
        yield Finding(
            "gpu-direct-not-used",
            Weight.BROKEN,
            f"{log.channels - log.direct_channels} of {log.channels} connections between nodes without GDRDMA",
            "GPU Direct RDMA on all",
            "data goes through the CPU's memory: no DMA-BUF and no nvidia-peermem, or ACS or IOMMU in the way (nccl "
            "#1676: 180 to 10 GB/s)",
            "the role fabric checks DMA-BUF, ACS and IOMMU",
        )
    elif not log.channels:
        yield Finding(
            "gpu-direct-unknown",
            Weight.UNKNOWN,
            "NCCL's log has no connections between nodes",
            "GPU Direct RDMA on all",
            "the log is not whole",
            "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING",
        )


def _rate(busbw: float, wanted: Expectation, others: list[str]) -> Iterator[Finding]:
    if wanted.floor is None:
        advice = (
            "first put right what is named above, then record 90 % of what a healthy run measures"
            if others
            else f"if this is what the machines can do, record {proposed_floor(busbw)} (90 %)"
        )
        yield Finding(
            "no-floor",
            Weight.UNKNOWN,
            f"{busbw:.1f} GB/s",
            "a floor to compare it with",
            "the inventory records none for this test",
            f"{advice} in nccl_gate_floors of group_vars/gpu_nodes.yml",
        )
    elif not busbw >= wanted.floor:  # also where it is not a number
        cause, action = _slow(busbw, wanted, others)
        yield Finding("slow", Weight.BROKEN, f"{busbw:.1f} GB/s", f"at least {wanted.floor:g} GB/s", cause, action)


def _slow(busbw: float, wanted: Expectation, others: list[str]) -> tuple[str, str]:
    if "nvls-lost" in others:
        return "NVLS lost (see above)", _NVLS_ACTION
    if wanted.nvls and abs(busbw / wanted.without_nvls - 1) <= _RING_BAND:
        return (
            f"NVLS lost, most likely: {wanted.without_nvls:g} GB/s is what a ring without NVLS reaches",
            _NVLS_ACTION,
        )
    if others:
        return "see above", "put right what is named above, then run the gate again"
    if wanted.nodes > 1:
        return (
            "the network between the nodes: a 400 Gb/s NIC carries 46-48 GB/s (nccl-tests #290); a lost one shows as "
            "a step; or congestion, or PCIe below Gen5 x16",
            "coderack health cluster; run the gate on each node alone to see which half it is",
        )
    return (
        "links or GPUs of this node: an NVLink down or slow, clocks held back by heat or power",
        "coderack health node; compare with the other node",
    )
