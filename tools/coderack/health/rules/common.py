"""What every rule stands on: the case to judge, and how findings are made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from coderack.health.findings import Action, Finding, Severity, Subject
from coderack.health.history import History
from coderack.health.kinds import KINDS
from coderack.health.readings import GPU_IS_LOST, RESET_REQUIRED, Answer, NodeReadings, Probe
from coderack.spec.gpu import GpuProfile

# What a GPU answers to everything once it is gone; then it has one finding, not forty.
GONE = (GPU_IS_LOST, RESET_REQUIRED)


@dataclass(frozen=True)
class Case:
    """One pass over one node: what was seen, what should be, and what was before. The history includes this pass."""

    readings: NodeReadings
    wanted: GpuProfile
    history: History

    @property
    def node(self) -> Subject:
        return Subject("node", self.readings.node)

    @property
    def window(self) -> float:
        return self.wanted.limits.window_seconds

    def gpu(self, index: int) -> Subject:
        """By index, UUID and bus id; of a GPU that does not answer those that it had when it last did."""
        probe = self.readings.gpus[index]
        uuid, bus = probe.text("uuid"), probe.text("bus_id")
        if uuid is None and (known := self.history.gpus.get(str(index))):
            last_uuid, _, last_bus = known.partition(" ")
            # Indexes move up when a GPU is lost: what another one has now is not this one's.
            if all(other.text("uuid") != last_uuid for other in self.readings.gpus):
                uuid, bus = last_uuid, last_bus
        identity = ", ".join(part for part in (uuid, bus) if part)
        return Subject("gpu", f"GPU {index}" + (f" ({identity})" if identity else ""), index, uuid, bus)

    def link(self, index: int, link: int) -> Subject:
        gpu = self.gpu(index)
        return Subject("link", f"{gpu.name} link {link}", index, gpu.uuid, gpu.bus_id, link)

    def judged_gpus(self) -> Iterator[tuple[int, Probe, Subject]]:
        """GPUs that answered and are not gone."""
        for index, probe in enumerate(self.readings.gpus):
            if probe.complete and probe["handle"].error is None and gone(probe) is None:
                yield index, probe, self.gpu(index)


Rule = Callable[[Case], Iterator[Finding]]


def gone(probe: Probe) -> str | None:
    """The error with which the GPU answers everything since it was lost during the sweep."""
    return next((answer.error for answer in probe.answers.values() if answer.error in GONE), None)


def finding(
    kind: str,
    subject: Subject,
    seen: object,
    wanted: object,
    severity: Severity | None = None,
    action: Action | None = None,
    **texts: str,
) -> Finding:
    what = KINDS[kind]
    return Finding(
        id=kind,
        severity=severity or what.severity,
        subject=subject,
        seen=str(seen),
        wanted=str(wanted),
        impact=texts.get("impact", what.impact),
        action=action or what.action,
        remedy=texts.get("remedy", what.remedy),
        source=texts.get("source", what.source),
        runbook=f"coderack health explain {kind}",
    )


def unknown(kind: str, subject: Subject, what: str, answer: Answer, wanted: object) -> Finding:
    """The same finding when its reading was not to be had: never healthy, and never the fault itself."""
    return finding(kind, subject, f"{what}: no value ({answer.error})", wanted, Severity.UNKNOWN, Action.WATCH)


def expect(
    kind: str, subject: Subject, what: str, answer: Answer, wanted: Any, show: Callable[[Any], object] = lambda x: x
) -> Iterator[Finding]:
    """One reading that must have one value; nothing when the profile does not say which."""
    if wanted is None:
        return
    if answer.error is not None:
        yield unknown(kind, subject, what, answer, show(wanted))
    elif answer.value != wanted:
        yield finding(kind, subject, f"{what} {show(answer.value)}", show(wanted))


def confirmed(case: Case, one: Finding) -> Finding:
    """A state that comes and goes while links train: not believed in the boot grace, nor the first time it is seen.

    Both give "unknown", which no gate lets through. The first pass of a boot has nothing to compare with and believes.
    """
    uptime, grace = case.readings.moment.uptime, case.wanted.limits.boot_grace_seconds
    if uptime < grace:
        seen = f"{one.seen} ({uptime:.0f} s after boot; decided after {grace:.0f} s)"
        return one.with_(severity=Severity.UNKNOWN, action=Action.WATCH, seen=seen)
    if case.history.passes > 1 and one.key not in case.history.bad:
        seen = f"{one.seen} (seen for the first time; the next pass decides)"
        return one.with_(severity=Severity.UNKNOWN, action=Action.WATCH, seen=seen)
    return one


def numbers(values: list[int]) -> str:
    """`0-3, 7` of [0, 1, 2, 3, 7]."""
    parts: list[str] = []
    start = last = None
    for value in [*sorted(values), None]:
        if start is not None and last is not None and value != last + 1:
            parts.append(str(start) if start == last else f"{start}-{last}")
            start = None
        start = value if start is None else start
        last = value
    return ", ".join(parts)
