"""Real agents on loopback addresses, with a script in the place of `systemctl` that runs units as real processes."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from coderack.liveness.group import config, store
from coderack.liveness.group.agent import Agent
from coderack.liveness.group.model import Phase, Record

SECRET = b"0123456789abcdef0123456789abcdef"
# Loose enough for a machine that is busy with other things.
TIMING: dict[str, float] = {
    "poll": 0.07,
    "lost_after": 1.0,
    "ready_timeout": 8,
    "restarts": 3,
    "window": 100,
    "backoff": 0.02,
    "backoff_max": 0.1,
    "kill_after": 0.5,
    "stop_timeout": 5,
    "adopt_within": 1,
    "probe_max_age": 1,
    "probe_down_for": 0.5,
}

# What agents ask of systemctl, and no more. A unit is a process under a shell that notes how it ended.
SYSTEMCTL = r"""#!/bin/sh
cd "$(dirname "$0")" || exit 1
echo "$*" >>calls
[ -e hang ] && exec sleep 60
case $2 in
show)
  active=inactive result=success invocation='' since=0
  [ -e unit ] && . ./unit
  job=0; [ -e job ] && job=1
  printf 'ActiveState=%s\nSubState=x\nResult=%s\nInvocationID=%s\nActiveEnterTimestampMonotonic=%s\nJob=%s\n' \
    "$active" "$result" "$invocation" "$since" "$job" ;;
reset-failed) ;;
start)
  [ -e refuse ] && { echo 'Unit vllm.service is masked.' >&2; exit 1; }
  touch job
  setsid ./supervise </dev/null >/dev/null 2>&1 & ;;
