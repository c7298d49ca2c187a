"""Metrics for node_exporter's textfile collector, `coderack_gpu_*`."""

from collections.abc import Iterator

from coderack.clients.textfile import Series, page, write
from coderack.health.findings import Severity
from coderack.health.node import Pass
from coderack.health.readings import ANSWERED, Probe

__all__ = ["render", "write"]

_TYPES = {
    "coderack_gpu_health_verdict": ("gauge", "1 for the verdict of the last pass: healthy, unhealthy or unknown."),
    "coderack_gpu_health_last_pass_timestamp_seconds": (
        "gauge",
        "When the last pass ended: older than a few minutes means blind.",
    ),
    "coderack_gpu_health_pass_duration_seconds": ("gauge", "How long the last pass took."),
    "coderack_gpu_health_findings": ("gauge", "Findings of the last pass by severity."),
    "coderack_gpu_health_finding": ("gauge", "1 for each finding of the last pass."),
    "coderack_gpu_health_probe_answered": ("gauge", "Whether a probe gave a complete answer."),
    "coderack_gpu_health_probe_last_answer_timestamp_seconds": ("gauge", "When a probe last gave a complete answer."),
    "coderack_gpu_info": ("gauge", "1, with what identifies the GPU."),
    "coderack_gpu_temperature_celsius": ("gauge", "GPU temperature."),
    "coderack_gpu_thermal_margin_celsius": ("gauge", "Degrees to the limit of normal operation."),
    "coderack_gpu_power_watts": ("gauge", "Power now."),
    "coderack_gpu_sm_clock_hertz": ("gauge", "SM clock now."),
    "coderack_gpu_nvlink_up": ("gauge", "NVLinks of the GPU that are active."),
    "coderack_gpu_nvlink_recovery_total": ("counter", "Recoveries of an NVLink."),
    "coderack_gpu_nvlink_replay_total": ("counter", "Replays of an NVLink."),
    "coderack_gpu_nvlink_crc_errors_total": ("counter", "CRC errors of an NVLink."),
    "coderack_gpu_pcie_replay_total": ("counter", "PCIe replays."),
    "coderack_gpu_ecc_errors_total": ("counter", "ECC errors since the driver was loaded."),
    "coderack_gpu_remapped_rows": ("gauge", "Remapped memory rows."),
    "coderack_gpu_fabric_state": (
        "gauge",
        "NVLink fabric: 0 not supported, 1 not started, 2 in progress, 3 completed.",
    ),
    "coderack_gpu_recovery_action": (
        "gauge",
        "What the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset.",
    ),
    "coderack_gpu_kernel_log_events": ("gauge", "Xid, SXid and other lines of this boot that are remembered."),
}
_LINK = {"recovery": "nvlink_recovery_total", "replay": "nvlink_replay_total", "crc": "nvlink_crc_errors_total"}


def render(one: Pass) -> str:
    """The whole file. A reading that was not to be had has no series: absent() is the alert for it."""
    return page(_TYPES, _all(one))


def _all(one: Pass) -> Iterator[Series]:
    report = one.report
    for verdict in ("healthy", "unhealthy", "unknown"):
        yield "coderack_gpu_health_verdict", {"verdict": verdict}, float(report.verdict == verdict)
    yield "coderack_gpu_health_last_pass_timestamp_seconds", {}, report.time
    yield "coderack_gpu_health_pass_duration_seconds", {}, report.seconds
    for severity in Severity:
        number = sum(1 for finding in report.findings if finding.severity == severity)
        yield "coderack_gpu_health_findings", {"severity": severity.value}, float(number)
    yield from _findings(one)
    for probe in report.probes:
        if probe.outcome != "skipped" or probe.pid:
            yield "coderack_gpu_health_probe_answered", {"probe": probe.name}, float(probe.outcome == ANSWERED)
    for name, wall in one.history.good.items():
        yield "coderack_gpu_health_probe_last_answer_timestamp_seconds", {"probe": name}, wall
    for index, gpu in enumerate(one.readings.gpus):
        if gpu.complete and gpu.text("uuid"):
            yield from _gpu(index, gpu)
    for event in one.history.events.values():
        labels = {"kind": event.kind, "code": event.code, "device": event.device}
        yield "coderack_gpu_kernel_log_events", labels, float(event.count)


def _findings(one: Pass) -> Iterator[Series]:
    """One series per id, severity, action and GPU: a link number would make a series per link."""
    seen = set()
    for finding in one.report.findings:
        subject = finding.subject
        gpu = "" if subject.gpu is None else str(subject.gpu)
        name = "" if subject.gpu is not None else subject.name
        labels = {
            "id": finding.id,
            "severity": finding.severity.value,
            "action": finding.action.value,
            "gpu": gpu,
            "uuid": subject.uuid or "",
            "bus_id": subject.bus_id or "",
            "subject": name,
        }
        key = tuple(labels.values())
        if key not in seen:
            seen.add(key)
            yield "coderack_gpu_health_finding", labels, 1.0


def _gpu(index: int, gpu: Probe) -> Iterator[Series]:
    labels = {"gpu": str(index), "uuid": gpu.text("uuid") or ""}
    info = {
        **labels,
        "bus_id": gpu.text("bus_id") or "",
        "model": gpu.text("name") or "",
        "vbios": gpu.text("vbios") or "",
    }
    yield "coderack_gpu_info", info, 1.0
    for key, name, factor in (
        ("temperature", "temperature_celsius", 1.0),
        ("thermal_margin", "thermal_margin_celsius", 1.0),
        ("power.usage", "power_watts", 1e-3),
        ("clock.sm", "sm_clock_hertz", 1e6),
        ("pcie.replay", "pcie_replay_total", 1.0),
        ("fabric.state", "fabric_state", 1.0),
        ("recovery_action", "recovery_action", 1.0),
    ):
        if (value := gpu.number(key)) is not None:
            yield f"coderack_gpu_{name}", labels, value * factor
    for kind in ("corrected", "uncorrected"):
        if (value := gpu.number(f"ecc.{kind}.volatile")) is not None:
            yield "coderack_gpu_ecc_errors_total", {**labels, "kind": kind}, value
        short = "correctable" if kind == "corrected" else "uncorrectable"
        if (value := gpu.number(f"remapped.{short}")) is not None:
            yield "coderack_gpu_remapped_rows", {**labels, "cause": short}, value
    links = gpu.names("link.")
    if links:
        up = sum(1 for link in links if gpu[f"link.{link}.state"].value in (1, 2))
        yield "coderack_gpu_nvlink_up", labels, float(up)
    for link in links:
        for counter, name in _LINK.items():
            if (value := gpu.number(f"link.{link}.{counter}")) is not None:
                yield f"coderack_gpu_{name}", {**labels, "link": link}, value
