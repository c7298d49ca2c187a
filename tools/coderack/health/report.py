"""The result of one pass as data: verdict, findings, and the facts by which nodes are compared."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coderack.health.findings import Finding, Severity
from coderack.health.readings import NodeReadings, Probe

SCHEMA = "coderack.health-node/1"

HEALTHY, UNHEALTHY, UNKNOWN = "healthy", "unhealthy", "unknown"
_EXIT = {HEALTHY: 0, UNHEALTHY: 1, UNKNOWN: 3}


@dataclass(frozen=True)
class Report:
    node: str
    profile: str
    time: float
    seconds: float
    findings: tuple[Finding, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    probes: tuple[Probe, ...] = ()

    @property
    def verdict(self) -> str:
        return verdict(self.findings)

    @property
    def exit_code(self) -> int:
        return _EXIT[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Without the schema, which whoever prints it adds."""
        return {
            "node": self.node,
            "profile": self.profile,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "time": round(self.time, 3),
            "seconds": round(self.seconds, 3),
            "findings": [finding.as_json() for finding in self.findings],
            "facts": dict(self.facts),
            "probes": [
                {"name": p.name, "outcome": p.outcome, "seconds": round(p.seconds, 4), "at": p.at} for p in self.probes
            ],
        }


def verdict(findings: Iterable[Finding]) -> str:
    """A known fault says more than an unknown; what is not known is never healthy."""
    severities = {finding.severity for finding in findings}
    if severities & {Severity.CRITICAL, Severity.WARNING}:
        return UNHEALTHY
    return UNKNOWN if Severity.UNKNOWN in severities else HEALTHY


def facts(readings: NodeReadings, devices: Iterable[str]) -> dict[str, str]:
    """What should be the same on every node of a group. Several values on one node are listed."""
    gpus = [probe for probe in readings.gpus if probe.complete and probe["handle"].error is None]
    services, network = readings.services, readings.network
    devices = list(devices)
    ports = [f"{device}.port.{port}" for device in devices for port in network.names(f"{device}.port.")]
    found = {
        "gpu_count": str(len(gpus)) if gpus else "",
        "gpu_model": _all(probe.text("name") for probe in gpus),
        "vbios": _all(probe.text("vbios") for probe in gpus),
        "memory_bytes": _all(probe.text("memory.total") for probe in gpus),
        "power_limit_mw": _all(probe.text("power.limit") for probe in gpus),
        "max_sm_mhz": _all(probe.text("clock.sm.max") for probe in gpus),
        "max_memory_mhz": _all(probe.text("clock.memory.max") for probe in gpus),
        "ecc": _all(probe.text("ecc.mode") for probe in gpus),
        "mig": _all(probe.text("mig.mode") for probe in gpus),
        "pcie": _all(f"{probe.text('pcie.generation.max')} x{probe.text('pcie.width')}" for probe in gpus),
        "nvlink_speed": _all(answer.text(f"link.{link}.speed") for answer in gpus for link in answer.names("link.")),
        "driver": readings.driver.text("version") or "",
        "kernel_module": readings.host.text("module.version") or "",
        "kernel": readings.host.text("kernel") or "",
        "fabric_manager": _package(services, "nvidia-fabricmanager"),
        "nscq": _package(services, "libnvidia-nscq"),
        "nccl": _all(f"{name} {answer.value}" for name, answer in readings.host.under("nccl.")),
        "nccl_system": services.text("package.libnccl2") or "",
        "nic_count": str(len(devices)) if devices else "",
        "nic_firmware": _all(network.text(f"{device}.firmware") for device in devices),
        "nic_rate": _all(network.text(f"{port}.rate") for port in ports),
    }
    return {key: value for key, value in found.items() if value}


def _all(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _package(services: Probe, prefix: str) -> str:
    return _all(str(answer.value) for name, answer in services.under("package.") if name.startswith(prefix))