stop) [ -e pid ] && kill -TERM "$(cat pid)" 2>/dev/null; true ;;
kill) [ -e pid ] && kill -KILL "$(cat pid)" 2>/dev/null; true ;;
*) echo "unknown $2" >&2; exit 1 ;;
esac
"""
SUPERVISE = r"""#!/bin/sh
read -r up _ </proc/uptime
read -r id </proc/sys/kernel/random/uuid
since=${up%.*}${up#*.}0000
note() {
  printf 'active=%s result=%s invocation=%s since=%s\n' "$1" "$2" "$id" "$since" >unit.new
  mv unit.new unit
}
sleep 300 &
echo $! >pid
note active success
rm -f job
wait $!
code=$?
rm -f pid
case $code in 0|143) note inactive success ;; *) note failed signal ;; esac
"""


class Rig:
    def __init__(self, folder: Path, names: tuple[str, ...] = ("a", "b"), **timing: float) -> None:
        self.folder, self.names = folder, names
        self.timing = {**TIMING, **timing}
        self.port = free_port()
        self.agents: dict[str, asyncio.Task[None]] = {}
        self.running: dict[str, Agent] = {}
        self.lines: list[str] = []
        self.blind = False
        self.proxied: set[str] = set()  # followers that reach the head through 127.0.0.9
        for name in names:
            self._make(name)

    def _make(self, name: str) -> None:
        place = self.folder / name
        (place / "state").mkdir(parents=True)
        for script, text in (("systemctl", SYSTEMCTL), ("supervise", SUPERVISE)):
            (place / script).write_text(text)
            (place / script).chmod(0o755)
        (place / "boot").write_text(f"boot-of-{name}\n")
        (place / "secret").write_bytes(SECRET)
        (place / "secret").chmod(0o600)

    def config(self, name: str) -> Path:
        place = self.folder / name
        addresses = {other: f"127.0.0.{index + 1}" for index, other in enumerate(self.names)}
        if name in self.proxied:
            addresses[self.names[0]] = "127.0.0.9"
        path = place / "group.json"
        path.write_text(
            json.dumps(
                {
                    "schema": config.SCHEMA,
                    "group": "fused-16",
                    "member": name,
                    "members": [{"name": other, "address": address} for other, address in addresses.items()],
                    "port": self.port,
                    "secret_file": str(place / "secret"),
                    "state_dir": str(place / "state"),
                    "probe_file": str(self.folder / "probe.json"),
                    "textfile": str(place / "group.prom"),
                    "systemctl": str(place / "systemctl"),
                    "boot_id_file": str(place / "boot"),
                    "timing": self.timing,
                }
            )
        )
        return path

    # --- agents ---

    def up(self, *names: str) -> None:
        for name in names or self.names:
            agent = Agent(config.load(self.config(name)), SECRET, lambda line, name=name: self.say(name, line))  # type: ignore[misc]
            self.running[name] = agent
            self.agents[name] = asyncio.ensure_future(agent.run())

    def say(self, name: str, line: str) -> None:
        self.lines.append(f"{name}: {line}")

    async def down(self, name: str) -> None:
        task = self.agents.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def probing(self) -> AsyncIterator[None]:
        """The token probe's file, as long as the block lasts; afterwards nothing runs any more."""
        task = asyncio.ensure_future(self._probe())
        try:
            yield
        finally:
            task.cancel()
            for name in list(self.agents):
                await self.down(name)
            for name in self.names:
                self.kill(name)

    async def _probe(self) -> None:
        began, token, token_at = time.monotonic(), 0.0, 0.0
        while True:
            states = [self.active(name) for name in self.names]
            if set(states) != {"active"}:
                began = time.monotonic()
            if time.monotonic() - began > 0.1:
                token, token_at = time.monotonic(), time.time()
            up = time.monotonic() - token < 0.3  # it needs a few failed rounds before it says more
            if not self.blind:
                state = "up" if up else "down" if "active" in states else "stopped"
                file = self.folder / "probe.json.new"
                ranks = [{"rank": 0, "last_token": token_at or None}]
                body = {"schema": "coderack.token-probe/1", "time": time.time(), "state": state, "ranks": ranks}
                file.write_text(json.dumps(body))
                file.rename(self.folder / "probe.json")
            await asyncio.sleep(0.05)

    # --- units ---

    def unit(self, name: str) -> dict[str, str]:
        try:
            return dict(re.findall(r"(\w+)=(\S*)", (self.folder / name / "unit").read_text()))
        except FileNotFoundError:
            return {}

    def active(self, name: str) -> str:
        return self.unit(name).get("active", "inactive")

    def invocations(self) -> list[str]:
        return [self.unit(name).get("invocation", "") for name in self.names]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / name / "pid").read_text()), number)

    # --- looking ---

    def record(self, name: str) -> Record:
        return store.load_record(self.folder / name / "state")[0] or Record()

    @property
    def phase(self) -> Phase:
        return self.running[self.names[0]]._state.phase

    @property
    def epoch(self) -> int:
        return self.running[self.names[0]]._state.epoch

    def as_one(self, epoch: int) -> bool:
        """Running in this epoch, by the head's word, by everybody's notes and by the processes."""
        return (
            (self.phase, self.epoch) == (Phase.RUNNING, epoch)
            and all(self.active(name) == "active" for name in self.names)
            and all((started := self.record(name).started) and started.epoch == epoch for name in self.names)
        )

    async def until(self, holds: Callable[[], bool], seconds: float = 8) -> None:
        end = time.monotonic() + seconds
        while not holds():
            for name, task in self.agents.items():
                assert not task.done(), f"the agent of {name} ended: {task}"
            assert time.monotonic() < end, "\n".join([*self.lines, str([self.unit(name) for name in self.names])])
            await asyncio.sleep(0.02)


class Proxy:
    """A link to the head that can be cut: what goes in then gets no answer."""

    def __init__(self, port: int) -> None:
        self.port, self.cut = port, False
        self._server: Any = None

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connected, "127.0.0.9", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while self.cut:
                await asyncio.sleep(0.05)
            there, back = await asyncio.open_connection("127.0.0.1", self.port)
            await asyncio.gather(pump(reader, back), pump(there, writer))


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(4096):
            target.write(data)
            await target.drain()
    target.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
