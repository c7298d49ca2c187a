"""NVSwitches, the fabric state of each GPU, fabric manager, and whether all versions are one version.

Each alone misses a known case: the state stays Completed after fabric manager died (NVSentinel #883), and an active
service of another version fails at the next start (gpu-operator #544).
"""

from collections import Counter
from collections.abc import Iterator

from coderack.health.findings import Finding, Subject
from coderack.health.probes.services import upstream
from coderack.health.readings import ABSENT, NOT_SUPPORTED, Answer, Probe
from coderack.health.rules.common import Case, confirmed, finding, unknown

_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_COMPLETED = 3
_FM_UNIT = "nvidia-fabricmanager.service"
_PERSISTENCED_UNIT = "nvidia-persistenced.service"
# Two bits each: 0 not supported, 1 fault, 2 explicitly fine (nvml.h, fabric health mask).
_MASK = {
    0: ("fabric-bandwidth", "degraded bandwidth"),
    2: ("fabric-recovering", "route recovery in progress"),
    4: ("fabric-route", "route unhealthy"),
    6: ("fabric-recovering", "access time-out recovery"),
}
_CONFIGURATION = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "GPU state invalid",
}


def judge(case: Case) -> Iterator[Finding]:
    if case.wanted.gpus.count == 0:
        return
    yield from _switches(case)
    for _, probe, gpu in case.judged_gpus():
        yield from _state(case, probe, gpu)
    yield from _partitions(case)
    if not case.readings.services.complete:
        return
    yield from _fabric_manager(case)
    yield from _versions(case)
    yield from _persistenced(case)


def _switches(case: Case) -> Iterator[Finding]:
    pci, wanted = case.readings.pci, case.wanted.fabric.nvswitches
    if not wanted or not pci.complete or pci["bus"].error is not None:
        return
    switches = pci.between("switch.", ".alive")
    if len(switches) < wanted:
        yield finding("nvswitch-missing", case.node, f"{len(switches)} NVSwitches on the PCI bus", wanted)
    for bus in switches:
        if pci[f"switch.{bus}.alive"].value == 0:
            subject = Subject("switch", f"NVSwitch at {bus}", bus_id=bus)
            yield finding("nvswitch-off-bus", subject, "PCI configuration reads as all ones", "it answers")


