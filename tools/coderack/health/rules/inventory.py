"""Do the probes answer, and are all GPUs there? By NVML and by the PCI bus, since NVML alone hides what it lost."""

from collections.abc import Iterator

from coderack.health.findings import Finding, Severity, Subject
from coderack.health.readings import CRASHED, HUNG, SKIPPED, Probe
from coderack.health.rules.common import Case, finding, gone, unknown

_NVML_ERRORS = {
    "BINDING_NOT_INSTALLED": "nvml-binding-missing",
    "BINDING_TOO_OLD": "nvml-binding-missing",
    "LIBRARY_NOT_FOUND": "nvml-library-missing",
    "DRIVER_NOT_LOADED": "driver-not-loaded",
    "LIB_RM_VERSION_MISMATCH": "driver-library-mismatch",
}
_HANDLE_ERRORS = {
    "GPU_IS_LOST": "gpu-lost",
    "RESET_REQUIRED": "gpu-reset-required",
    "CORRUPTED_INFOROM": "gpu-inforom-corrupted",
}


def judge(case: Case) -> Iterator[Finding]:
    yield from _probes(case)
    if case.wanted.gpus.count == 0:
        yield from _none_wanted(case)
        return
    yield from _nvml(case)
    yield from _count(case)
    yield from _bus(case)
    yield from _handles(case)


def _probes(case: Case) -> Iterator[Finding]:
    for index, probe in enumerate(case.readings.gpus):
        yield from _probe(case, probe, case.gpu(index))
    for probe in case.readings.probes[len(case.readings.gpus) :]:
        yield from _probe(case, probe, Subject("probe", f"probe {probe.name}"))


def _probe(case: Case, probe: Probe, subject: Subject) -> Iterator[Finding]:
    last = case.history.good.get(probe.name)
    good = "never before" if last is None else f"last {max(0, case.readings.moment.wall - last):.0f} s ago"
    wanted = f"an answer ({good})"
    if probe.outcome == HUNG:
        yield finding("probe-hung", subject, f"no answer after {probe.seconds:.1f} s, at: {probe.at}", wanted)
    elif probe.outcome == SKIPPED and probe.pid:
        since = case.readings.moment.wall - float(probe.detail or 0)
        seen = f"process {probe.pid} hangs for {since:.0f} s, at: {probe.at}; not started again while it lives"
        yield finding("probe-hung", subject, seen, wanted)
    elif probe.outcome == CRASHED:
        yield finding("probe-crashed", subject, f"{probe.detail}, at: {probe.at}", wanted)


def _none_wanted(case: Case) -> Iterator[Finding]:
    if buses := case.readings.pci.between("gpu.", ".alive"):
        yield finding("gpu-unexpected", case.node, f"{len(buses)} GPUs on the PCI bus", "none")


def _nvml(case: Case) -> Iterator[Finding]:
    init = case.readings.driver["init"]
    if not case.readings.driver.complete or init.error is None:
        return
    kind = _NVML_ERRORS.get(init.error, "nvml-init-failed")
    yield finding(kind, case.node, f"nvmlInit: {init.error}", "NVML starts")


def _count(case: Case) -> Iterator[Finding]:
    driver, wanted = case.readings.driver, case.wanted.gpus.count
    if not driver.complete or driver["init"].error is not None:
        return
    count = driver.integer("count")
    if count is None:
        yield finding("gpu-count-unknown", case.node, f"device count: {driver['count']}", wanted)
    elif count > wanted:
        yield finding("gpu-unexpected", case.node, f"{count} GPUs", wanted)
    elif count < wanted:
        on_bus = len(case.readings.pci.between("gpu.", ".alive")) if case.readings.pci["bus"].error is None else None
        # Those that are on the bus and not with the driver have findings of their own.
        if on_bus is None or on_bus < wanted:
            seen = f"{count} GPUs with the driver, {'unknown' if on_bus is None else on_bus} on the PCI bus"
            yield finding("gpu-missing", case.node, seen, wanted)


def _bus(case: Case) -> Iterator[Finding]:
    pci = case.readings.pci
    if not pci.complete:
        return
    if pci["bus"].error is not None:
        yield unknown("pci-bus-unreadable", case.node, "/sys/bus/pci/devices", pci["bus"], "readable")
        return
    with_driver = {probe.text("bus_id") for probe in case.readings.gpus}
    silent = any(not probe.complete or probe["handle"].error not in (None, "INVALID_ARGUMENT")
                 for probe in case.readings.gpus)  # fmt: skip
    known = {value.partition(" ")[2]: value.partition(" ")[0] for value in case.history.gpus.values()}
    nvml = case.readings.driver.complete and case.readings.driver["init"].error is None
    on_bus = pci.between("gpu.", ".alive")
    # With NVML both counts are judged together, in _count.
    if not nvml and len(on_bus) < case.wanted.gpus.count:
        yield finding("gpu-missing", case.node, f"{len(on_bus)} GPUs on the PCI bus", case.wanted.gpus.count)
    for bus in on_bus:
        uuid = known.get(bus)
        subject = Subject("gpu", f"GPU at {bus}" + (f" ({uuid})" if uuid else ""), None, uuid, bus)
        alive = pci[f"gpu.{bus}.alive"]
        if alive.value == 0:
            yield finding("gpu-off-bus", subject, "PCI configuration reads as all ones", "it answers")
        elif alive.error is not None:
            yield unknown("gpu-off-bus", subject, "PCI configuration", alive, "it answers")
        # A GPU that hangs or is lost is one of these, and has its finding under its index.
        elif nvml and bus not in with_driver and not silent:
            yield finding("gpu-not-in-driver", subject, "on the PCI bus, not with the driver", "with the driver")


def _handles(case: Case) -> Iterator[Finding]:
    if case.readings.driver["init"].error is not None:
        return
    for index, probe in enumerate(case.readings.gpus):
        if not probe.complete:
            continue
        error = probe["handle"].error or gone(probe)
        # INVALID_ARGUMENT: there is no GPU of that index, which the count tells better.
        if error is None or error == "INVALID_ARGUMENT":
            continue
        kind = _HANDLE_ERRORS.get(error, "gpu-unreachable")
        during = "asking for it" if probe["handle"].error else "reading it"
        severity = None if kind in _HANDLE_ERRORS.values() else Severity.UNKNOWN
        yield finding(kind, case.gpu(index), f"{error} when {during}", "it answers", severity)
