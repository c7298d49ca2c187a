"""What the agents tell each other and remember, as plain data. Times are seconds of the owner's monotonic clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Where the group is, as its head sees it."""

    GATHERING = "gathering"  # the head's agent has just started and has not heard from every member yet: hands off
    STARTING = "starting"  # every member starts its unit for the same epoch; ends with the probe's `up`
    RUNNING = "running"
    STOPPING = "stopping"  # every member stops
    WAITING = "waiting"  # all that can be heard have stopped; for a silent member, or for the pause before a start
    STOPPED = "stopped"  # by an operator
    GIVEN_UP = "given_up"  # the budget is used up; everything stays stopped until `resume`


class Reason(StrEnum):
    """Why a group was stopped as one."""

    ENGINE_FAILED = "engine_failed"  # the unit failed: crash, signal, exit code
    ENGINE_EXITED = "engine_exited"  # the unit ended well, though nobody had ordered it: `systemctl stop` by hand
    RESTARTED_OUTSIDE = "restarted_outside"  # the unit runs, but the agent did not start this run of it
    NODE_REBOOTED = "node_rebooted"
    MEMBER_LOST = "member_lost"  # not heard for `lost_after`, or it stopped itself since it could not hear the head
    START_REFUSED = "start_refused"  # systemd would not start the unit
    NOT_READY = "not_ready"  # no `up` from the probe within `ready_timeout`
    PROBE_DOWN = "probe_down"  # the token probe gets no answer though the units run
    NOT_AS_ONE = "not_as_one"  # what runs when the head's agent starts was not started as one
    OPERATOR = "operator"


@dataclass(frozen=True)
class Unit:
    """What systemd says of the engine's unit."""

    active: str  # ActiveState
    sub: str = ""  # SubState
    result: str = ""  # Result
    invocation: str = ""  # InvocationID: another one for every start
    job: bool = False  # a start or stop is queued
    age: float | None = None  # seconds since it became active, None where it is not

    @property
    def stopped(self) -> bool:
        """No process is left and none is about to come."""
        return self.active in ("inactive", "failed") and not self.job

    @property
    def running(self) -> bool:
        return self.active == "active"


@dataclass(frozen=True)
class Started:
    """A member's note of the last epoch for which it started its unit. Written before the start, once per epoch."""

    epoch: int
    boot: str
    before: str  # the unit's invocation before the start: any other one is ours
    invocation: str = ""  # "" until it is seen
    failed: str = ""  # why there will be none


@dataclass(frozen=True)
class Record:
    """What a member keeps on disk."""

    # The highest epoch that is over for this member: it never starts for it, or an older one, again. -1: no notes, so
    # that even before the first epoch a member is stopped and says so.
    fence: int = -1
    started: Started | None = None

    @property
    def seen(self) -> int:
        return max(0, self.fence, self.started.epoch if self.started else 0)


@dataclass(frozen=True)
class Report:
    """A member's state, as it tells the head."""

    member: str
    boot: str
    record: Record
    unit: Unit | None  # None: systemd does not answer, or an order is being carried out


class Verb(StrEnum):
    HOLD = "hold"  # leave everything as it is
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True)
class Order:
    """What the head wants of a member."""

    verb: Verb
    epoch: int = 0
    adopt: str = ""  # RUN: take over this invocation instead of starting
    kill_after: float | None = None  # STOP: seconds until what still runs is killed; None leaves that to the unit


@dataclass(frozen=True)
class Cause:
    """Why the group last went down."""

    reason: Reason
    member: str
    text: str
    wall: float  # seconds since 1970, for people only


@dataclass(frozen=True)
class State:
    """The head's decisions; all of it is on disk before any of it is acted on."""

    epoch: int = 0
    phase: Phase = Phase.GATHERING
    since: float = 0.0  # when the phase began
    wanted: Verb = Verb.RUN  # the operator's wish: run or stop
    before: Phase | None = None  # GATHERING: the phase on disk, to go back to
    rebooted: bool = False  # GATHERING: the head's node has booted since
    adopted: Mapping[str, str] = field(default_factory=dict)  # invocations that were running when the epoch began
    orderly: bool = False  # STOPPING: the head first, so that it ends running requests while the others still compute
    counted: bool = False  # the next start comes out of the budget
    not_before: float = 0.0  # WAITING: no start until then
    failed_at: float | None = None  # when the first failure since the last RUNNING was noticed
    starts: tuple[float, ...] = ()  # the counted starts of the window
    cause: Cause | None = None
    counts: Mapping[str, int] = field(default_factory=dict)  # restarts by reason, ever
    recovery: float | None = None  # seconds from failure to RUNNING, last time


@dataclass(frozen=True)
class Heard:
    """The last report of a member. `known_at` is when systemd there last said something."""

    report: Report
    at: float
    known_at: float


class ProbeState(StrEnum):
    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    STARTING = "starting"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Probe:
    """What the token probe says. UNKNOWN also where its file is old, missing or not to be understood."""

    state: ProbeState = ProbeState.UNKNOWN
    since: float = 0.0  # when this agent first saw this state without a break
    updated: float = 0.0  # when this agent saw the last news
    why: str = "no file yet"
    # When the rank that is furthest behind last gave a token; None where the file does not tell.
    token_at: float | None = None


@dataclass(frozen=True)
class Settings:
    """Seconds, and the budget."""

    poll: float = 1.0
    lost_after: float = 20.0
    ready_timeout: float = 2700.0
    restarts: int = 3
    window: float = 14400.0
    backoff: float = 30.0
    backoff_max: float = 600.0
    kill_after: float = 10.0
    stop_timeout: float = 180.0
    adopt_within: float = 60.0
    probe_max_age: float = 30.0
    probe_down_for: float = 5.0

    @property
    def fresh(self) -> float:
        """A report older than this does not tell what a member does now."""
        return min(self.lost_after, 3 * self.poll)
