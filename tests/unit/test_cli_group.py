"""`coderack group` on a group whose agents are real processes, and what it says where there is none."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coderack.cli.main import app

from .group_rig import Rig

RUN = CliRunner()
TOOLS = Path(__file__).parents[2] / "tools"


class Processes:
    """The two agents as processes, and the probe's file kept fresh while something is waited for."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.agents: dict[str, subprocess.Popen[str]] = {}

    def up(self, name: str) -> None:
        command = [sys.executable, "-m", "coderack.cli.main", "group", "agent", "--config", str(self.rig.config(name))]
        self.agents[name] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TOOLS)},
        )

    def end(self, name: str, number: int = signal.SIGKILL) -> str:
        agent = self.agents.pop(name)
        agent.send_signal(number)
        return agent.communicate(timeout=10)[0]

    def status(self, *arguments: str, on: str = "b") -> tuple[int, str]:
        done = RUN.invoke(app, ["group", "status", "--config", str(self.rig.folder / on / "group.json"), *arguments])
        return done.exit_code, done.output

    def until(self, holds: Callable[[], bool], seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while True:
            active = {self.rig.active(name) for name in self.rig.names}
            state = "up" if active == {"active"} else "down"
            file = self.rig.folder / "probe.json.new"
            file.write_text(json.dumps({"schema": "coderack.probe/1", "time": time.time(), "state": state}))
            file.rename(self.rig.folder / "probe.json")
            if holds():
                return
            assert time.monotonic() < end, self.status()
            time.sleep(0.05)

    def as_one(self) -> bool:
        return self.status("--json")[0] == 0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(Rig(tmp_path))
    for name in ("a", "b"):
        processes.up(name)
    yield processes
    for name in list(processes.agents):
        processes.end(name)
    for name in ("a", "b"):
        processes.rig.kill(name)


def test_a_group_of_processes_is_seen_and_steered_from_any_node(group: Processes) -> None:
    group.until(group.as_one)
    group.end("a")  # SIGKILL to the head's agent, and to an engine while it is away
    code, text = group.status()
    assert code == 3
    assert "the head a does not say" in text
    assert "this node's last epoch is 1" in text
    group.rig.kill("b")
    group.up("a")
    group.until(lambda: group.as_one() and json.loads(group.status("--json")[1])["epoch"] == 2)
    seen = json.loads(group.status("--json", on="a")[1])
    assert (seen["schema"], seen["verdict"], seen["last_restart"]["reason"]) == (
        "coderack.group/1",
        "running",
        "engine_failed",
    )
    assert [member["epoch"] for member in seen["members"]] == [2, 2]
    done = RUN.invoke(app, ["group", "stop", "--wait", "5", "--config", str(group.rig.folder / "b" / "group.json")])
    assert (done.exit_code, done.output.rsplit(";", 1)[1].strip()) == (0, "the group is stopped")
    code, text = group.status()
    assert code == 1
    assert "restarts left: 1 of 3" in text
    said = group.end("b", signal.SIGTERM)
    assert "stopping the engine, as the head orders" in said


def invoke(*arguments: str) -> tuple[int, str]:
    done = RUN.invoke(app, ["group", *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize("verb", ["agent", "status", "start", "stop", "restart", "resume"])
def test_a_node_without_a_group_is_bad_input(verb: str, tmp_path: Path) -> None:
    code, text = invoke(verb, "--config", str(tmp_path / "none"))
    assert code == 2
    assert "role vllm_group writes it" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"member": "x"}, "member is 'x'; wanted one of a, b"),
        ({"members": [{"name": "a", "address": "127.0.0.1"}]}, "at least 2 items"),
        (
            {"members": [{"name": "a", "address": "host"}, {"name": "b", "address": "127.0.0.2"}]},
            "wanted a numeric one",
        ),
        (
            {"members": [{"name": "a", "address": "127.0.0.1"}, {"name": "b", "address": "127.0.0.1"}]},
            "the same address twice",
        ),
        ({"port": 0}, "port is 0"),
        ({"unit": "--all.service"}, "unit is"),
        ({"timing": {"poll": 1e300}}, "timing.poll"),
        ({"timing": {"lost_after": 1}}, "wanted three polls or more"),
        ({"timing": {"window": 60}}, "budget would never be used up"),
        ({"surprise": "☃"}, "surprise is not a known key"),
        ({"schema": "other/1"}, "coderack.group-config/1"),
    ],
)
def test_a_wrong_configuration_is_refused_with_what_is_wanted(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = Rig(tmp_path).config("a")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, text = invoke("status", "--config", str(path))
    assert code == 2
    assert said in text


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"x"', "[" * 5000])
def test_a_configuration_that_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(text)
    assert invoke("status", "--config", str(path))[0] == 2


@pytest.mark.parametrize(("mode", "content", "said"), [(0o640, b"x" * 40, "wanted 0600"), (0o600, b"x", "1 bytes")])
def test_a_secret_that_is_none_is_refused(mode: int, content: bytes, said: str, tmp_path: Path) -> None:
    path = Rig(tmp_path).config("a")
    (tmp_path / "a" / "secret").write_bytes(content)
    (tmp_path / "a" / "secret").chmod(mode)
    code, text = invoke("status", "--config", str(path))
    assert code == 2
    assert said in text
