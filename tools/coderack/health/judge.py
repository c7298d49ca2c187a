"""All rules over one pass."""

from collections.abc import Mapping

from coderack.health.findings import Finding, ordered
from coderack.health.readings import NodeReadings
from coderack.health.rules import events, fabric, gpu, inventory, network, node, nvlink
from coderack.health.rules.common import Case, Rule

RULES: tuple[Rule, ...] = (
    inventory.judge,
    gpu.judge,
    nvlink.judge,
    fabric.judge,
    network.judge,
    node.judge,
    events.judge,
)


def judge(case: Case) -> tuple[Finding, ...]:
    return ordered(one for rule in RULES for one in rule(case))


def counters(readings: NodeReadings) -> Mapping[str, float]:
    """What is judged by its increase, by names that stay the same over restarts."""
    found: dict[str, float] = {}
    for probe in readings.gpus:
        uuid = probe.text("uuid")
        if uuid is None or not probe.complete:
            continue
        values = {
            "pcie.replay": probe.number("pcie.replay"),
            "pcie.fatal": probe.number("pcie.fatal"),
            "ecc.corrected": probe.number("ecc.corrected.volatile"),
            "remapped": _sum(probe.number("remapped.correctable"), probe.number("remapped.uncorrectable")),
            **{name: probe.number(name) for name in _THROTTLED},
        }
        for link in probe.names("link."):
            for name in ("recovery", "replay", "crc"):
                values[f"link{link}/{name}"] = probe.number(f"link.{link}.{name}")
        found |= {f"{uuid}/{name}": value for name, value in values.items() if value is not None}
    for key, answer in readings.network.answers.items():
        port, separator, name = key.partition(".counter.")
        if separator and isinstance(answer.value, int):
            found[f"{port}/{name}"] = answer.value
    return found


_THROTTLED = ("throttled_ns.software_thermal", "throttled_ns.hardware_thermal", "throttled_ns.power_brake")


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
