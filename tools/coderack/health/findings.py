"""Findings: what is wrong, how bad it is for serving, and what to do."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    CRITICAL = "critical"  # engines die, hang, or must not be started
    WARNING = "warning"  # works now; slower, or at risk
    UNKNOWN = "unknown"  # could not be found out, which is never healthy
    INFO = "info"  # worth knowing; changes no verdict


class Action(StrEnum):
    NONE = "none"
    WATCH = "watch"
    RESET = "reset"  # drain, then reset the GPU
    REBOOT = "reboot"  # drain, then restart the machine
    DRAIN = "drain"  # stop new traffic, then do what the finding's remedy says
    REPLACE = "replace"  # drain, then have the part or the instance replaced


# Strongest last: where two sources name an action, the stronger one is taken.
STRENGTH = (Action.NONE, Action.WATCH, Action.DRAIN, Action.RESET, Action.REBOOT, Action.REPLACE)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about. A GPU is always named by index, UUID and bus id, as far as they are known."""

    kind: str  # node, gpu, link, pair, switch, hca, service, log
    name: str
    gpu: int | None = None
    uuid: str | None = None
    bus_id: str | None = None
    link: int | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def key(self) -> str:
        """The same after a restart, and when indexes moved because another GPU was lost."""
        identity = self.uuid or self.bus_id or self.name
        return f"{self.kind}:{identity}" if self.link is None else f"{self.kind}:{identity}:{self.link}"


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    severity: Severity
    subject: Subject
    seen: str
    wanted: str
    impact: str
    action: Action
    remedy: str
    source: str
    runbook: str

    @property
    def key(self) -> str:
        return f"{self.id}|{self.subject.key}"

    def with_(self, **changes: Any) -> "Finding":
        return replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"subject": {**asdict(self.subject), "text": str(self.subject)}}


_ORDER = {Severity.CRITICAL: 0, Severity.UNKNOWN: 1, Severity.WARNING: 2, Severity.INFO: 3}


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first; within that by GPU and name, so that two passes can be compared by eye."""
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                _ORDER[finding.severity],
                -1 if finding.subject.gpu is None else finding.subject.gpu,
                finding.id,
                -1 if finding.subject.link is None else finding.subject.link,
                finding.subject.name,
            ),
        )
    )


def stronger(one: Action, other: Action) -> Action:
    return max(one, other, key=STRENGTH.index)
