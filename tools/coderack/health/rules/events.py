"""Kernel log events of this boot: Xids, SXids and lines without a number, until they are over.

The driver's own wish beats our table: Xid 154 and NVML's recovery action (field 230).
"""

from collections.abc import Iterator

from coderack.health.findings import Action, Finding, Severity, Subject, stronger
from coderack.health.history import event_id
from coderack.health.readings import LogEvent
from coderack.health.rules.common import Case, finding
from coderack.health.xid import RECOVERY, Meaning, meaning, nvlink_registers, recovery_of_154

# Together on one GPU they are the memory dying, not single events: wtdcode/vllm-backport #62.
_MEMORY_XIDS = {"48", "63", "94", "95", "140"}
_XID_ACTION_CHANGED = "154"


def judge(case: Case) -> Iterator[Finding]:
    asked = {probe.text("bus_id"): probe.integer("recovery_action") for _, probe, _ in case.judged_gpus()}
    events = list(case.history.events.values())
    for event in events:
        if event.kind == "xid" and event.code == _XID_ACTION_CHANGED:
            yield from _changed(case, event, asked)
        elif (what := _current(case, event)) is not None:
            yield _event(case, event, what, asked.get(event.device))
    yield from _dying_memory(case, events)


def _current(case: Case, event: LogEvent) -> Meaning | None:
    what = meaning(event.kind, event.code, event.fatal)
    return what if case.readings.moment.wall - event.last <= what.keep else None


def _event(case: Case, event: LogEvent, what: Meaning, asked: int | None) -> Finding:
    severity, action, remedy = what.severity, what.action, what.remedy
    name = what.name
    if event.kind == "xid" and event.code == "74" and (decoded := nvlink_registers(event.text)):
        severity, action, text = decoded
        name = f"{name}; {text}"
    if what.repeated and event.count >= what.repeated:
        severity, action = Severity.CRITICAL, stronger(action, Action.DRAIN)
        name = f"{name}, repeated"
    if event.kind != "sxid" and asked is not None and severity != Severity.INFO:
        severity, action, name = _as_asked(severity, action, name, asked)
    return Finding(
        id=event_id(event),
        severity=severity,
        subject=_subject(case, event),
        seen=_seen(case, event, name),
        wanted="no such event",
        impact=what.impact,
        action=action,
        remedy=remedy,
        source=what.source,
        runbook=f"coderack health explain {event_id(event)}",
    )


def _as_asked(severity: Severity, action: Action, name: str, asked: int) -> tuple[Severity, Action, str]:
    """What the driver asks for now. That it asks for nothing takes back a reset, never a restart or a replacement."""
    if asked:
        text, wish = RECOVERY.get(asked, (f"action {asked}", Action.DRAIN))
        return Severity.CRITICAL, wish, f"{name}; the driver asks for: {text}"
    if action == Action.RESET and severity == Severity.CRITICAL:
        return Severity.WARNING, Action.WATCH, f"{name}; the driver asks for no recovery now"
    return severity, action, name


def _changed(case: Case, event: LogEvent, asked: dict[str | None, int | None]) -> Iterator[Finding]:
    """Xid 154 by its own text, unless the GPU answers what it wants now."""
    if asked.get(event.device) is not None:
        return
    value = recovery_of_154(event.text)
    if value == 0:
        return
    text, action = RECOVERY.get(value, ("unknown", Action.DRAIN)) if value is not None else ("unreadable", Action.DRAIN)
    what = Meaning(
        f"the driver asks for: {text}", Severity.CRITICAL, action, "the engine on this GPU dies, or has died",
        "do what it asks for", "NVIDIA Xid catalogue, Xid 154", float("inf"),
    )  # fmt: skip
    yield _event(case, event, what, None)


def _dying_memory(case: Case, events: list[LogEvent]) -> Iterator[Finding]:
    rounds: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    for event in events:
        if event.kind == "xid" and event.code in _MEMORY_XIDS:
            rounds[event.device] = max(rounds.get(event.device, 0), event.count)
            kinds.setdefault(event.device, set()).add(event.code)
    for device, codes in kinds.items():
        # Remapping after an uncorrectable error, twice: the region goes on failing.
        if "63" in codes and len(codes) > 1 and rounds[device] >= 2:
            subject = _device(case, device)
            seen = f"Xids {', '.join(sorted(codes, key=int))} up to {rounds[device]} times in this boot"
            yield finding("memory-dying", subject, seen, "one such round at most")


def _seen(case: Case, event: LogEvent, name: str) -> str:
    times = f"{event.count} times, last" if event.count > 1 else "once,"
    ago = max(0.0, case.readings.moment.wall - event.last)
    line = " ".join(event.text.split())
    return f"{name}: {times} {_ago(ago)} ago: {line[:160]}"


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _subject(case: Case, event: LogEvent) -> Subject:
    if event.kind == "sxid":
        return Subject("switch", f"NVSwitch at {event.device}", bus_id=event.device)
    if event.device:
        return _device(case, event.device)
    return Subject("node", case.readings.node)


def _device(case: Case, bus: str) -> Subject:
    for index, probe in enumerate(case.readings.gpus):
        if probe.text("bus_id") == bus or case.gpu(index).bus_id == bus:
            return case.gpu(index)
    known = {value.partition(" ")[2]: (index, value.partition(" ")[0]) for index, value in case.history.gpus.items()}
    if bus in known:
        index_text, uuid = known[bus]
        return Subject("gpu", f"GPU {index_text} ({uuid}, {bus})", int(index_text), uuid, bus)
    return Subject("device", f"device at {bus}", bus_id=bus)
