"""One pass over this node: run the probes, remember, judge."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from coderack.health import processes, state
from coderack.health.findings import Finding, Severity, ordered
from coderack.health.history import History, event_record, merged, run_record
from coderack.health.judge import counters, judge
from coderack.health.probes import files, host, kernel_log, nvml, pci, rdma, services
from coderack.health.processes import Step
from coderack.health.readings import ANSWERED, SKIPPED, Answer, LogEvent, Moment, NodeReadings, Probe
from coderack.health.report import Report, facts
from coderack.health.rules.common import Case, finding
from coderack.health.rules.network import fabric_devices
from coderack.spec.gpu import GpuProfile

STATE_DIR = Path("/var/lib/coderack/health")
DEADLINE = 20.0  # s
# Kept from the deadline for judging, remembering and printing.
_RESERVE = 0.3
_CLOCK_SLACK = 5.0  # s that the clock may go back without a finding: NTP's own steps


@dataclass(frozen=True)
class Settings:
    """Where to look. The roots are the machine's own unless somebody looks at another machine's files."""

    profile: GpuProfile
    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    state_dir: Path = STATE_DIR
    nccl_in: tuple[Path, ...] = ()
    deadline: float = DEADLINE
    node: str = ""


@dataclass(frozen=True)
class Pass:
    """A report, and what it was made from."""

    report: Report
    readings: NodeReadings
    history: History


def examine(settings: Settings) -> Pass:
    """Ends within the deadline whatever hangs. Never raises for anything a machine can do wrong."""
    begun = time.monotonic()
    name = settings.node or socket.gethostname()
    now = moment(settings.proc)
    with state.locked(settings.state_dir) as alone:
        loaded = state.load(settings.state_dir)
        history = loaded.history
        problems = _history_problems(loaded, now, settings, alone)
        earlier_hung = history.hung if history.moment is None or history.moment.boot == now.boot else {}
        results, hung = processes.run(
            probes(settings, history if history.moment and history.moment.boot == now.boot else History()),
            begun + max(0.2, settings.deadline - _RESERVE),
            earlier_hung,
            now.wall,
        )
        readings = assemble(name, now, results, settings.profile)
        record, events = _remember(history, readings, hung)
        case = Case(readings, settings.profile, history)
        findings = [*judge(case), *problems]
        _conclude(history, readings, findings)
        if alone:
            records = [{**record, **history.small()}, *events]
            findings += _save(settings, records, history, rewrite=bool(loaded.damaged))
    report = Report(
        node=name,
        profile=settings.profile.name,
        time=now.wall,
        seconds=time.monotonic() - begun,
        findings=ordered(findings),
        facts=facts(readings, fabric_devices(case)),
        probes=readings.probes,
    )
    return Pass(report, readings, history)


def moment(proc: Path) -> Moment:
    uptime = files.text(proc / "uptime").value
    boot = files.text(proc / "sys/kernel/random/boot_id").value
    seconds = float(str(uptime).split()[0]) if uptime else time.clock_gettime(time.CLOCK_BOOTTIME)
    return Moment(time.time(), seconds, str(boot or "unknown"))


def probes(settings: Settings, history: History) -> dict[str, processes.Read]:
    """Name -> function. One per GPU that should be there or is on the bus, so that one that hangs hides no other."""
    wanted = settings.profile
    seconds = max(0.5, settings.deadline - 1)
    found: dict[str, processes.Read] = {}
    gpus = wanted.gpus.count
    if gpus:
        nvml.prepare()
        found |= {f"gpu{index}": partial(nvml.read_gpu, index) for index in range(gpus)}
        found["driver"] = nvml.read_driver
        if wanted.nvlink.peer_to_peer:
            found["pairs"] = nvml.read_pairs
    return found | {
        "pci": partial(pci.read, settings.sysfs),
        "network": partial(rdma.read, settings.sysfs) if wanted.network.kind != "none" else _nothing,
        "host": partial(host.read, settings.sysfs, settings.proc, settings.nccl_in),
        "services": partial(services.read, seconds, wanted.host.clock == "chrony", bool(gpus)),
        "log": partial(kernel_log.read, settings.kmsg, history.log_position),
    }


def _nothing(_step: Step) -> Mapping[str, Answer]:
    return {}


def assemble(name: str, now: Moment, results: Mapping[str, Probe], wanted: GpuProfile) -> NodeReadings:
    """The readings of a pass from its probes, with the kernel log's events as such."""
    gpus = tuple(results[f"gpu{index}"] for index in range(wanted.gpus.count))
    readings = NodeReadings(
        name,
        now,
        gpus,
        driver=results.get("driver", Probe("driver", SKIPPED)),
        pairs=results.get("pairs", Probe("pairs", SKIPPED)),
        pci=results["pci"],
        network=results["network"],
        host=results["host"],
        services=results["services"],
        log=results["log"],
    )
    return replace(readings, events=tuple(merged(_events(readings.log, now))))


