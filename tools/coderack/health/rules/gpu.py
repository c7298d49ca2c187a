"""One GPU by itself: identity, modes, memory, heat, power, clocks, PCIe."""

from collections import Counter
from collections.abc import Iterator

from coderack.health.findings import Action, Finding, Severity, Subject
from coderack.health.readings import NOT_SUPPORTED, Probe
from coderack.health.rules.common import Case, expect, finding, unknown
from coderack.health.xid import RECOVERY

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_ON = {0: "off", 1: "on"}
# Bits of nvmlDeviceGetCurrentClocksEventReasons. 0x1 idle and 0x4 power cap are normal.
_REASONS = {
    0x20: ("thermal-slowdown", "software thermal slowdown"),
    0x40: ("thermal-slowdown", "hardware thermal slowdown"),
    0x80: ("power-brake", "hardware power brake"),
}
_HARDWARE_SLOWDOWN = 0x8
_EXPLAINED = 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80  # reasons for a low clock
_THROTTLED = {
    "throttled_ns.software_thermal": ("thermal-slowdown", "software thermal slowdown"),
    "throttled_ns.hardware_thermal": ("thermal-slowdown", "hardware thermal slowdown"),
    "throttled_ns.power_brake": ("power-brake", "hardware power brake"),
}


def judge(case: Case) -> Iterator[Finding]:
    for _, probe, gpu in case.judged_gpus():
        for rule in (_identity, _modes, _memory, _recovery, _heat, _clocks, _pcie):
            yield from rule(case, probe, gpu)
    yield from _odd_ones(case)


