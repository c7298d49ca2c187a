"""SIGKILL at any moment of a write: the old file or the new one, never half of one."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coderack.fleet import files, inventory
from coderack.fleet.contract import parse_fleet

from .data import REPOSITORY

NODES = 400
KILLS = 30
# Forks, for every line that it reads, a process that writes both fleets in turn as fast as it can; says its number, and
# then how it ended. So only one Python has to start.
WRITERS = """
import os, sys
from pathlib import Path
from coderack.fleet import inventory
from coderack.fleet.contract import parse_fleet
path, *contracts = map(Path, sys.argv[1:])
fleets = [parse_fleet(contract.read_text()) for contract in contracts]
for _ in sys.stdin:
    writer = os.fork()
    while writer == 0:
        for fleet in fleets:
            inventory.write(fleet, path)
    print(writer, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]), flush=True)
"""


def contract(model: str) -> str:
    nodes = [
        {
            "name": f"node-{number}",
            "role": "gpu" if number else "ops",
            "address": f"10.1.{number // 250}.{number % 250 + 1}",
            "private_address": f"10.1.{number // 250}.{number % 250 + 1}",
            "gpus": {"model": model, "count": 8} if number else {"model": "none", "count": 0},
            "fabric": {"kind": "efa" if number else "none"},
        }
        for number in range(NODES)
    ]
    return json.dumps({"version": 1, "stack": "aws", "nodes": nodes})


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "env" / "hosts.yml"
    path.parent.mkdir()
    texts = set()
    for model in ("NVIDIA H100", "NVIDIA H200"):
        (tmp_path / model[-4:]).write_text(contract(model))
        fleet = parse_fleet(contract(model))
        texts.add(inventory.render(fleet))
        inventory.write(fleet, path)
    seen: set[str] = set()
    chance = random.Random(20270131)  # noqa: S311 - moments to kill at
    command = [sys.executable, "-c", WRITERS, str(path), str(tmp_path / "H100"), str(tmp_path / "H200")]
    environment = {"PYTHONPATH": str(REPOSITORY / "tools")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True, bufsize=1) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for _ in range(KILLS):
            writers.stdin.write("go\n")
            writer = int(writers.stdout.readline())
            time.sleep(chance.uniform(0.02, 0.12))
            os.kill(writer, signal.SIGKILL)
            assert int(writers.stdout.readline()) == -signal.SIGKILL
            text = path.read_text()
            assert text in texts
            seen.add(text)
    assert all(len(inventory.parse(text, "hosts.yml").nodes) == NODES for text in seen)
    # Otherwise no kill ever came in the middle of anything.
    assert seen == texts


def test_the_next_write_removes_what_a_killed_one_left_long_ago(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".hosts.yml.old", tmp_path / ".hosts.yml.fresh"
    for rest in (old, fresh):
        rest.write_text("half")
    os.utime(old, (0, 0))
    files.replace(tmp_path / "hosts.yml", "whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".hosts.yml.fresh", "hosts.yml"]


def test_a_lock_is_held_by_one_and_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with files.lock(path), pytest.raises(files.Locked, match="is held by another run"), files.lock(path):
        pass
    with files.lock(path):
        pass