def _events(log: Probe, now: Moment) -> list[LogEvent]:
    found = []
    for number in log.names("event."):
        key = f"event.{number}"
        age = max(0.0, now.uptime - (log.number(f"{key}.microseconds") or 0) / 1e6)
        fatal = log.integer(f"{key}.fatal")
        found.append(
            LogEvent(
                kind=log.text(f"{key}.kind") or "",
                code=log.text(f"{key}.code") or "",
                device=log.text(f"{key}.device") or "",
                text=log.text(f"{key}.text") or "",
                first=now.wall - age,
                last=now.wall - age,
                boot=now.boot,
                fatal=None if fatal is None else bool(fatal),
            )
        )
    return found


def _remember(
    history: History, readings: NodeReadings, hung: Mapping[str, processes.Hung]
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Add the pass to the history; returns the records that say the same."""
    record = run_record(readings.moment, counters(readings), history)
    record["hung"] = {name: [h.pid, h.started, h.since, h.at] for name, h in hung.items()}
    same_boot = history.moment is not None and history.moment.boot == readings.moment.boot
    position = readings.log.integer("last")
    record["log"] = position if position is not None else (history.log_position if same_boot else -1)
    if not same_boot:
        record["bad"] = {}
    history.advance(record)
    events = [event_record(event) for event in readings.events]
    for event in events:
        history.advance(event)
    return record, events


def _conclude(history: History, readings: NodeReadings, findings: list[Finding]) -> None:
    """What the next pass compares with."""
    lasting = {one.key for one in findings if one.severity != Severity.INFO}
    history.bad = {key: history.bad.get(key, 0) + 1 for key in lasting}
    history.good = history.good | {p.name: readings.moment.wall for p in readings.probes if p.outcome == ANSWERED}
    for index, probe in enumerate(readings.gpus):
        if (uuid := probe.text("uuid")) and (bus := probe.text("bus_id")):
            history.gpus[str(index)] = f"{uuid} {bus}"


def _history_problems(loaded: state.Loaded, now: Moment, settings: Settings, alone: bool) -> list[Finding]:
    subject = Case(NodeReadings("history", now), settings.profile, loaded.history).node
    found = []
    if loaded.problem:
        found.append(finding("history-unreadable", subject, loaded.problem, "readable"))
    if loaded.damaged:
        seen = f"{loaded.damaged} records of {settings.state_dir / state.FILE} were torn"
        found.append(finding("history-damaged", subject, seen, "none"))
    before = loaded.history.moment
    if before is not None and before.wall - now.wall > _CLOCK_SLACK:
        seen = f"{before.wall - now.wall:.0f} s behind the last pass"
        found.append(finding("clock-jumped", subject, seen, "a clock that goes forward"))
    if not alone:
        found.append(finding("probe-busy", subject, "this pass was not remembered", "one pass at a time"))
    return found


def _save(settings: Settings, records: list[dict[str, object]], history: History, rewrite: bool) -> list[Finding]:
    try:
        state.append(settings.state_dir, records, history, rewrite)
    except OSError as error:
        subject = Case(NodeReadings("history", Moment(0, 0, "")), settings.profile, history).node
        seen = f"{settings.state_dir}: {error.strerror or error}"
        return [finding("history-not-kept", subject, seen, "writable")]
    return []


def acknowledge(settings: Settings, code: str) -> int:
    """Forget kernel log events of that id (`xid-79`, `gpu-off-bus`, `all`); returns how many. Raises OSError."""
    with state.locked(settings.state_dir) as alone:
        if not alone:
            raise OSError(11, f"another pass holds {settings.state_dir}; try again")
        history = state.load(settings.state_dir).history
        before = len(history.events)
        record = {"k": "ack", "id": code}
        history.advance(record)
        state.append(settings.state_dir, [record], history)
    return before - len(history.events)
