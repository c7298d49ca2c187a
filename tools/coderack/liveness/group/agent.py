"""The agent of one member: systemd, disk and network around the two pure functions. On the head it also decides."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from coderack.clients.systemd import Systemd, SystemdError, notify
from coderack.fleet import files
from coderack.liveness.group import decide, member, metrics, probe, status, store, wire
from coderack.liveness.group.config import GroupConfig
from coderack.liveness.group.model import Heard, Order, Phase, Probe, Record, Report, Unit, Verb

METRICS_EVERY_S = 10.0
# Between these, things are about to happen, and looking more often shortens the restart.
_CALM = {"unknown", *(phase.value for phase in (Phase.RUNNING, Phase.STOPPED, Phase.GIVEN_UP, Phase.WAITING))}
_NEVER = float("-inf")
_REPORT: TypeAdapter[Report] = TypeAdapter(Report)
_ORDER: TypeAdapter[Order] = TypeAdapter(Order)
_COMMANDS = {"start": decide.start, "stop": decide.stop, "restart": decide.restart, "resume": decide.resume}

Log = Callable[[str], None]


class Agent:
    """Runs until it is cancelled. Ending it leaves the engine alone: agents may be updated under a running group."""

    def __init__(self, config: GroupConfig, secret: bytes, log: Log) -> None:
        self.config, self.settings = config, config.settings
        self._secret, self._log = secret, log
        self._systemd = Systemd(config.systemctl, timeout=min(10.0, self.settings.lost_after))
        self._said: dict[str, str] = {}
        self._wake, self._news = asyncio.Event(), asyncio.Event()
        self._boot = config.boot_id_file.read_text().strip()
        self._unit: Unit | None = None
        self._unit_at = _NEVER
        self._acting: asyncio.Task[None] | None = None
        self._turn = 0  # counts the orders carried out: what was seen before or during one tells nothing of after
        record, problem = store.load_record(config.state_dir)
        self._complain("notes", problem)
        self._member = member.Member(record or Record())
        self._order = Order(Verb.HOLD)
        self._metrics_at = _NEVER
        # the head
        found, problem = store.load_state(config.state_dir, self._boot) if config.is_head else (None, "")
        self._complain("state", problem and f"{problem}: beginning from what the members know")
        self._state = decide.loaded(found, time.monotonic())
        self._heard: dict[str, Heard] = {}
        self._orders: dict[str, Order] = {}
        self._challenges = wire.Challenges()
        self._probe = Probe()
        self._stamp: float | None = None
        # the others
        self._contact = time.monotonic()
        self._challenge = ""
        self._group: tuple[str, int] = ("unknown", 0)

    async def run(self) -> None:
        """Raises OSError where the head cannot listen, files.Locked where another agent has the state directory."""
        with files.lock(self.config.state_dir / "lock"):
            role = "decides" if self.config.is_head else f"follows {self.config.head.name}"
            self._log(f"{self.config.member} of group {self.config.group}: {role}; {', '.join(self.config.names)}")
            # Before the tasks, whose errors would come as a group of errors.
            server = None
            if self.config.is_head:
                here = self.config.head.address
                server = await wire.serve(here, self.config.port, self._secret, self._answer, self._log_once)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow() if server is None else self._forever(server))
                tasks.create_task(self._observe())
                notify("READY=1")
                while True:
                    self._tick(time.monotonic())
                    notify("WATCHDOG=1")
                    self._wake.clear()
                    # Not wait_for: before Python 3.12 it may swallow a cancellation.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.settings.poll):
                            await self._wake.wait()

    @staticmethod
    async def _forever(server: asyncio.Server) -> None:
        async with server:
            await server.serve_forever()

    # --- every member ---

    def _tick(self, now: float) -> None:
        if self.config.is_head:
            self._decide(now)
        silent = 0.0 if self.config.is_head else now - self._contact
        step = member.step(self.settings, self._member, self._seen(now), self._boot, self._order, silent, now)
        if self._keep(step.member):
            if step.line:
                self._log(step.line)
            if step.action is not None:
                self._acting = asyncio.create_task(self._act(step.action))
        if now - self._metrics_at >= METRICS_EVERY_S:
            self._write_metrics(now)

    def _seen(self, now: float) -> Unit | None:
        if self._acting is not None and not self._acting.done():
            return None
        return self._unit if now - self._unit_at <= self.settings.fresh else None

    def _keep(self, changed: member.Member) -> bool:
        """Whether the member's new record is on disk; nothing is done before it is."""
        if changed.record != self._member.record:
            try:
                store.save_record(self.config.state_dir, changed.record)
            except OSError as error:
                self._complain(
                    "notes", f"notes not written ({error.strerror or error}); no order is obeyed until they are"
                )
                return False
            self._complain("notes", "")
        self._member = changed
        return True

    async def _act(self, action: member.Action) -> None:
        self._turn += 1
        self._unit = None
        call = {
            member.Action.START: self._systemd.start,
            member.Action.STOP: self._systemd.stop,
            member.Action.KILL: self._systemd.kill,
        }[action]
        try:
            await call(self.config.unit)
        except SystemdError as error:
            self._log(f"{action} of {self.config.unit} failed: {error}")
            if action is member.Action.START:
                self._keep(member.refused(self._member, str(error)))
        finally:
            self._turn += 1

    async def _observe(self) -> None:
        while True:
            turn = self._turn
            try:
                seen = await self._systemd.show(self.config.unit)
            except SystemdError as error:
                self._complain("systemd", f"the engine's state is unknown: {error}")
            else:
                self._complain("systemd", "")
                now = time.monotonic()
                age = None if seen.active != "active" or seen.active_since is None else now - seen.active_since
                unit = Unit(seen.active, seen.sub, seen.result, seen.invocation, seen.job, age)
                if turn == self._turn:
                    news = self._unit is None or (unit.active, unit.invocation) != (
                        self._unit.active,
                        self._unit.invocation,
                    )
                    self._unit, self._unit_at = unit, now
                    if news:
                        self._wake.set()
                        self._news.set()
            await asyncio.sleep(self._pace() / 2)

    def _pace(self) -> float:
        state = self._state.phase.value if self.config.is_head else self._group[0]
        return self.settings.poll if state in _CALM else self.settings.poll / 4

    def _report(self, now: float) -> Report:
        return Report(self.config.member, self._boot, self._member.record, self._seen(now))

    def _write_metrics(self, now: float) -> None:
        self._metrics_at = now
        if self.config.textfile is None:
            return
        if self.config.is_head:
            view = self._view(now)
            up = status.member_up(self.config, self._state, view)
            text = metrics.of_head(self._state, up, self._probe, status.left(self.config, self._state), view.wall)
        else:
            reaches = now - self._contact <= self.settings.fresh
            text = metrics.of_follower(self._member.record.seen, reaches_head=reaches, wall=time.time())
        try:
            files.replace(self.config.textfile, text)
            self._complain("metrics", "")
        except OSError as error:
            self._complain("metrics", f"{self.config.textfile} not written: {error.strerror or error}")

    def _complain(self, about: str, text: str) -> None:
        """Say each new complaint once, and that it is over."""
        before = self._said.get(about, "")
        self._said[about] = text
        if text and text != before:
            self._log(text)
        elif before and not text:
            self._log(f"over: {before}")

    def _log_once(self, text: str) -> None:
        if self._said.get("wire") != text:
            self._said["wire"] = text
            self._log(text)

    # --- a member that follows ---

    async def _follow(self) -> None:
        head = self.config.head
        while True:
            began = time.monotonic()
            self._news.clear()
            body = {"challenge": self._challenge, "report": asdict(self._report(began))}
            taken = True
            try:
                limit = min(5.0, self.settings.lost_after / 3)
                answer = await wire.ask(head.address, self.config.port, "/report", body, self._secret, limit)
                taken = self._heed(answer)
            except wire.NotReached as error:
                if error.refused:  # the head's node is there and its agent away for a moment: no reason to stop
                    self._contact = time.monotonic()
                self._complain("head", f"the head's agent is not reached: {error}")
            except (wire.NotTrusted, ValueError, KeyError, TypeError) as error:
                self._complain(
                    "head", f"the head's answer is not to be used: {(str(error) or repr(error)).splitlines()[0]}"
                )
            pause = self._pace() - (time.monotonic() - began) if taken else 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.02, pause)):
                    await self._news.wait()

    def _heed(self, answer: wire.JsonObject) -> bool:
        self._challenge = str(answer["challenge"])
        if not answer["taken"]:
            return False
        self._order = _ORDER.validate_python(answer["order"])
        self._contact = time.monotonic()
        self._complain("head", "")
        group = (str(answer["state"]), int(answer["epoch"]))
        if group != self._group:
            self._group = group
            self._log(f"the group is {group[0]}, epoch {group[1]}")
        self._wake.set()
        return True

    # --- the head ---

    def _view(self, now: float) -> decide.View:
        return decide.View(self.config.names, self._heard, self._probe, now, time.time())

    def _hear(self, report: Report, now: float) -> None:
        before = self._heard.get(report.member)
        known = now if report.unit is not None else before.known_at if before else _NEVER
        self._heard[report.member] = Heard(report, now, known)
        if before is None or before.report != report:
            self._wake.set()

    def _decide(self, now: float) -> None:
        self._probe, self._stamp = probe.read(
            self.config.probe_file, self._probe, self._stamp, self.settings.probe_max_age, now, time.time()
        )
        self._hear(self._report(now), now)
        self._apply(decide.decide(self.settings, self._state, self._view(now)), now)

    def _apply(self, decision: decide.Decision, now: float) -> bool:
        """Write the new state down, say what happened, and only then order it."""
        before = self._state
        if decision.state != before:
            try:
                store.save_state(self.config.state_dir, decision.state, self._boot)
            except OSError as error:
                text = f"the group's state was not written ({error.strerror or error}); nothing is decided until it is"
                self._complain("state", text)
                return False
            self._complain("state", "")
            self._state = decision.state
        for line in decision.lines:
            self._log(line)
        self._orders = decide.orders(self.settings, self._state, self._view(now))
        self._order = self._orders[self.config.member]
        if before.phase is not self._state.phase:
            notify(f"STATUS=group {self._state.phase}, epoch {self._state.epoch}")
            self._write_metrics(now)
        return True

    async def _answer(self, path: str, body: wire.JsonObject) -> wire.JsonObject:
        now = time.monotonic()
        taken = self._challenges.take(body.get("challenge"))
        answer: wire.JsonObject = {"challenge": self._challenges.issue(), "taken": taken}
        if path == "/status":
            return answer | status.summary(self.config, self._state, self._view(now))
        if path == "/report":
            return answer | (self._take_report(body, now) if taken else {})
        if path == "/command":
            return answer | (self._take_command(body, now) if taken else {})
        raise wire.NotTrusted(f"{path} is not known; wanted /report, /command or /status")

    def _take_report(self, body: wire.JsonObject, now: float) -> wire.JsonObject:
        try:
            report = _REPORT.validate_python(body.get("report"))
        except ValidationError as error:
            raise wire.NotTrusted(f"no report: {str(error).splitlines()[0]}") from None
        if report.member not in self.config.names or report.member == self.config.member:
            raise wire.NotTrusted(
                f"{report.member} is no follower of this group; wanted one of {self.config.names[1:]}"
            )
        self._hear(report, now)
        order = self._orders.get(report.member, Order(Verb.HOLD))
        return {"order": asdict(order), "state": self._state.phase.value, "epoch": self._state.epoch}

    def _take_command(self, body: wire.JsonObject, now: float) -> wire.JsonObject:
        verb = body.get("verb")
        command = _COMMANDS.get(verb) if isinstance(verb, str) else None
        if command is None:
            raise wire.NotTrusted(f"command {verb!r} is not known; wanted one of {', '.join(_COMMANDS)}")
        before = self._state
        decision = command(before, self._view(now))
        if not self._apply(decision, now):
            return {"done": False, "text": "the head can't write its state down; see its journal"}
        self._wake.set()
        refused = bool(decision.lines) and decision.lines[0].startswith("refused: ")
        text = decision.lines[0].removeprefix("refused: ") if decision.lines else "nothing to change"
        return {"done": not refused, "changed": self._state != before, "text": text, "state": self._state.phase.value}


def own_notes(directory: Path) -> Record | None:
    """What this member knows when the head does not answer."""
    return store.load_record(directory)[0]
