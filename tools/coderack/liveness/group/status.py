"""What the head tells of the group: one object for `coderack group status`, people and scripts."""

from typing import Any

from coderack.liveness.group.config import GroupConfig
from coderack.liveness.group.decide import View, condition
from coderack.liveness.group.model import Phase, ProbeState, State

SCHEMA = "coderack.group/1"


def member_up(config: GroupConfig, state: State, view: View) -> dict[str, bool]:
    """Whether each member reports, and runs the current epoch."""
    up = {}
    for name in config.names:
        heard = view.heard.get(name)
        up[name] = (
            heard is not None
            and view.now - heard.known_at <= config.settings.fresh
            and condition(heard.report, state.epoch, adopted=bool(state.adopted)) == (None, True)
        )
    return up


def left(config: GroupConfig, state: State) -> int:
    return max(0, config.settings.restarts - len(state.starts))


def verdict(state: State, up: dict[str, bool], probe: ProbeState) -> str:
    """`running`: as one, and it answers. `unknown`: nobody can tell. Else `not-running`."""
    if state.phase is Phase.GATHERING:
        return "unknown"
    if state.phase not in (Phase.RUNNING, Phase.STARTING):
        return "not-running"
    if probe is ProbeState.UP:
        return "running" if state.phase is Phase.RUNNING else "not-running"
    if probe is ProbeState.UNKNOWN and all(up.values()):
        return "unknown"
    return "not-running"


def summary(config: GroupConfig, state: State, view: View) -> dict[str, Any]:
    up = member_up(config, state, view)
    return {
        "group": config.group,
        "head": config.head.name,
        "verdict": verdict(state, up, view.probe.state),
        "state": state.phase.value,
        "for_seconds": round(view.now - state.since, 1),
        "epoch": state.epoch,
        "wanted": state.wanted.value,
        "last_restart": None
        if state.cause is None
        else {
            "reason": state.cause.reason.value,
            "member": state.cause.member,
            "text": state.cause.text,
            "time": state.cause.wall,
        },
        "recovery_seconds": state.recovery,
        "budget": {
            "restarts": config.settings.restarts,
            "left": left(config, state),
            "window_seconds": config.settings.window,
        },
        "pause_seconds": round(max(0.0, state.not_before - view.now), 1) if state.phase is Phase.WAITING else 0.0,
        "probe": {"state": view.probe.state.value, "why": view.probe.why},
        "members": [_member(config, state, view, name, up[name]) for name in config.names],
    }


def _member(config: GroupConfig, state: State, view: View, name: str, up: bool) -> dict[str, Any]:
    heard = view.heard.get(name)
    if heard is None:
        return {"name": name, "up": False, "heard_seconds": None, "unit": None, "epoch": None, "note": "never heard"}
    report = heard.report
    note = ""
    if state.phase in (Phase.STARTING, Phase.RUNNING):
        problem, _ = condition(report, state.epoch, adopted=bool(state.adopted))
        note = problem[1] if problem else ""
    if view.now - heard.at > config.settings.fresh:
        note = "silent"
    elif report.unit is None:
        note = "its systemd does not answer, or it carries out an order"
    return {
        "name": name,
        "up": up,
        "heard_seconds": round(view.now - heard.at, 1),
        "unit": f"{report.unit.active}/{report.unit.sub}" if report.unit else None,
        "epoch": report.record.started.epoch if report.record.started else 0,
        "note": note,
    }
