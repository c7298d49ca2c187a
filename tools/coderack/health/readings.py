"""Readings: what the probes saw, as plain data that rules judge and tests write by hand.

A probe's answers are a flat map from a key such as `link.5.state` to an `Answer`: a value, or the error that was given
instead. An error is never turned into a value: rules must decide what not knowing means.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Value = int | float | str | bool | None

NOT_SUPPORTED = "NOT_SUPPORTED"
INVALID_ARGUMENT = "INVALID_ARGUMENT"
GPU_IS_LOST = "GPU_IS_LOST"
RESET_REQUIRED = "RESET_REQUIRED"
ABSENT = "ABSENT"  # the file, unit or GPU is not there


@dataclass(frozen=True, slots=True)
class Answer:
    """Exactly one of both is set; a value of None does not occur without an error."""

    value: Value = None
    error: str | None = None

    def __str__(self) -> str:
        return f"no value ({self.error})" if self.error else str(self.value)


MISSING = Answer(error="NOT_ASKED")

# How a probe ended. Only `answered` is complete.
ANSWERED = "answered"
HUNG = "hung"
CRASHED = "crashed"
SKIPPED = "skipped"  # an earlier probe of the same thing still hangs


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe's outcome. `at` is the step that was running when it hung or crashed."""

    name: str
    outcome: str = ANSWERED
    answers: Mapping[str, Answer] = field(default_factory=dict)
    at: str = ""
    detail: str = ""
    seconds: float = 0.0
    pid: int = 0

    @property
    def complete(self) -> bool:
        return self.outcome == ANSWERED

    def __getitem__(self, key: str) -> Answer:
        return self.answers.get(key, MISSING)

    def number(self, key: str) -> float | None:
        value = self[key].value
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def integer(self, key: str) -> int | None:
        value = self.number(key)
        return None if value is None else int(value)

    def text(self, key: str) -> str | None:
        value = self[key].value
        return None if value is None else str(value)

    def under(self, prefix: str) -> Iterator[tuple[str, Answer]]:
        """The answers whose key starts with `prefix`, without it."""
        return ((key[len(prefix) :], answer) for key, answer in self.answers.items() if key.startswith(prefix))

    def names(self, prefix: str) -> list[str]:
        """The first segments after `prefix`, in natural order: link 9 before link 10."""
        names = {rest.split(".", 1)[0] for rest, _ in self.under(prefix)}
        return sorted(names, key=_natural)

    def between(self, prefix: str, suffix: str) -> list[str]:
        """What stands between both in keys that have both; for names with dots in them, such as PCI bus ids."""
        return sorted(rest.removesuffix(suffix) for rest, _ in self.under(prefix) if rest.endswith(suffix))


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One line of the kernel log that means something, or several alike (`count`)."""

    kind: str  # xid, sxid, log
    code: str  # the number, or the name of the pattern
    device: str  # PCI bus id, or empty
    text: str
    first: float  # wall clock, s
    last: float
    boot: str
    count: int = 1
    fatal: bool | None = None  # what the line itself says (SXid)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.kind, self.code, self.device)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a pass was made. Rates use `uptime`, which no clock change moves."""

    wall: float
    uptime: float
    boot: str


@dataclass(frozen=True)
class NodeReadings:
    """Everything that one pass saw."""

    node: str
    moment: Moment
    gpus: tuple[Probe, ...] = ()  # by NVML index
    driver: Probe = Probe("driver", SKIPPED)  # NVML as a whole
    pairs: Probe = Probe("pairs", SKIPPED)  # peer to peer
    pci: Probe = Probe("pci", SKIPPED)
    network: Probe = Probe("network", SKIPPED)
    host: Probe = Probe("host", SKIPPED)
    services: Probe = Probe("services", SKIPPED)
    log: Probe = Probe("log", SKIPPED)
    events: tuple[LogEvent, ...] = ()  # new ones of this pass

    @property
    def probes(self) -> tuple[Probe, ...]:
        named = (self.driver, self.pairs, self.pci, self.network, self.host, self.services, self.log)
        return (*self.gpus, *named)


def bus_id(text: str) -> str:
    """`0000:1b:00.0` from any spelling: NVML's eight digits of domain, the kernel log's missing function, capitals."""
    text = text.strip().lower().removeprefix("pci:")
    parts = text.split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    if len(parts) != 3:
        return text
    domain = parts[0][-4:].rjust(4, "0")
    device = parts[2] if "." in parts[2] else f"{parts[2]}.0"
    return f"{domain}:{parts[1].rjust(2, '0')}:{device}"


def to_json(answers: Mapping[str, Answer]) -> dict[str, list[Any]]:
    return {key: [answer.value] if answer.error is None else [None, answer.error] for key, answer in answers.items()}


def from_json(data: Mapping[str, list[Any]]) -> dict[str, Answer]:
    return {key: Answer(item[0], item[1] if len(item) > 1 else None) for key, item in data.items()}


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdigit() else (1, 0, name)
