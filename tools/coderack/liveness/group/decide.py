"""What the head decides: a pure function of its state, the members' reports, the probe and the time.

GATHERING -> STARTING -> RUNNING; a failure in either leads over STOPPING and WAITING to STARTING with the next epoch,
or, when the budget is used up, to GIVEN_UP. No start is ordered before every member has said that it has stopped and
will never start for an older epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coderack.liveness.group.model import (
    Cause,
    Heard,
    Order,
    Phase,
    Probe,
    ProbeState,
    Reason,
    Report,
    Settings,
    State,
    Verb,
)

_DOWN = (Phase.STOPPING, Phase.WAITING, Phase.STOPPED)


@dataclass(frozen=True)
class View:
    """What the head sees. The first of `members` is the head itself."""

    members: tuple[str, ...]
    heard: Mapping[str, Heard]
    probe: Probe
    now: float
    wall: float

    def absent(self, member: str, since: float) -> float:
        """Seconds for which a member has told nothing of its unit, counted at most from `since`."""
        heard = self.heard.get(member)
        return self.now - max(heard.known_at if heard else since, since)

    def seen(self) -> int:
        """The highest epoch that any member knows."""
        return max((heard.report.record.seen for heard in self.heard.values()), default=0)


@dataclass(frozen=True)
class Decision:
    state: State
    lines: tuple[str, ...] = ()


def decide(settings: Settings, state: State, view: View) -> Decision:
    state = replace(state, starts=tuple(at for at in state.starts if view.now - at < settings.window))
    match state.phase:
        case Phase.GATHERING:
            return _gathering(settings, state, view)
        case Phase.STARTING | Phase.RUNNING:
            return _together(settings, state, view)
        case Phase.STOPPING | Phase.WAITING | Phase.STOPPED:
            return _down(settings, state, view)
        case Phase.GIVEN_UP:
            return Decision(_raised(state, view))


def orders(settings: Settings, state: State, view: View) -> dict[str, Order]:
    """What each member is to do now. Follows from the state alone, but for an orderly stop, with the head first."""
    match state.phase:
        case Phase.GATHERING:
            return dict.fromkeys(view.members, Order(Verb.HOLD))
        case Phase.STARTING | Phase.RUNNING:
            return {name: Order(Verb.RUN, state.epoch, state.adopted.get(name, "")) for name in view.members}
        case _:
            stop = Order(Verb.STOP, state.epoch, kill_after=None if state.orderly else settings.kill_after)
            told = dict.fromkeys(view.members, stop)
            head = view.members[0]
            late = view.now - state.since > settings.stop_timeout
            if state.phase is Phase.STOPPING and state.orderly and not late and not _is_down(view, head, state.epoch):
                told = {name: stop if name == head else Order(Verb.HOLD) for name in view.members}
            return told


def loaded(state: State | None, now: float) -> State:
    """The state that an agent begins with, from what it finds on disk."""
    if state is None:
        return State(since=now)
    before = state.before if state.phase is Phase.GATHERING else state.phase
    return replace(state, phase=Phase.GATHERING, before=before, since=now)


def _at_rest(state: State) -> bool:
    return state.before is Phase.GIVEN_UP or state.wanted is Verb.STOP


def moved_to_this_boot(state: State, saved_at: float, now: float) -> State:
    """Times of another boot's clock. How long the machine was off is not counted: the budget recovers while it runs."""
    shift = now - saved_at
    return replace(
        state,
        rebooted=True,
        since=state.since + shift,
        not_before=state.not_before + shift,
        failed_at=None if state.failed_at is None else state.failed_at + shift,
        starts=tuple(at + shift for at in state.starts),
    )


# --- the operator ---


def start(state: State, view: View) -> Decision:
    if state.phase is Phase.GIVEN_UP:
        return _refused(state, "the group has given up; find out why it kept failing, then `coderack group resume`")
    if state.wanted is Verb.RUN and state.phase is not Phase.WAITING:
        return Decision(state, ())
    return Decision(replace(state, wanted=Verb.RUN, not_before=view.now), ("an operator starts the group",))


def stop(state: State, view: View) -> Decision:
    if state.phase is Phase.GIVEN_UP:
        return _refused(state, "the group has given up, so everything is stopped already")
    if state.wanted is Verb.STOP:
        return Decision(state, ())
    line = "an operator stops the group: the head first, so that it ends what it was asked"
    state = replace(state, wanted=Verb.STOP, cause=_by_operator("`coderack group stop`", view), counted=False)
    return Decision(state if state.phase in _DOWN else _to_stop(state, view, orderly=True), (line,))