def _state(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    wanted, answer = case.wanted.fabric.state, probe["fabric.state"]
    if wanted == "any" or (wanted == "not_supported" and answer.error == NOT_SUPPORTED):
        return
    state = probe.integer("fabric.state")
    if answer.error == NOT_SUPPORTED:
        yield finding("fabric-unsupported", gpu, "fabric: not supported", "completed")
    elif state is None:
        yield unknown("fabric-unknown", gpu, "fabric state", answer, wanted)
    elif wanted == "not_supported":
        if state != 0:
            yield finding("gpu-unexpected", gpu, f"fabric {_STATES.get(state, state)}", "no NVLink fabric")
    elif state == 0:
        yield finding("fabric-unsupported", gpu, "fabric: not supported", "completed")
    elif state != _COMPLETED:
        yield confirmed(case, finding("fabric-not-ready", gpu, f"fabric {_STATES.get(state, state)}", "completed"))
    else:
        yield from _completed(probe, gpu)


def _completed(probe: Probe, gpu: Subject) -> Iterator[Finding]:
    """The status means something only now."""
    if probe["fabric.status"].value != 0:
        yield finding(
            "fabric-failed", gpu, f"fabric completed with status {probe['fabric.status']}", "status 0 (success)"
        )
    mask = probe.integer("fabric.health_mask") or 0
    for shift, (kind, name) in _MASK.items():
        if mask >> shift & 0x3 == 1:
            yield finding(kind, gpu, f"fabric health: {name}", "none")
    wrong = mask >> 8 & 0xF
    if wrong > 1:
        yield finding("fabric-configuration", gpu, f"fabric health: {_CONFIGURATION.get(wrong, wrong)}", "none")


def _partitions(case: Case) -> Iterator[Finding]:
    """Zero is normal on HGX; what counts is that all GPUs have the same."""
    if case.wanted.fabric.state != "completed":
        return
    places = {
        index: (probe.text("fabric.cluster"), probe.text("fabric.clique"))
        for index, probe, _ in case.judged_gpus()
        if probe["fabric.state"].value == _COMPLETED
    }
    counts = Counter(places.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for index, place in places.items():
        if place != usual:
            seen, wanted = (f"cluster {cluster}, clique {clique}" for cluster, clique in (place, usual))
            yield finding("fabric-partition", case.gpu(index), seen, f"{wanted}, as on the others")


def _fabric_manager(case: Case) -> Iterator[Finding]:
    if not case.wanted.fabric.fabric_manager:
        return
    subject = Subject("service", _FM_UNIT)
    services = case.readings.services
    active = services[f"unit.{_FM_UNIT}.active"]
    if active.error == ABSENT:
        yield finding("fabric-manager-missing", subject, "no such unit", "active")
    elif active.error is not None:
        yield unknown("fabric-manager-unknown", subject, "state of the unit", active, "active")
    elif active.value != "active":
        sub, result = services.text(f"unit.{_FM_UNIT}.sub"), services.text(f"unit.{_FM_UNIT}.result")
        one = finding("fabric-manager-stopped", subject, f"{active.value} ({sub}, {result})", "active")
        # `activating` within the boot grace is a start like any other.
        yield confirmed(case, one) if active.value == "activating" else one


def _versions(case: Case) -> Iterator[Finding]:
    services, driver = case.readings.services, case.readings.driver["version"]
    module = case.readings.host["module.version"]
    if driver.error is None and module.error is None and driver.value != module.value:
        seen = f"kernel module {module.value}, driver library {driver.value}"
        yield finding("driver-version-module", case.node, seen, "one version")
    if not case.wanted.fabric.fabric_manager or driver.error is not None:
        return
    if services["packages"].error is not None:
        yield unknown("packages-unknown", case.node, "installed packages", services["packages"], f"all {driver.value}")
        return
    wanted = str(driver.value)
    yield from _package(services, "nvidia-fabricmanager", "fabric-manager-version", "fabric-manager-missing", wanted)
    if case.wanted.fabric.nscq:
        yield from _package(services, "libnvidia-nscq", "nscq-version", "nscq-version", wanted)


def _package(services: Probe, prefix: str, differs: str, missing: str, wanted: str) -> Iterator[Finding]:
    # Development packages follow their own versions and run nowhere.
    installed = {
        name: str(answer.value)
        for name, answer in services.under("package.")
        if name.startswith(prefix) and not name.endswith("-dev")
    }
    if not installed:
        # Its unit may still be there, from another source: then only the version is not known.
        there = services[f"unit.{_FM_UNIT}.active"].error is None and missing == "fabric-manager-missing"
        subject = Subject("service", prefix)
        if there:
            yield unknown(differs, subject, "package version", Answer(error="no such package"), f"driver {wanted}")
        elif services[f"unit.{_FM_UNIT}.active"].error != ABSENT or missing != "fabric-manager-missing":
            yield finding(missing, subject, "not installed", f"driver {wanted}")
    for name, version in installed.items():
        if upstream(version) != wanted:
            yield finding(differs, Subject("service", name), f"{name} {version}", f"{wanted}, as the driver")


def _persistenced(case: Case) -> Iterator[Finding]:
    if not case.wanted.host.persistenced:
        return
    active = case.readings.services[f"unit.{_PERSISTENCED_UNIT}.active"]
    subject = Subject("service", _PERSISTENCED_UNIT)
    if active.error is not None and active.error != ABSENT:
        yield unknown("persistenced-stopped", subject, "state of the unit", active, "active")
    elif active.value != "active":
        yield finding("persistenced-stopped", subject, active.value or "no such unit", "active")
