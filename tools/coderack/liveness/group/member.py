"""What a member does with its own unit: a pure function of what it was told and what it sees.

Three rules make the whole safe, whoever crashes when:

* a member starts its unit at most once per epoch, and notes that on disk before it does;
* once it has stopped an epoch (the fence), it never starts for that epoch or an older one again;
* it starts only for the epoch after its fence, so one whose notes were lost has to be stopped first.

So a member that reports "stopped, fence at 7" cannot run epoch 7 any more, however late an old order arrives.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from coderack.liveness.group.model import Order, Record, Settings, Started, Unit, Verb

# A start that systemd took has shown itself by then, unless a condition of the unit kept it from starting.
SETTLE_S = 10.0
# A stop that did not reach systemd is asked for again.
ASK_AGAIN_S = 15.0


class Action(StrEnum):
    START = "start"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True)
class Member:
    record: Record
    start_asked: float | None = None
    stop_asked: float | None = None
    stopping_since: float | None = None


@dataclass(frozen=True)
class Step:
    member: Member  # its record has to be on disk before the action
    action: Action | None = None
    line: str = ""  # for the journal


def step(
    settings: Settings, member: Member, unit: Unit | None, boot: str, order: Order, silent: float, now: float
) -> Step:
    """`silent` is for how many seconds the head has not been reached; 0 on the head itself."""
    if unit is None:
        return Step(member)
    member = _seen(member, unit, boot, now)
    if silent > settings.lost_after:
        # Without notes of a start there is none to end, and a fence would look like one that the head has ordered.
        epoch = member.record.started.epoch if member.record.started else member.record.fence
        alone = Order(Verb.STOP, epoch, kill_after=settings.kill_after)
        line = (
            f"the head has not been reached for {silent:.0f} s, and this node is of no use alone: stopping its engine"
        )
        return _stop(member, unit, alone, line, now)
    match order.verb:
        case Verb.STOP:
            return _stop(member, unit, order, "stopping the engine, as the head orders", now)
        case Verb.RUN:
            return _run(replace(member, stop_asked=None, stopping_since=None), unit, boot, order, now)
        case Verb.HOLD:
            return Step(member)


def refused(member: Member, text: str) -> Member:
    """The start that was noted did not happen."""
    started = member.record.started
    if started is None or started.invocation:
        return member
    return replace(member, record=replace(member.record, started=replace(started, failed=text)))


def _seen(member: Member, unit: Unit, boot: str, now: float) -> Member:
    """Complete the note of a start by what came of it."""
    started = member.record.started
    if started is None or started.invocation or started.failed or started.boot != boot:
        return member
    if unit.invocation and unit.invocation != started.before:
        return replace(member, record=replace(member.record, started=replace(started, invocation=unit.invocation)))
    if not unit.stopped:
        return member
    if member.start_asked is None:
        return refused(member, "the agent was restarted before it could see what came of the start")
    if now - member.start_asked > SETTLE_S:
        return refused(member, "systemd took the start, but the unit did not start (a condition of the unit?)")
    return member


def _stop(member: Member, unit: Unit, order: Order, line: str, now: float) -> Step:
    fenced = replace(member.record, fence=max(member.record.fence, order.epoch))
    if unit.stopped:
        return Step(replace(member, record=fenced, stop_asked=None, stopping_since=None))
    since = member.stopping_since if member.stopping_since is not None else now
    kill = order.kill_after is not None and now - since > order.kill_after
    member = replace(member, record=fenced, stopping_since=since)
    if member.stop_asked is None:
        return Step(replace(member, stop_asked=now), Action.STOP, line)
    if now - member.stop_asked > (min(ASK_AGAIN_S, order.kill_after or 0) if kill else ASK_AGAIN_S):
        word = f"the engine has not ended in {now - since:.0f} s: killing it" if kill else "asking for the stop again"
        return Step(replace(member, stop_asked=now), Action.KILL if kill else Action.STOP, word)
    return Step(member)


def _run(member: Member, unit: Unit, boot: str, order: Order, now: float) -> Step:
    if order.epoch <= member.record.seen:
        return Step(member)
    started = Started(order.epoch, boot, unit.invocation)
    if order.adopt:
        if unit.running and unit.invocation == order.adopt:
            started = replace(started, invocation=order.adopt)
            line = f"epoch {order.epoch}: taking over the engine that runs, without a restart"
            return Step(replace(member, record=replace(member.record, started=started)), None, line)
        started = replace(started, failed="the engine that was to be taken over runs no more")
        return Step(replace(member, record=replace(member.record, started=started)))
    if member.record.fence < order.epoch - 1:
        return Step(member)
    if not unit.stopped:
        started = replace(started, failed=f"the unit was {unit.active} already when it was to be started")
        return Step(replace(member, record=replace(member.record, started=started)))
    noted = replace(member, record=replace(member.record, started=started), start_asked=now)
    return Step(noted, Action.START, f"epoch {order.epoch}: starting the engine")