def restart(state: State, view: View) -> Decision:
    if state.phase is Phase.GIVEN_UP:
        return _refused(state, "the group has given up; find out why it kept failing, then `coderack group resume`")
    line = "an operator restarts the group"
    if state.phase in _DOWN:
        return Decision(replace(state, wanted=Verb.RUN, not_before=view.now), (line,))
    state = replace(state, wanted=Verb.RUN, cause=_by_operator("`coderack group restart`", view), counted=False)
    return Decision(_to_stop(state, view, orderly=True), (line,))


def resume(state: State, view: View) -> Decision:
    """Forget the failures; start again where that was given up."""
    fresh = replace(state, starts=(), wanted=Verb.RUN, not_before=view.now)
    if fresh.before is Phase.GIVEN_UP:
        fresh = replace(fresh, before=Phase.STOPPED)
    if state.phase is Phase.GIVEN_UP:
        fresh = replace(_to_stop(fresh, view, orderly=False), counted=False, failed_at=None)
    if fresh == replace(state, not_before=view.now):
        return Decision(state, ())
    return Decision(fresh, ("an operator resumes: the budget is full again",))


def _refused(state: State, why: str) -> Decision:
    return Decision(state, (f"refused: {why}",))


def _by_operator(text: str, view: View) -> Cause:
    return Cause(Reason.OPERATOR, view.members[0], text, view.wall)


# --- phases ---


def _gathering(settings: Settings, state: State, view: View) -> Decision:
    missing = [name for name in view.members if not _known(settings, view, name)]
    if missing:
        long = max(missing, key=lambda name: view.absent(name, state.since))
        # Whoever answers with tokens has all its members, whatever the agents can't say to each other.
        if view.absent(long, state.since) <= settings.lost_after or view.probe.state is ProbeState.UP:
            return Decision(state)
    # A group that is to rest is not woken by units that systemd starts at boot, but by whoever starts them later.
    elif not (state.rebooted and _at_rest(state)):
        if (adopted := _adoptable(settings, view)) is not None:
            return _adopt(state, view, adopted)
        # What comes before the engine in its unit (a gate, a mount) takes its time after a boot.
        if _coming(view) and view.now - state.since <= settings.stop_timeout:
            return Decision(state)
    if (rest := _back_to_rest(state, view)) is not None:
        return rest
    if missing:
        return _fail(settings, state, view, Reason.MEMBER_LOST, long, _silence(settings, view, long))
    return _back_to_work(settings, state, view)


def _adopt(state: State, view: View, adopted: Mapping[str, str]) -> Decision:
    epoch = max(state.epoch, view.seen()) + 1
    taken = replace(_enter(state, Phase.STARTING, view), epoch=epoch, adopted=adopted, wanted=Verb.RUN)
    # Somebody has started them, and an agent that has given up starts nothing: a human took this in hand.
    starts = () if state.before is Phase.GIVEN_UP else state.starts
    line = f"epoch {epoch}: the engines run already, all since the same time, and are taken over without a restart"
    return Decision(replace(taken, counted=False, failed_at=None, orderly=False, starts=starts), (line,))


def _back_to_work(settings: Settings, state: State, view: View) -> Decision:
    if state.before is not None and view.seen() <= state.epoch:
        since = _began(view) if state.before is Phase.STARTING else view.now
        back = replace(_enter(state, state.before, view), since=since)
        return Decision(back, (f"epoch {state.epoch}: the head's agent is back, the group is {state.before}",))
    reports = [view.heard[name].report for name in view.members]
    epochs = {report.record.started.epoch if _runs(report) and report.record.started else 0 for report in reports}
    if state.before is None and epochs == {view.seen()} and epochs != {0}:
        back = replace(_enter(state, Phase.STARTING, view), epoch=view.seen(), since=_began(view))
        return Decision(back, (f"epoch {back.epoch}: found running as one; the head's own notes were lost",))
    running = [report.member for report in reports if report.unit and not report.unit.stopped]
    text = f"engines run on {', '.join(running)} and not as one" if running else "no engine runs"
    return _fail(settings, state, view, Reason.NOT_AS_ONE, running[0] if running else view.members[0], text)


def _back_to_rest(state: State, view: View) -> Decision | None:
    if state.before is Phase.GIVEN_UP:
        return Decision(_enter(state, Phase.GIVEN_UP, view), ("given up, as before the agent's restart",))
    if state.before in _DOWN or state.wanted is Verb.STOP:
        return Decision(_to_stop(state, view, orderly=False))
    return None


