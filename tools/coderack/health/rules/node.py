"""The machine around the GPUs: clock, kernel log, IOMMU, access control."""

from collections.abc import Iterator

from coderack.health.findings import Finding, Subject
from coderack.health.rules.common import Case, finding, unknown

_MAX_OFFSET = 0.5  # s; tokens and logs stand that much


def judge(case: Case) -> Iterator[Finding]:
    yield from _clock(case)
    yield from _log(case)
    if case.wanted.host.platform == "bare-metal" and case.wanted.gpus.count:
        yield from _iommu(case)
        yield from _access_control(case)


def _clock(case: Case) -> Iterator[Finding]:
    services = case.readings.services
    if case.wanted.host.clock == "none" or not services.complete:
        return
    leap, offset = services["clock.leap"], services.number("clock.offset")
    if leap.error is not None:
        yield unknown("clock-unknown", case.node, "chronyc tracking", leap, "synchronised")
    elif leap.value == "Not synchronised":
        yield finding("clock-unsynchronised", case.node, "chrony: not synchronised", "synchronised")
    elif offset is not None and abs(offset) > _MAX_OFFSET:
        yield finding("clock-unsynchronised", case.node, f"{offset:.3f} s off", f"within {_MAX_OFFSET} s")


def _log(case: Case) -> Iterator[Finding]:
    log, subject = case.readings.log, Subject("log", "kernel log")
    if not log.complete:
        return
    if log["last"].error is not None:
        yield unknown("kernel-log-unreadable", subject, "kernel log", log["last"], "readable")
    elif lost := log.integer("gap"):
        yield finding("kernel-log-gap", subject, f"{lost} lines lost since the last pass", "none")


def _iommu(case: Case) -> Iterator[Finding]:
    if case.readings.host["iommu.translating"].value == 1:
        groups = case.readings.host["iommu.groups"]
        yield finding("iommu", case.node, f"{groups} IOMMU groups, some translating (type DMA)", "none, or identity")


def _access_control(case: Case) -> Iterator[Finding]:
    """Only bridges above a GPU or a network device of the fabric matter."""
    pci, above = case.readings.pci, set()
    for key, answer in [*pci.answers.items(), *case.readings.network.answers.items()]:
        if (key.startswith("path.") or key.endswith(".path")) and answer.error is None:
            above.update(str(answer.value).split("/")[1:-1])
    bridges = {bus: pci[f"bridge.{bus}.acs"] for bus in pci.between("bridge.", ".acs") if bus in above}
    on = [bus for bus, answer in bridges.items() if answer.value == 1]
    unread = [bus for bus, answer in bridges.items() if answer.error is not None]
    if on:
        yield finding("acs", case.node, f"redirects on {len(on)} bridges: {', '.join(on[:4])}", "off on all")
    elif unread:
        first = bridges[unread[0]]
        yield unknown("acs-unknown", case.node, f"{len(unread)} bridges", first, "readable")
