"""Nodes of one group compared with each other: who differs in what, and which is the odd one out."""

from collections import Counter
from collections.abc import Iterator, Mapping

from coderack.health.findings import Finding, Severity, Subject
from coderack.health.rules.common import finding

# fact -> (what it is called, severity, what it does to serving)
COMPARED: dict[str, tuple[str, Severity, str]] = {
    "gpu_count": ("number of GPUs", Severity.CRITICAL, "a group over the nodes cannot start"),
    "gpu_model": ("GPU model", Severity.CRITICAL, "the slower GPU sets the pace, and memory is planned for the larger"),
    "memory_bytes": ("GPU memory", Severity.CRITICAL, "the KV cache of the group is planned for the larger"),
    "nccl": (
        "NCCL version in vLLM's environment",
        Severity.CRITICAL,
        "a group with two NCCL versions hangs at its start",
    ),
    "nccl_system": ("NCCL version of the system", Severity.WARNING, "NCCL tests do not measure what vLLM uses"),
    "driver": ("driver version", Severity.WARNING, "NCCL and CUDA graphs may behave differently"),
    "kernel_module": ("kernel module version", Severity.WARNING, "NCCL and CUDA graphs may behave differently"),
    "fabric_manager": ("fabric manager version", Severity.WARNING, "one of both nodes does not fit its driver"),
    "nscq": ("NSCQ version", Severity.WARNING, "monitoring of NVSwitches differs"),
    "vbios": ("GPU VBIOS", Severity.WARNING, "power and clocks may differ"),
    "power_limit_mw": ("GPU power limit", Severity.WARNING, "the slower node sets the pace"),
    "max_sm_mhz": ("highest SM clock", Severity.WARNING, "the slower node sets the pace"),
    "max_memory_mhz": ("highest memory clock", Severity.WARNING, "the slower node sets the pace"),
    "ecc": ("ECC mode", Severity.WARNING, "memory size and speed differ"),
    "mig": ("MIG mode", Severity.CRITICAL, "a group over the nodes cannot start"),
    "pcie": ("PCIe link of the GPUs", Severity.WARNING, "the slower node sets the pace"),
    "nvlink_speed": ("NVLink speed", Severity.WARNING, "the slower node sets the pace"),
    "nic_count": ("number of fabric NICs", Severity.CRITICAL, "NCCL pairs NICs by number: slow, or no start"),
    "nic_firmware": ("NIC firmware", Severity.WARNING, "features and errors may differ"),
    "nic_rate": ("NIC rate", Severity.WARNING, "the slower node sets the pace"),
    "kernel": ("kernel version", Severity.WARNING, "drivers and network may behave differently"),
}


def compare(nodes: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Findings of what differs between `nodes` (name -> facts). With more than two, those that are not as most."""
    for fact, (what, severity, impact) in COMPARED.items():
        values = {name: facts.get(fact, "") for name, facts in nodes.items()}
        # Nobody has it: not this group's kind of machine. Some have it: that, too, is a difference.
        if len(set(values.values())) > 1:
            yield from _differ(fact, what, severity, impact, values)


def _differ(fact: str, what: str, severity: Severity, impact: str, values: Mapping[str, str]) -> Iterator[Finding]:
    counts = Counter(values.values()).most_common()
    shown = {name: value or "not known" for name, value in values.items()}
    if len(counts) > 1 and counts[0][1] > counts[1][1]:
        usual = counts[0][0] or "not known"
        for name, value in shown.items():
            if value != usual:
                yield _finding(fact, name, f"{what}: {value}", f"{usual}, as on the others", severity, impact)
        return
    seen = "; ".join(f"{name} has {value}" for name, value in sorted(shown.items()))
    yield _finding(fact, ", ".join(sorted(values)), f"{what}: {seen}", "the same on all", severity, impact)


def _finding(fact: str, nodes: str, seen: str, wanted: str, severity: Severity, impact: str) -> Finding:
    one = finding("nodes-differ", Subject("node", nodes), seen, wanted, severity, impact=impact)
    return one.with_(id=f"nodes-differ-{fact.replace('_', '-')}")