def _together(settings: Settings, state: State, view: View) -> Decision:
    running = 0
    for name in view.members:
        if (heard := view.heard.get(name)) is not None:
            problem, runs = condition(heard.report, state.epoch, adopted=bool(state.adopted))
            if problem is not None:
                return _fail(settings, state, view, problem[0], name, f"{name}: {problem[1]}")
            running += runs and view.now - heard.known_at <= settings.fresh
        if view.absent(name, state.since) > settings.lost_after and view.probe.state is not ProbeState.UP:
            return _fail(settings, state, view, Reason.MEMBER_LOST, name, _silence(settings, view, name))
    if state.phase is Phase.STARTING:
        return _starting(settings, state, view, running == len(view.members))
    down = view.now - max(view.probe.since, state.since)
    if view.probe.state is ProbeState.DOWN and down >= settings.probe_down_for:
        text = f"the units run, but the token probe has had no answer for {down:.0f} s"
        return _fail(settings, state, view, Reason.PROBE_DOWN, view.members[0], text)
    return Decision(state)


def _starting(settings: Settings, state: State, view: View, all_run: bool) -> Decision:
    took = view.now - state.since
    probe = _word_on_this_epoch(settings, state, view.probe)
    if all_run and probe is ProbeState.UP:
        recovery = state.recovery if state.failed_at is None else view.now - state.failed_at
        after = "" if state.failed_at is None else f", {recovery:.0f} s after the failure was noticed"
        up = replace(_enter(state, Phase.RUNNING, view), recovery=recovery, failed_at=None)
        return Decision(up, (f"epoch {state.epoch}: running as one after {took:.0f} s{after}",))
    if took <= settings.ready_timeout:
        return Decision(state)
    if not all_run:
        slow = [name for name in view.members if not (name in view.heard and _runs(view.heard[name].report))]
        text = f"{', '.join(slow) or 'a member'} did not start within {settings.ready_timeout:g} s"
        return _fail(settings, state, view, Reason.NOT_READY, (slow or view.members)[0], text)
    if probe is not ProbeState.UNKNOWN:
        text = f"no answer from every rank within {settings.ready_timeout:g} s, the token probe says {probe}"
        return _fail(settings, state, view, Reason.NOT_READY, view.members[0], text)
    return Decision(state)  # nobody can tell, and that alone is no reason to restart


def _word_on_this_epoch(settings: Settings, state: State, probe: Probe) -> ProbeState:
    """A probe says `up` until several rounds have failed, so after a quick restart still of the engines before.

    What counts is a token since the start; its time is known to within one poll.
    """
    if probe.updated <= state.since:
        return ProbeState.UNKNOWN
    old = probe.token_at is not None and probe.token_at - settings.poll <= state.since
    return ProbeState.STARTING if probe.state is ProbeState.UP and old else probe.state


def _down(settings: Settings, state: State, view: View) -> Decision:
    state = _raised(state, view)
    missing = [name for name in view.members if not _known(settings, view, name)]
    busy = [name for name in view.members if name not in missing and not _is_down(view, name, state.epoch)]
    if busy:
        if state.phase is Phase.STOPPING:
            return Decision(state)
        text = f"{', '.join(busy)}: the engine runs though the group is {state.phase}; it is stopped again"
        return Decision(_to_stop(state, view, orderly=False), (text,))
    if missing:
        return _rest(state, Phase.WAITING, view, f"not told yet by {', '.join(missing)} that it has stopped")
    if state.wanted is Verb.STOP:
        return _rest(state, Phase.STOPPED, view, "every engine is stopped, until `coderack group start`")
    if view.now < state.not_before:
        return _rest(state, Phase.WAITING, view, f"{state.not_before - view.now:.0f} s of pause before the next start")
    begun = replace(_enter(state, Phase.STARTING, view), epoch=state.epoch + 1, adopted={}, orderly=False)
    used = ""
    if state.counted:
        reason = state.cause.reason if state.cause else Reason.NOT_AS_ONE
        counts = {**state.counts, str(reason): state.counts.get(str(reason), 0) + 1}
        begun = replace(begun, starts=(*state.starts, view.now), counts=counts, counted=False)
        used = f" (restart {len(begun.starts)} of {settings.restarts} in {settings.window:g} s)"
    return Decision(begun, (f"epoch {begun.epoch}: every engine is stopped, all start now{used}",))


def _rest(state: State, phase: Phase, view: View, why: str) -> Decision:
    return Decision(state) if state.phase is phase else Decision(_enter(state, phase, view), (f"{phase}: {why}",))


def _fail(settings: Settings, state: State, view: View, reason: Reason, member: str, text: str) -> Decision:
    failed_at = view.now if state.failed_at is None else state.failed_at
    cause = Cause(reason, member, text, view.wall)
    state = replace(state, cause=cause, failed_at=failed_at, counted=True)
    used = len(state.starts)
    if used >= settings.restarts:
        line = (
            f"{text}. GIVEN UP: {used} restarts in {settings.window:g} s did not help, everything stays stopped. Find"
            " the cause (`journalctl -u vllm` on every node), then `coderack group resume`"
        )
        return Decision(replace(_enter(_raised(state, view), Phase.GIVEN_UP, view), orderly=False), (line,))
    pause = min(settings.backoff_max, settings.backoff * 2 ** (used - 1)) if used else 0.0
    line = f"{text}. All go down, then all start as one"
    return Decision(replace(_to_stop(state, view, orderly=False), not_before=view.now + pause), (line,))