def _identity(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    wanted = case.wanted.gpus
    yield from expect("gpu-model", gpu, "model", probe["name"], wanted.model)
    if probe["name"].value == wanted.model:  # else it is said already
        yield from expect("gpu-model", gpu, "PCI device id", probe["device_id"], wanted.device_id)
    total = probe["memory.total"]
    if wanted.memory_mib is None:
        return
    if total.error is not None:
        yield unknown("gpu-memory-size", gpu, "memory", total, f"{wanted.memory_mib} MiB")
    elif (mib := int(probe.number("memory.total") or 0) >> 20) != wanted.memory_mib:
        yield finding("gpu-memory-size", gpu, f"memory {mib} MiB", f"{wanted.memory_mib} MiB")


def _modes(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    wanted = case.wanted.gpus
    for kind, key, value in (("ecc-mode", "ecc", wanted.ecc), ("mig-mode", "mig", wanted.mig)):
        name = key.upper()
        # A GPU without MIG says so, which is as good as off.
        if key == "mig" and not value and probe["mig.mode"].error == NOT_SUPPORTED:
            continue
        found = list(expect(kind, gpu, name, probe[f"{key}.mode"], int(value), lambda x: _ON.get(x, x)))
        yield from found
        if not found:
            yield from expect(
                kind, gpu, f"{name} after the next reset", probe[f"{key}.pending"], int(value), lambda x: _ON.get(x, x)
            )
    if wanted.persistence:
        yield from expect("persistence-mode", gpu, "persistence", probe["persistence_mode"], 1, lambda x: _ON.get(x, x))
    yield from expect("compute-mode", gpu, "compute mode", probe["compute_mode"], 0, lambda x: _COMPUTE_MODES.get(x, x))


def _memory(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    yield from _zero("ecc-uncorrectable", gpu, "uncorrectable errors", probe, "ecc.uncorrected.volatile")
    yield from _zero("row-remap-pending", gpu, "rows to be remapped: flag", probe, "remapped.pending")
    yield from _zero("row-remap-failed", gpu, "remapping failure: flag", probe, "remapped.failure")
    # Not all drivers and boards have the following; where they are, they count.
    yield from _zero("row-remap-banks", gpu, "memory banks without spare rows:", probe, "banks.none", optional=True)
    yield from _zero("channel-repair-pending", gpu, "channel repair pending: flag", probe, "repair.channel", True)
    yield from _zero("tpc-repair-pending", gpu, "TPC repair pending: flag", probe, "repair.tpc", True)
    yield from _zero("sram-threshold", gpu, "SRAM threshold exceeded: flag", probe, "sram.threshold_exceeded", True)
    limit = case.wanted.limits.sram_uncorrectable
    if (errors := probe.number("sram.uncorrectable")) is not None and errors > limit:
        yield finding("sram-uncorrectable", gpu, f"{errors:.0f} uncorrectable SRAM errors", f"at most {limit}")
    yield from _storm(case, probe, gpu)
    key = f"{probe.text('uuid')}/remapped"
    if len(days := case.history.days_with_increase(key)) >= 2:
        seen = f"more remapped rows on {len(days)} days ({', '.join(days)})"
        yield finding("memory-dying", gpu, seen, "none on a second day")


def _storm(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    limit = case.wanted.limits.ecc_correctable_per_second
    rate = case.history.per_second(f"{probe.text('uuid')}/ecc.corrected", case.window)
    if rate is not None and rate >= limit:
        yield finding("ecc-correctable-storm", gpu, f"{rate:.0f} corrected errors/s", f"under {limit:.0f}/s")


def _zero(kind: str, gpu: Subject, what: str, probe: Probe, key: str, optional: bool = False) -> Iterator[Finding]:
    answer = probe[key]
    if answer.error is not None:
        if not optional:
            yield unknown(kind, gpu, what, answer, 0)
    elif answer.value:
        yield finding(kind, gpu, f"{what} {answer.value}", 0)


def _recovery(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    value = probe.integer("recovery_action")
    if not value:
        # Older drivers do not have the field; then Xids and our table decide.
        return
    name, action = RECOVERY.get(value, (f"unknown action {value}", Action.DRAIN))
    yield finding("recovery-action", gpu, f"recovery action: {name}", "none", action=action)


def _heat(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    reasons = probe["clock_reasons"]
    now: dict[str, str] = {}
    if reasons.error is not None:
        yield unknown("hardware-slowdown", gpu, "clock event reasons", reasons, "readable")
    else:
        bits = probe.integer("clock_reasons") or 0
        now = {kind: name for bit, (kind, name) in _REASONS.items() if bits & bit}
        for kind, name in now.items():
            yield finding(kind, gpu, f"{name} is active", "not active")
        if bits & _HARDWARE_SLOWDOWN and not now:
            yield finding("hardware-slowdown", gpu, "hardware slowdown is active", "not active")
    yield from _throttled(case, probe, gpu, now)
    yield from _margin(case, probe, gpu)


def _throttled(case: Case, probe: Probe, gpu: Subject, now: dict[str, str]) -> Iterator[Finding]:
    """By the time counters: what happened between two passes."""
    limit = case.wanted.limits.throttled_share
    for key, (kind, name) in _THROTTLED.items():
        if kind in now:
            continue
        rate = case.history.per_second(f"{probe.text('uuid')}/{key}", case.window)
        if rate is not None and rate / 1e9 > limit:
            seen = f"{name} during {rate / 1e9:.0%} of the time since the passes before"
            yield finding(kind, gpu, seen, f"at most {limit:.0%}")


def _margin(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    margin, limits = probe.integer("thermal_margin"), case.wanted.limits
    if margin is None:
        return  # drivers before 560 have no such call; slowdown is seen by its reason
    if margin <= limits.thermal_margin_critical:
        seen = f"{margin} °C, at or beyond the slowdown limit"
        yield finding("thermal-margin", gpu, seen, "above 0 °C", Severity.CRITICAL)
    elif margin <= limits.thermal_margin_warning:
        yield finding("thermal-margin", gpu, f"{margin} °C to the limit", f"above {limits.thermal_margin_warning} °C")


def _clocks(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    wanted = case.wanted.gpus
    watts = None if wanted.power_limit_watts is None else wanted.power_limit_watts * 1000
    yield from expect("power-limit", gpu, "power limit", probe["power.limit"], watts, lambda x: f"{x / 1000:.0f} W")
    for name, mhz in (("sm", wanted.max_sm_mhz), ("memory", wanted.max_memory_mhz)):
        yield from expect("clock-limit", gpu, f"highest {name} clock", probe[f"clock.{name}.max"], mhz, _mhz)
        now, default = probe.number(f"clock.{name}.application"), probe.number(f"clock.{name}.default")
        if now is not None and default is not None and now < default:
            yield finding("application-clock", gpu, f"{name} application clock {_mhz(now)}", _mhz(default))
    yield from _stuck(probe, gpu)


def _stuck(probe: Probe, gpu: Subject) -> Iterator[Finding]:
    busy, clock, highest = probe.number("utilization"), probe.number("clock.sm"), probe.number("clock.sm.max")
    reasons = probe.integer("clock_reasons")
    if busy is None or clock is None or not highest or reasons is None or reasons & (_EXPLAINED | 1):
        return
    if busy >= 90 and clock < highest / 2:
        yield finding("clock-stuck", gpu, f"{clock:.0f} MHz at {busy:.0f} % load", f"over {highest / 2:.0f} MHz")


def _mhz(value: float) -> str:
    return f"{value:.0f} MHz"


def _pcie(case: Case, probe: Probe, gpu: Subject) -> Iterator[Finding]:
    wanted, limits = case.wanted.pcie, case.wanted.limits
    yield from expect("pcie-width", gpu, "PCIe width", probe["pcie.width"], wanted.width, lambda x: f"x{x}")
    found = list(
        expect("pcie-generation", gpu, "highest PCIe generation", probe["pcie.generation.max"], wanted.generation)
    )
    yield from found
    # An idle GPU may lower its link; in P0 or under load it does not.
    awake = probe["pstate"].value == 0 or (probe.number("utilization") or 0) > 0
    if awake and not found:
        yield from expect("pcie-generation", gpu, "PCIe generation", probe["pcie.generation"], wanted.generation)
    uuid, lanes = probe.text("uuid"), wanted.width or 16
    rate = case.history.per_second(f"{uuid}/pcie.replay", case.window)
    budget = limits.pcie_replay_per_minute_and_lane * lanes
    if rate is not None and rate * 60 > budget:
        yield finding("pcie-replay", gpu, f"{rate * 60:.0f} replays/min", f"at most {budget:.0f}/min")
    fatal = case.history.increase(f"{uuid}/pcie.fatal", case.window)
    if fatal is not None and fatal[0] > 0:
        yield finding("pcie-fatal", gpu, f"{fatal[0]:.0f} fatal errors in {fatal[1]:.0f} s", 0)


def _odd_ones(case: Case) -> Iterator[Finding]:
    """The GPU whose VBIOS is not that of most; with two kinds in equal numbers all of the rarer spelling."""
    versions = {index: probe.text("vbios") for index, probe, _ in case.judged_gpus() if probe.text("vbios")}
    counts = Counter(versions.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for index, version in versions.items():
        if version != usual:
            yield finding("gpu-vbios-differs", case.gpu(index), f"VBIOS {version}", f"{usual}, as on the others")
