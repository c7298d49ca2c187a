"""What earlier passes saw: counters for rates, how long something has been bad, kernel log events, hung probes.

Pure: a history is the fold of records, and `state.py` keeps the records. Rates use uptime within one boot, so that a
clock that is set back changes nothing. A counter seen for the first time, after a boot, or smaller than before (driver
reload, GPU reset) gives a baseline and no increase.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from coderack.health.processes import Hung
from coderack.health.readings import LogEvent, Moment

MAX_SAMPLES = 60
MAX_DAYS = 14
MAX_EVENTS = 500


@dataclass(frozen=True, slots=True)
class Sample:
    """Increases between the pass before and this one; only counters that rose."""

    uptime: float
    boot: str
    span: float  # seconds since the pass before; 0 for the first of a boot
    moved: Mapping[str, float]


@dataclass
class History:
    moment: Moment | None = None
    counters: dict[str, float] = field(default_factory=dict)
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    days: dict[str, dict[str, float]] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)  # finding key -> consecutive passes
    events: dict[tuple[str, str, str], LogEvent] = field(default_factory=dict)
    log_position: int = -1
    hung: dict[str, Hung] = field(default_factory=dict)
    good: dict[str, float] = field(default_factory=dict)  # probe -> wall clock of its last complete answer
    gpus: dict[str, str] = field(default_factory=dict)  # bus id -> UUID, as last seen
    passes: int = 0  # of this boot

    # What a pass adds -------------------------------------------------------------------------------------------------

    def advance(self, record: Mapping[str, Any]) -> None:
        """Take one record of any kind; an unknown kind is a newer version's and is left alone."""
        match record.get("k"):
            case "base":
                self._base(record)
            case "sample":
                self.samples.append(Sample(record["up"], record["boot"], record["span"], record["moved"]))
            case "day":
                self.days[record["day"]] = dict(record["moved"])
            case "event":
                self._event(LogEvent(**record["event"]))
            case "run":
                self._run(record)
            case "ack":
                self._acknowledge(record["id"])

    def _base(self, record: Mapping[str, Any]) -> None:
        self.moment = Moment(record["t"], record["up"], record["boot"])
        self.counters = dict(record["c"])
        self._small(record)
        self.passes = record["passes"]

    def _run(self, record: Mapping[str, Any]) -> None:
        now = Moment(record["t"], record["up"], record["boot"])
        span = 0.0
        if self.moment is not None and self.moment.boot == now.boot:
            span = max(0.0, now.uptime - self.moment.uptime)
        else:
            self._new_boot(now.boot)
        moved = {
            key: value - self.counters[key]
            for key, value in record["c"].items()
            if key in self.counters and value > self.counters[key]
        }
        self.counters.update(record["c"])
        self.samples.append(Sample(now.uptime, now.boot, span, moved))
        self._count_day(now.wall, moved)
        self.moment = now
        self.passes += 1
        self._small(record)

    def _small(self, record: Mapping[str, Any]) -> None:
        self.bad = dict(record["bad"])
        self.log_position = record["log"]
        self.hung = {name: Hung(*value) for name, value in record["hung"].items()}
        self.good = self.good | record["good"]
        self.gpus = self.gpus | record["gpus"]

    def _new_boot(self, boot: str) -> None:
        # Remapped rows are kept in the GPU itself, and grow while it is reset.
        self.counters = {key: value for key, value in self.counters.items() if key.endswith("/remapped")}
        self.samples.clear()
        self.bad.clear()
        self.hung.clear()
        self.passes = 0
        self.log_position = -1
        self.events = {key: event for key, event in self.events.items() if event.boot == boot}

    def _count_day(self, wall: float, moved: Mapping[str, float]) -> None:
        if not moved:
            return
        today = self.days.setdefault(day_of(wall), {})
        for key, increase in moved.items():
            today[key] = today.get(key, 0) + increase
        for old in sorted(self.days)[:-MAX_DAYS]:
            del self.days[old]

    def _event(self, event: LogEvent) -> None:
        before = self.events.get(event.key)
        if before is not None and before.boot == event.boot:
            event = replace(
                event,
                first=min(before.first, event.first),
                last=max(before.last, event.last),
                count=before.count + event.count,
                fatal=event.fatal or before.fatal,
            )
        self.events.pop(event.key, None)
        self.events[event.key] = event
        while len(self.events) > MAX_EVENTS:
            del self.events[min(self.events, key=lambda key: self.events[key].last)]

    def _acknowledge(self, code: str) -> None:
        """`xid-79` or a line's name; `all`."""
        self.events = {key: event for key, event in self.events.items() if code != "all" and event_id(event) != code}

    # What rules ask ---------------------------------------------------------------------------------------------------

    def increase(self, key: str, seconds: float) -> tuple[float, float] | None:
        """(increase, seconds it took) over the newest passes within `seconds`; None without an earlier pass.

        At least the newest pass counts, however long ago the one before was.
        """
        total = elapsed = 0.0
        newest = self.samples[-1] if self.samples else None
        if newest is None or newest.span <= 0:
            return None
        for sample in reversed(self.samples):
            if sample.span <= 0 or (sample is not newest and newest.uptime - sample.uptime >= seconds):
                break
            total += sample.moved.get(key, 0)
            elapsed += sample.span
        return total, elapsed

    def per_second(self, key: str, seconds: float) -> float | None:
        """Over at least a minute: two passes a second apart must not make one event a storm."""
        found = self.increase(key, seconds)
        return None if found is None else found[0] / max(found[1], 60.0)

    def windows_with_increase(self, key: str, windows: int) -> int:
        """In how many of the newest `windows` passes the counter rose."""
        return sum(1 for sample in list(self.samples)[-windows:] if sample.moved.get(key))

    def days_with_increase(self, key: str) -> list[str]:
        return sorted(day for day, moved in self.days.items() if moved.get(key))

    def increase_today(self, key: str, wall: float) -> float:
        return self.days.get(day_of(wall), {}).get(key, 0)

    # What is kept -----------------------------------------------------------------------------------------------------

    def records(self) -> list[dict[str, Any]]:
        """The fewest records that fold to this history, each of its own: a torn one costs no other."""
        if self.moment is None:
            return []
        return [
            self._base_record(),
            *({"k": "sample", "up": s.uptime, "boot": s.boot, "span": s.span, "moved": dict(s.moved)}
              for s in self.samples),
            *({"k": "day", "day": day, "moved": moved} for day, moved in sorted(self.days.items())),
            *(event_record(event) for event in self.events.values()),
        ]  # fmt: skip

    def _base_record(self) -> dict[str, Any]:
        assert self.moment is not None  # noqa: S101  (the caller looked)
        return {
            "k": "base",
            "t": self.moment.wall,
            "up": self.moment.uptime,
            "boot": self.moment.boot,
            "c": self.counters,
            "passes": self.passes,
            **self.small(),
        }

    def small(self) -> dict[str, Any]:
        return {
            "bad": self.bad,
            "log": self.log_position,
            "hung": {name: [h.pid, h.started, h.since, h.at] for name, h in self.hung.items()},
            "good": self.good,
            "gpus": self.gpus,
        }


def run_record(now: Moment, counters: Mapping[str, float], history: History) -> dict[str, Any]:
    """The record of a pass, with those counters only that changed since the pass before."""
    same_boot = history.moment is not None and history.moment.boot == now.boot
    changed = {key: value for key, value in counters.items() if not same_boot or history.counters.get(key) != value}
    return {"k": "run", "t": now.wall, "up": now.uptime, "boot": now.boot, "c": changed, **history.small()}


def event_record(event: LogEvent) -> dict[str, Any]:
    return {"k": "event", "event": {name: getattr(event, name) for name in LogEvent.__slots__}}


def merged(events: Iterable[LogEvent]) -> list[LogEvent]:
    """Alike events as one: a storm of ten thousand lines is one record."""
    scratch = History()
    for event in events:
        scratch._event(event)
    return list(scratch.events.values())


def event_id(event: LogEvent) -> str:
    return event.code if event.kind == "log" else f"{event.kind}-{event.code}"


def day_of(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d")
