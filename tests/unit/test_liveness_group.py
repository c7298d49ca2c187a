"""The coupled restart, second by second on a simulated group: what it does, and what it never does."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coderack.liveness.group import decide
from coderack.liveness.group.member import Action, Member, step
from coderack.liveness.group.model import (
    Order,
    Phase,
    Reason,
    Record,
    Report,
    Started,
    Unit,
    Verb,
)

from .group_world import SETTINGS, World, running

UP = Unit("active", "running", "success", "i1", age=10)
GONE = Unit("inactive", "dead", "success", "i1")


def reason(world: World) -> Reason | None:
    return world.state.cause.reason if world.state.cause else None


# --- one fault, one restart of all ---


def test_a_group_that_never_ran_starts_as_one() -> None:
    world = World(("a", "b", "c"))
    assert world.until(world.as_one, 15)
    assert world.state.epoch == 1


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_engine_that_crashes_takes_all_with_it_and_all_come_back(name: str) -> None:
    world = running()
    world.nodes[name].end("failed", "signal")
    assert world.until(lambda: world.state.epoch == 2 and world.as_one(), 20)
    assert reason(world) is Reason.ENGINE_FAILED
    assert world.state.counts == {"engine_failed": 1}
    assert world.state.recovery is not None
    assert world.state.recovery < 15


def test_a_hand_stop_on_one_node_is_a_loss_and_the_journal_names_the_right_command() -> None:
    world = running()
    world.nodes["b"].end("inactive")
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())
    assert reason(world) is Reason.ENGINE_EXITED
    assert any("coderack group stop" in line for line in world.lines)


def test_hand_stops_are_not_fought_for_ever() -> None:
    world = running()
    for _ in range(SETTINGS.restarts):
        world.nodes["b"].end("inactive")
        world.tick(2)
        assert world.until(world.as_one)
    world.nodes["b"].end("inactive")
    assert world.until(lambda: world.state.phase is Phase.GIVEN_UP)


def test_an_engine_restarted_by_hand_cannot_join_and_all_restart() -> None:
    world = running()
    world.nodes["b"].launch(world.now, None)
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())
    assert reason(world) is Reason.RESTARTED_OUTSIDE


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_short_reboot_ends_in_a_new_epoch(name: str) -> None:
    world = running()
    world.power_off(world.nodes[name])
    world.tick(2)
    world.power_on(world.nodes[name])
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())
    assert reason(world) is Reason.NODE_REBOOTED


@pytest.mark.parametrize("enabled", [False, True])
def test_all_nodes_rebooted_together_come_back(enabled: bool) -> None:
    world = running()
    world.enabled = enabled
    for node in world.nodes.values():
        world.power_off(node)
    world.tick(30)
    for node in world.nodes.values():
        world.power_on(node)
    assert world.until(world.as_one)
    assert world.state.epoch == 2


def test_a_node_that_stays_away_is_waited_for_and_nothing_starts_meanwhile() -> None:
    world = running()
    world.blind = True  # the probe would be the first to notice
    world.power_off(world.nodes["b"])
    assert world.until(lambda: world.state.phase is Phase.WAITING)
    assert reason(world) is Reason.MEMBER_LOST
    world.tick(500)
    assert (world.state.phase, world.head.active, world.state.epoch) == (Phase.WAITING, "inactive", 1)
    world.blind = False
    world.power_on(world.nodes["b"])
    assert world.until(world.as_one)


def test_a_member_cut_off_from_the_head_stops_its_own_engine() -> None:
    world = running()
    world.nodes["b"].linked = False
    world.tick(int(SETTINGS.lost_after) + 5)
    assert not any(node.processes for node in world.nodes.values())
    world.nodes["b"].linked = True
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())
    assert world.counted == 1


def test_tokens_that_stop_coming_restart_a_group_whose_units_all_run() -> None:
    world = running()
    world.nodes["b"].hung = True
    assert world.until(lambda: world.state.epoch == 2)
    assert reason(world) is Reason.PROBE_DOWN


def test_a_start_that_never_gets_ready_counts_as_a_failure() -> None:
    world = running()
    world.nodes["b"].end("failed")
    world.loading = 1000
    assert world.until(lambda: world.state.epoch == 3, int(SETTINGS.ready_timeout) + 20)
    assert world.state.counts == {"engine_failed": 1, "not_ready": 1}


def test_a_probe_that_still_says_up_of_the_engines_before_makes_nothing_ready() -> None:
    world = running()
    world.loading = 15.0
    world.nodes["b"].end("failed", "signal")
    assert world.until(lambda: world.state.epoch == 2)
    world.tick(5)
    assert world.state.phase is Phase.STARTING
    assert world.until(world.as_one)
    assert world.counted == 1


# --- what is no reason ---


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("away", [1, 3, 60])
def test_an_agent_that_is_away_and_comes_back_disturbs_nothing(name: str, away: int) -> None:
    world = running()
    world.agent_down(world.nodes[name])
    world.tick(away)
    world.agent_up(world.nodes[name])
    assert world.until(world.as_one)
    assert (world.state.epoch, world.counted) == (1, 0)


def test_a_blind_probe_is_no_reason_to_restart() -> None:
    world = running()
    world.blind = True
    world.tick(1000)
    assert world.as_one()


def test_a_start_under_a_blind_probe_is_not_called_running_and_not_restarted() -> None:
    world = running()
    world.blind = True
    world.nodes["b"].end("failed")
    world.tick(10 * int(SETTINGS.ready_timeout))
    assert (world.state.phase, world.state.epoch) == (Phase.STARTING, 2)
    world.blind = False
    assert world.until(world.as_one)


def test_a_clock_that_is_set_changes_nothing() -> None:
    world = running()
    for jump in (-1e8, 3e8):
        world.wall += jump
        world.tick(10)
    assert world.as_one()
    assert world.counted == 0


# --- adopting ---


def start_by_hand(world: World, apart: int = 0) -> None:
    """As site.yml does: agents away, engines stopped and started, agents back."""
    for node in world.nodes.values():
        world.agent_down(node)
    for node in world.nodes.values():
        node.end("inactive")
    for node in world.nodes.values():
        node.launch(world.now, None)
        world.tick(apart)
    for node in world.nodes.values():
        world.agent_up(node)


def test_engines_that_were_started_together_are_taken_over_without_a_restart() -> None:
    world = running()
    start_by_hand(world)
    runs = [node.invocation for node in world.nodes.values()]
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())
    assert runs == [node.invocation for node in world.nodes.values()]
    assert world.counted == 0


def test_units_that_systemd_starts_at_boot_are_waited_for_and_taken_over() -> None:
    world = running()
    world.enabled = True
    for node in world.nodes.values():
        world.power_off(node)
        world.power_on(node)
        node.active = "activating"
    world.tick(10)
    assert world.state.phase is Phase.GATHERING
    for node in world.nodes.values():
        node.launch(world.now, None)
    assert world.until(world.as_one)
    assert world.counted == 0


def test_engines_that_were_started_far_apart_are_not() -> None:
    world = running()
    start_by_hand(world, apart=int(SETTINGS.adopt_within) + 3)
    assert world.until(lambda: world.counted == 1 and world.as_one())


def test_engines_that_somebody_started_are_taken_over_by_a_group_that_had_given_up() -> None:
    world = given_up()
    start_by_hand(world)
    assert world.until(world.as_one)


@pytest.mark.parametrize("enabled", [False, True])
def test_a_group_that_had_given_up_stays_so_over_reboots(enabled: bool) -> None:
    world = given_up()
    world.enabled = enabled
    for node in world.nodes.values():
        world.power_off(node)
        world.power_on(node)
    world.tick(100)
    assert world.state.phase is Phase.GIVEN_UP
    assert not any(node.processes for node in world.nodes.values())


# --- notes that are lost ---


def test_a_head_whose_state_is_torn_goes_on_with_what_the_members_know() -> None:
    world = running()
    world.agent_down(world.head)
    world.saved = None
    world.agent_up(world.head)
    assert world.until(world.as_one)
    assert world.state.epoch == 1


def test_a_head_whose_state_is_torn_in_a_restart_begins_above_every_epoch_seen() -> None:
    world = running()
    for _ in range(2):
        world.nodes["b"].end("failed")
        world.tick(2)
        assert world.until(world.as_one)
    world.nodes["b"].end("failed")
    world.agent_down(world.head)
    world.saved = None
    world.agent_up(world.head)
    assert world.until(lambda: world.state.epoch == 4 and world.as_one())


def test_a_member_whose_notes_are_torn_is_stopped_before_it_starts() -> None:
    world = running()
    world.nodes["b"].end("failed")
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())
    world.agent_down(world.nodes["b"])
    world.nodes["b"].disk = None
    world.nodes["b"].end("failed")
    world.agent_up(world.nodes["b"])
    assert world.until(lambda: world.state.epoch == 3 and world.as_one())
    assert world.state.counts["not_as_one"] == 1


def test_a_member_without_notes_does_not_start_after_it_was_lost_either() -> None:
    world = running()
    for node in world.nodes.values():
        world.power_off(node)
    world.nodes["b"].disk = None
    world.power_on(world.nodes["b"])
    world.tick(int(SETTINGS.lost_after) + 5)
    world.power_on(world.head)
    assert world.until(world.as_one)
    assert world.state.epoch == 2


def test_nothing_is_ordered_that_is_not_on_disk() -> None:
    world = running()
    world.head.disk_full = True
    world.nodes["b"].end("failed")
    world.tick(30)
    assert world.state.epoch == 1
    world.head.disk_full = False
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())


# --- the budget ---


def given_up() -> World:
    world = running()
    while world.state.phase is not Phase.GIVEN_UP:
        world.nodes["b"].end("failed", "exit-code")
        world.tick(3)
        assert world.until(lambda: world.as_one() or world.state.phase is Phase.GIVEN_UP)
    world.tick(10)
    return world


def test_the_budget_is_kept_then_everything_stays_stopped() -> None:
    world = given_up()
    assert world.counted == SETTINGS.restarts
    world.tick(2000)
    assert world.counted == SETTINGS.restarts
    assert not any(node.processes for node in world.nodes.values())
    assert sum("GIVEN UP" in line for line in world.lines) == 1


def test_start_and_restart_do_not_get_around_giving_up_and_resume_does() -> None:
    world = given_up()
    for verb in (decide.start, decide.restart):
        world.command(verb)
        world.tick(20)
        assert world.state.phase is Phase.GIVEN_UP
        assert world.lines[-1].startswith("refused: ")
    world.command(decide.resume)
    assert world.until(world.as_one)
    assert world.state.starts == ()


def test_restarts_outside_the_window_are_forgotten() -> None:
    short = replace(SETTINGS, window=50.0)
    world = running(settings=short)
    for _ in range(3 * SETTINGS.restarts):
        world.nodes["b"].end("failed")
        world.tick(2)
        assert world.until(world.as_one)
        world.tick(20)
    assert world.state.phase is Phase.RUNNING


def test_the_pause_grows_with_every_restart_of_the_window() -> None:
    world = running()
    pauses = []
    for _ in range(SETTINGS.restarts):
        world.nodes["b"].end("failed")
        world.tick()
        pauses.append(world.state.not_before - world.clock(world.head))
        assert world.until(lambda: world.state.phase is Phase.RUNNING)
    assert pauses == [0, 2, 4]


def test_a_pause_is_waited_for() -> None:
    world = running(settings=replace(SETTINGS, backoff=20.0, backoff_max=20.0))
    for _ in range(2):
        world.nodes["b"].end("failed")
        failed = world.now
        assert world.until(lambda: world.state.phase in (Phase.STOPPING, Phase.WAITING))
        assert world.until(world.as_one)
    assert world.now - failed > 20


# --- the operator ---


def test_an_ordered_stop_ends_the_head_before_the_others() -> None:
    world = running()
    world.command(decide.stop)
    assert world.until(lambda: world.head.active == "inactive")
    assert world.nodes["b"].active == "active"
    assert world.until(lambda: world.state.phase is Phase.STOPPED)
    assert world.counted == 0


def test_a_stopped_group_stays_stopped_over_reboots_and_hand_starts_until_it_is_started() -> None:
    world = running()
    world.command(decide.stop)
    assert world.until(lambda: world.state.phase is Phase.STOPPED)
    for node in world.nodes.values():
        world.power_off(node)
        world.power_on(node)
    world.tick(50)
    world.nodes["b"].launch(world.now, None)
    world.tick(20)
    assert not any(node.processes for node in world.nodes.values())
    world.command(decide.start)
    assert world.until(world.as_one)
    assert world.counted == 0


def test_an_ordered_restart_does_not_come_out_of_the_budget() -> None:
    world = running()
    world.command(decide.restart)
    assert world.until(lambda: world.state.epoch == 2 and world.as_one())
    assert (world.counted, world.state.starts) == (0, ())


@pytest.mark.parametrize("verb", [decide.start, decide.resume])
def test_a_command_that_has_nothing_to_do_does_nothing(verb: object) -> None:
    world = running()
    before = world.state
    world.command(verb)  # type: ignore[arg-type]
    assert world.state == before


# --- a member alone ---


def member_step(record: Record, unit: Unit | None, order: Order, silent: float = 0.0) -> tuple[Record, Action | None]:
    taken = step(SETTINGS, Member(record), unit, "boot", order, silent, 100.0)
    return taken.member.record, taken.action


STARTED = Started(7, "boot", "i0", "i1")


@pytest.mark.parametrize(
    ("record", "unit", "order", "action"),
    [
        (Record(6), GONE, Order(Verb.RUN, 7), Action.START),
        (Record(7), GONE, Order(Verb.RUN, 7), None),  # fenced: an order that comes late
        (Record(6, STARTED), GONE, Order(Verb.RUN, 7), None),  # once per epoch
        (Record(5), GONE, Order(Verb.RUN, 7), None),  # notes lost: to be stopped first
        (Record(6), UP, Order(Verb.RUN, 7), None),  # runs already: not ours
        (Record(6, STARTED), UP, Order(Verb.HOLD), None),
        (Record(6, STARTED), UP, Order(Verb.STOP, 7), Action.STOP),
        (Record(6, STARTED), GONE, Order(Verb.STOP, 7), None),
        (Record(6, STARTED), None, Order(Verb.STOP, 7), None),  # nobody knows what it does
        (Record(6), replace(GONE, job=True), Order(Verb.STOP, 6), Action.STOP),  # a start that is still queued
    ],
)
def test_what_a_member_does(record: Record, unit: Unit | None, order: Order, action: Action | None) -> None:
    assert member_step(record, unit, order)[1] is action


def test_a_lost_member_fences_the_epoch_that_it_stops() -> None:
    record, action = member_step(Record(6, STARTED), UP, Order(Verb.RUN, 7), silent=99)
    assert (record.fence, action) == (7, Action.STOP)


@pytest.mark.parametrize(
    ("record", "unit", "boot", "wanted"),
    [
        (Record(6, STARTED), UP, "boot", None),
        (Record(6, STARTED), UP, "other", Reason.NODE_REBOOTED),
        (Record(6, STARTED), replace(UP, invocation="i2"), "boot", Reason.RESTARTED_OUTSIDE),
        (Record(6, STARTED), replace(UP, active="failed", result="oom-kill"), "boot", Reason.ENGINE_FAILED),
        (Record(6, STARTED), GONE, "boot", Reason.ENGINE_EXITED),
        (Record(6, STARTED), replace(UP, active="deactivating"), "boot", Reason.ENGINE_EXITED),
        (Record(6, STARTED), replace(UP, active="activating", sub="start"), "boot", None),
        (Record(7, STARTED), GONE, "boot", Reason.MEMBER_LOST),
        (Record(6, replace(STARTED, invocation="", failed="no such unit")), GONE, "boot", Reason.START_REFUSED),
        (Record(6, replace(STARTED, epoch=8)), UP, "boot", Reason.NOT_AS_ONE),
        (Record(), GONE, "boot", Reason.NOT_AS_ONE),
        (Record(6), GONE, "boot", None),  # its order is on the way
        (Record(6, STARTED), None, "boot", None),
    ],
)
def test_what_a_report_means_to_a_head_at_epoch_7(record: Record, unit: Unit | None, boot: str, wanted: Reason) -> None:
    problem, _ = decide.condition(Report("b", boot, record, unit), 7, adopted=False)
    assert (problem[0] if problem else None) is wanted


# --- anything, in any order ---

FAULTS = ("crash", "exit", "hand", "power", "agent", "midway", "link", "lag", "disk", "blind", "clock")
LOSSES = ("record", "state")
VERBS = {"start": decide.start, "stop": decide.stop, "restart": decide.restart}
ANY = (*FAULTS, *LOSSES, *VERBS)


def inflict(world: World, fault: str, name: str) -> None:
    node = world.nodes[name]
    match fault:
        case "crash" | "exit":
            node.end("failed" if fault == "crash" else "inactive")
        case "hand" if node.powered:
            node.launch(world.now, None)
        case "power":
            world.power_on(node) if not node.powered else world.power_off(node)
        case "agent":
            world.agent_up(node) if node.member is None else world.agent_down(node)
        case "midway":
            node.dies_before_action = True
        case "link":
            node.linked = not node.linked
        case "lag":
            node.lag = 2 - node.lag
        case "record" if node.member is None:
            node.disk = None
        case "state" if world.head.member is None:
            world.saved, world.torn = None, True
        case "disk" | "blind":
            node.disk_full ^= fault == "disk"
            world.blind ^= fault == "blind"
        case "clock":
            world.wall += 1e7 if name == "a" else -1e7
        case "start" | "stop" | "restart":
            world.command(VERBS[fault])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([("a", "b"), ("a", "b", "c")]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(ANY), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=14),
)
def test_whatever_breaks_in_whatever_order_it_ends_as_one_or_given_up(
    names: tuple[str, ...], enabled: bool, faults: list[tuple[str, int, int]]
) -> None:
    world = running(names)
    world.enabled = enabled
    for fault, index, pause in faults:
        inflict(world, fault, names[index % len(names)])
        world.tick(pause)
        if not world.torn:
            assert world.counted <= SETTINGS.restarts
    world.heal()
    settled = (Phase.RUNNING, Phase.STOPPED, Phase.GIVEN_UP)
    world.tick(int(SETTINGS.lost_after) + 10)
    assert world.until(lambda: world.state.phase in settled, 300), world.lines
    world.tick(20)
    if not world.torn:
        assert world.counted <= SETTINGS.restarts
    if world.state.wanted is Verb.STOP or world.state.phase is Phase.GIVEN_UP:
        assert not any(node.processes for node in world.nodes.values())
        world.command(decide.resume)
    assert world.until(world.as_one, 300), world.lines