def _to_stop(state: State, view: View, *, orderly: bool) -> State:
    return replace(_enter(_raised(state, view), Phase.STOPPING, view), orderly=orderly)


def _enter(state: State, phase: Phase, view: View) -> State:
    return replace(state, phase=phase, since=view.now, before=None, rebooted=False)


def _raised(state: State, view: View) -> State:
    """Members may know a higher epoch than a head whose notes were lost."""
    return replace(state, epoch=view.seen()) if view.seen() > state.epoch else state


# --- what a report means ---


def condition(report: Report, epoch: int, *, adopted: bool) -> tuple[tuple[Reason, str] | None, bool]:
    """What is wrong with a member that is to run `epoch` (None: nothing), and whether it runs.

    `adopted`: the epoch began with engines that ran already, so that nobody had to stop before it.
    """
    problem = _of_notes(report, epoch, adopted) or _of_unit(report, epoch)
    started = report.record.started
    runs = started is not None and started.epoch == epoch and started.invocation != ""
    return problem, problem is None and runs and report.unit is not None and report.unit.running


def _of_notes(report: Report, epoch: int, adopted: bool) -> tuple[Reason, str] | None:
    record, started = report.record, report.record.started
    if record.seen > epoch:
        return Reason.NOT_AS_ONE, f"it knows epoch {record.seen} already, the head is at {epoch}"
    if record.fence >= epoch:
        return Reason.MEMBER_LOST, "it stopped its engine, since it could not reach the head"
    if started is None or started.epoch < epoch:
        lost = record.fence < epoch - 1 and not adopted
        return (Reason.NOT_AS_ONE, "its notes were lost, so that it can't tell what it runs") if lost else None
    if started.boot != report.boot:
        return Reason.NODE_REBOOTED, "the node was rebooted"
    return (Reason.START_REFUSED, started.failed) if started.failed else None


def _of_unit(report: Report, epoch: int) -> tuple[Reason, str] | None:
    unit, started = report.unit, report.record.started
    if unit is None or started is None or started.epoch < epoch or not started.invocation:
        return None
    if unit.invocation != started.invocation and not unit.stopped:
        return Reason.RESTARTED_OUTSIDE, "the engine was restarted by somebody else"
    if unit.active == "failed":
        return Reason.ENGINE_FAILED, f"the engine failed (result {unit.result or '?'})"
    if unit.active in ("inactive", "deactivating"):
        hint = "the engine ended though nobody ordered it; to stop the group, use `coderack group stop`"
        return Reason.ENGINE_EXITED, hint
    return None


def _runs(report: Report) -> bool:
    epoch = report.record.started.epoch if report.record.started else 0
    problem, runs = condition(report, epoch, adopted=True)
    return problem is None and runs


def _known(settings: Settings, view: View, member: str) -> bool:
    heard = view.heard.get(member)
    return heard is not None and heard.report.unit is not None and view.now - heard.at <= settings.fresh


def _is_down(view: View, member: str, epoch: int) -> bool:
    heard = view.heard.get(member)
    if heard is None or heard.report.unit is None:
        return False
    return heard.report.unit.stopped and heard.report.record.fence >= epoch


def _adoptable(settings: Settings, view: View) -> dict[str, str] | None:
    """Invocations by member, when all units run, none was started by an agent, and all began within a short time."""
    began = []
    adopted = {}
    for name in view.members:
        heard = view.heard[name]
        unit, started = heard.report.unit, heard.report.record.started
        if unit is None or not unit.running or unit.age is None:
            return None
        if started is not None and started.boot == heard.report.boot and started.invocation == unit.invocation:
            return None
        began.append(heard.at - unit.age)
        adopted[name] = unit.invocation
    return adopted if max(began) - min(began) <= settings.adopt_within else None


def _coming(view: View) -> bool:
    """Whether every unit runs or is on its way, and one still is."""
    active = {unit.active if (unit := view.heard[name].report.unit) else "" for name in view.members}
    return "activating" in active and active <= {"active", "activating"}


def _began(view: View) -> float:
    """When the head's unit became active, or now: an agent that keeps being restarted must not prolong a start."""
    heard = view.heard.get(view.members[0])
    age = heard.report.unit.age if heard and heard.report.unit else None
    return view.now if heard is None or age is None else heard.at - age


def _silence(settings: Settings, view: View, member: str) -> str:
    heard = view.heard.get(member)
    if heard is not None and view.now - heard.at <= settings.fresh:
        return f"{member}: its systemd has not answered for {view.now - heard.known_at:.0f} s"
    return f"{member} has not been heard for {settings.lost_after:g} s"
