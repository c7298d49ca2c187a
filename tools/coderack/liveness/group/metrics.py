"""Metrics for node_exporter's textfile collector, `coderack_group_*`.

The head tells of the group, the others of themselves.
"""

from collections.abc import Iterator, Mapping

from coderack.liveness.group.model import Phase, Probe, ProbeState, Reason, State

_HELP = {
    "coderack_group_timestamp_seconds": ("gauge", "When this agent last wrote: older than a minute means blind."),
    "coderack_group_head": ("gauge", "1 on the member that decides."),
    "coderack_group_epoch": ("gauge", "Starts of the whole group so far; as far as this member knows."),
    "coderack_group_head_up": ("gauge", "Whether this member reaches the head."),
    "coderack_group_state": ("gauge", "1 for the group's state."),
    "coderack_group_given_up": ("gauge", "1 when the budget of restarts is used up and a human is needed."),
    "coderack_group_restarts_total": ("counter", "Restarts of the whole group by the reason for them."),
    "coderack_group_restarts_left": ("gauge", "Restarts that are left in the window."),
    "coderack_group_member_up": ("gauge", "Whether the member reports, and its engine runs for the current epoch."),
    "coderack_group_probe": ("gauge", "1 for what the token probe says, as the head reads it."),
    "coderack_group_recovery_seconds": ("gauge", "From the failure to running as one, last time."),
}
Series = tuple[str, Mapping[str, str], float]


def of_head(state: State, up: Mapping[str, bool], probe: Probe, left: int, wall: float) -> str:
    return _render([*_own(state.epoch, wall, head=True), *_group(state, up, probe, left)])


def of_follower(epoch: int, *, reaches_head: bool, wall: float) -> str:
    return _render([*_own(epoch, wall, head=False), ("coderack_group_head_up", {}, float(reaches_head))])


def _own(epoch: int, wall: float, *, head: bool) -> Iterator[Series]:
    yield "coderack_group_timestamp_seconds", {}, wall
    yield "coderack_group_head", {}, float(head)
    yield "coderack_group_epoch", {}, float(epoch)


def _group(state: State, up: Mapping[str, bool], probe: Probe, left: int) -> Iterator[Series]:
    for phase in Phase:
        yield "coderack_group_state", {"state": phase.value}, float(phase is state.phase)
    yield "coderack_group_given_up", {}, float(state.phase is Phase.GIVEN_UP)
    # Every reason from the start, so that a first restart is an increase and no new series.
    for reason in Reason:
        if reason is not Reason.OPERATOR:
            yield "coderack_group_restarts_total", {"reason": reason.value}, float(state.counts.get(reason, 0))
    yield "coderack_group_restarts_left", {}, float(left)
    for member, runs in up.items():
        yield "coderack_group_member_up", {"member": member}, float(runs)
    for said in ProbeState:
        yield "coderack_group_probe", {"state": said.value}, float(said is probe.state)
    if state.recovery is not None:
        yield "coderack_group_recovery_seconds", {}, state.recovery


def _render(all_series: list[Series]) -> str:
    lines = []
    for name, (kind, text) in _HELP.items():
        own = [series for series in all_series if series[0] == name]
        if own:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            # Names of members and states need no escaping: the configuration allows letters, digits, dots and dashes.
            lines += [f"{name}{_labels(labels)} {value:.15g}" for _, labels, value in own]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""
