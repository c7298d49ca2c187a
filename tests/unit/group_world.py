"""A simulated group: nodes with power, disks, links and units, driven second by second through the two pure functions.

It plays the outside only: what systemd, the disk, the network and the probe would do, and what breaks there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coderack.liveness.group import decide
from coderack.liveness.group.member import Action, Member, refused, step
from coderack.liveness.group.model import (
    Heard,
    Order,
    Phase,
    Probe,
    ProbeState,
    Record,
    Report,
    Settings,
    State,
    Unit,
    Verb,
)

SETTINGS = Settings(
    poll=1,
    lost_after=5,
    ready_timeout=30,
    restarts=3,
    window=1e6,
    backoff=2,
    backoff_max=4,
    kill_after=3,
    stop_timeout=20,
    adopt_within=4,
    probe_max_age=4,
    probe_down_for=2,
)
# A probe needs so many failed rounds before it says more than `up`.
STOPPING_S, PROBE_LAG_S = 2, 8


@dataclass
class Node:
    name: str
    booted: float
    boot: int = 0
    powered: bool = True
    linked: bool = True
    disk_full: bool = False
    disk: Record | None = None  # None: no file, or a torn one
    member: Member | None = None  # None: the agent does not run
    order: Order = field(default_factory=lambda: Order(Verb.HOLD))
    contact: float = 0.0
    lag: int = 0  # seconds that a report takes to the head, and its order back
    reports: list[Report] = field(default_factory=list)
    coming: list[Order] = field(default_factory=list)
    active: str = "inactive"
    result: str = "success"
    invocation: int = 0
    began: float = 0.0
    ending: float | None = None
    epoch: int | None = None  # for which epoch the unit runs; None: started by hand
    hung: bool = False  # runs and answers nothing
    dies_before_action: bool = False

    def unit(self, now: float) -> Unit:
        age = now - self.began if self.active == "active" else None
        return Unit(self.active, "", self.result, str(self.invocation) if self.invocation else "", False, age)

    @property
    def processes(self) -> bool:
        return self.active in ("active", "deactivating")

    def launch(self, now: float, epoch: int | None) -> None:
        self.invocation += 1
        self.active, self.result, self.began, self.epoch, self.ending = "active", "success", now, epoch, None
        self.hung = False

    def end(self, active: str, result: str = "success") -> None:
        if self.processes:
            self.active, self.result, self.ending = active, result, None


class World:
    """`now` is everybody's clock here, less the moment of the own boot."""

    def __init__(self, names: tuple[str, ...] = ("a", "b"), settings: Settings = SETTINGS) -> None:
        self.settings, self.names = settings, names
        self.enabled = False  # units start by themselves at boot
        self.token = 0.0  # when every rank last answered
        self.loading = 3.0  # seconds from start to answer
        self.now = 1000.0
        self.wall = 1.7e9
        self.nodes = {name: Node(name, booted=100.0 * index) for index, name in enumerate(names)}
        self.head = self.nodes[names[0]]
        self.saved: tuple[State, int, float] | None = None
        self.state = State()
        self.heard: dict[str, Heard] = {}
        self.orders: dict[str, Order] = {}
        self.probe, self.blind = Probe(), False
        self.lines: list[str] = []
        self.started: list[tuple[str, int]] = []
        self.counted = 0
        self.torn = False
        for node in self.nodes.values():
            self.agent_up(node)

    # --- what happens outside ---

    def clock(self, node: Node) -> float:
        return self.now - node.booted

    def agent_up(self, node: Node) -> None:
        if not node.powered or node.member is not None:
            return
        node.member = Member(node.disk or Record())
        node.order, node.contact = Order(Verb.HOLD), self.clock(node)
        node.reports, node.coming = [], []
        if node is self.head:
            now, state = self.clock(node), None
            if self.saved is not None:
                state, boot, at = self.saved
                state = state if boot == node.boot else decide.moved_to_this_boot(state, at, now)
            self.state, self.heard, self.orders = decide.loaded(state, now), {}, {}
            self.probe = Probe()

    def agent_down(self, node: Node) -> None:
        node.member = None

    def power_off(self, node: Node) -> None:
        node.powered, node.member, node.active, node.ending, node.epoch = False, None, "inactive", None, None

    def power_on(self, node: Node) -> None:
        if not node.powered:
            node.powered, node.boot, node.booted = True, node.boot + 1, self.now
            if self.enabled:
                node.launch(self.now, None)
            self.agent_up(node)

    def command(self, verb: Callable[[State, decide.View], decide.Decision]) -> None:
        if self.head.member is not None:
            self.apply(verb(self.state, self.view()))

    # --- a second ---

    def view(self) -> decide.View:
        return decide.View(self.names, self.heard, self.probe, self.clock(self.head), self.wall)

    def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.now += 1
            self.wall += 1
            for node in self.nodes.values():
                if node.ending is not None and self.now >= node.ending:
                    node.end("inactive")
            self.look()
            for node in self.nodes.values():
                if node is not self.head:
                    self.talk(node)
            if self.head.member is not None:
                self.hear(self.head)
                self.apply(decide.decide(self.settings, self.state, self.view()))
                self.head.order = self.orders.get(self.head.name, Order(Verb.HOLD))
            for node in self.nodes.values():
                self.obey(node)

    def look(self) -> None:
        """The probe on the head: does every rank answer?"""
        units = list(self.nodes.values())
        together = {node.epoch for node in units if node.active == "active"}
        linked = all(node.linked for node in units)
        alone = self.head.active != "active"
        loaded = all(node.active == "active" and not node.hung for node in units)
        loaded = loaded and all(self.now - node.began >= self.loading for node in units)
        # Engines that were not started as one do not answer as one.
        spread = max(node.began for node in units) - min(node.began for node in units)
        if loaded and linked and (len(together) == 1 and (together != {None} or spread <= 2)):
            self.token = self.now
        if self.now - self.token < PROBE_LAG_S:
            said = ProbeState.UP
        elif alone:
            said = ProbeState.STOPPED
        elif self.now - self.head.began < self.loading:
            said = ProbeState.STARTING
        else:
            said = ProbeState.DOWN
        now = self.clock(self.head)
        if self.blind:
            said = ProbeState.UNKNOWN
        since = self.probe.since if self.probe.state is said else now
        self.probe = Probe(said, since, self.probe.updated if self.blind else now, "", self.token - self.head.booted)

    def talk(self, node: Node) -> None:
        if node.member is None or not (node.linked and self.head.linked and self.head.powered):
            return
        node.contact = self.clock(node)
        if self.head.member is not None:
            self.hear(node)
            node.coming.append(self.orders.get(node.name, Order(Verb.HOLD)))
            while len(node.coming) > node.lag:
                node.order = node.coming.pop(0)

    def hear(self, node: Node) -> None:
        assert node.member is not None
        now = self.clock(self.head)
        node.reports.append(Report(node.name, str(node.boot), node.member.record, node.unit(self.now)))
        while len(node.reports) > node.lag:
            self.heard[node.name] = Heard(node.reports.pop(0), now, now)

    def apply(self, decision: decide.Decision) -> None:
        before = self.state
        if decision.state != before:
            if self.head.disk_full:
                return
            self.saved = (decision.state, self.head.boot, self.clock(self.head))
            self.state = decision.state
        self.lines += decision.lines
        self.counted += sum(self.state.counts.values()) - sum(before.counts.values())
        self.orders = decide.orders(self.settings, self.state, self.view())

    def obey(self, node: Node) -> None:
        if node.member is None:
            return
        clock = self.clock(node)
        silent = 0.0 if node is self.head else clock - node.contact
        taken = step(self.settings, node.member, node.unit(self.now), str(node.boot), node.order, silent, clock)
        if taken.member.record != node.member.record:
            if node.disk_full:
                return
            node.disk = taken.member.record
            started = taken.member.record.started
            if started and started.invocation and str(node.invocation) == started.invocation:
                node.epoch = started.epoch
        node.member = taken.member
        if taken.action is None:
            return
        if node.dies_before_action:
            node.dies_before_action = False
            self.agent_down(node)
            return
        self.act(node, taken.action)

    def act(self, node: Node, action: Action) -> None:
        if action is Action.START:
            assert node.member is not None
            assert node.member.record.started is not None
            epoch = node.member.record.started.epoch
            if node.processes:
                node.member = refused(node.member, "runs already")
                return
            self.check_start(node, epoch)
            node.launch(self.now, epoch)
        elif action is Action.STOP and node.active == "active":
            node.active, node.ending = "deactivating", self.now + STOPPING_S
        elif action is Action.KILL:
            node.end("failed", "signal")

    def check_start(self, node: Node, epoch: int) -> None:
        # When the head's notes and those of the only member that knew are lost, a number may come again.
        assert self.torn or (node.name, epoch) not in self.started, f"{node.name} starts twice for epoch {epoch}"
        self.started.append((node.name, epoch))
        for other in self.nodes.values():
            assert not (other.processes and other.epoch is not None and other.epoch != epoch), (
                f"{node.name} starts for epoch {epoch} while {other.name} runs {other.epoch}"
            )

    # --- what a test asks ---

    def heal(self) -> None:
        self.blind = False
        for node in self.nodes.values():
            node.linked, node.disk_full, node.dies_before_action, node.lag = True, False, False, 0
            self.power_on(node)
            self.agent_up(node)

    def as_one(self) -> bool:
        return self.state.phase is Phase.RUNNING and all(
            node.active == "active" and node.epoch == self.state.epoch for node in self.nodes.values()
        )

    def until(self, holds: Callable[[], bool], seconds: int = 60) -> bool:
        for _ in range(seconds):
            if holds():
                return True
            self.tick()
        return holds()


def running(names: tuple[str, ...] = ("a", "b"), settings: Settings = SETTINGS) -> World:
    """A group that has started for the first time, its budget as good as new."""
    world = World(names, settings)
    assert world.until(world.as_one), world.lines
    world.state = replace(world.state, starts=(), counts={})
    world.saved = (world.state, world.head.boot, world.clock(world.head))
    world.counted = 0
    world.lines.clear()
    return world
