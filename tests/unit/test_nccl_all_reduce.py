"""The gate's own all-reduce, with real torch over gloo on the CPU, read by the same parser. Needs the lab's cache."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from coderack.clients.nccl_tests import parse

from .data import REPOSITORY

PROGRAM = (REPOSITORY / "roles/nccl/files/all_reduce.py").read_text()
CACHE = Path(os.environ.get("CODERACK_LAB_CACHE", "/var/cache/coderack-lab"))


@pytest.fixture(scope="module")
def python() -> str:
    found = sorted(CACHE.glob("vllm-*/opt/bin/python"))
    if not found:
        pytest.skip(
            f"no Python with torch below {CACHE}: the gate's all-reduce is NOT TESTED; make lab-cache brings one"
        )
    return str(found[-1])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(python: str, port: int, *, nodes: int, node: int, gpus: int, timeout: int = 100) -> subprocess.Popen[str]:
    job = {
        "nodes": nodes,
        "node": node,
        "gpus": gpus,
        "head": "127.0.0.1",
        "port": port,
        "sizes": [262144, 1048576],
        "iterations": 2,
        "timeout": timeout,
        "backend": "gloo",
    }
    process = subprocess.Popen(
        [python, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(job))
    process.stdin.close()
    process.stdin = None
    return process


def test_the_ranks_of_two_nodes_print_one_table(python: str) -> None:
    port = free_port()
    both = [start(python, port, nodes=2, node=number, gpus=2) for number in (0, 1)]
    outputs = [process.communicate(timeout=150)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    run = parse(outputs[0])
    assert [row.size for row in run.rows] == [262144, 1048576]
    assert all(row.wrong == 0 and row.busbw > 0 for row in run.rows)
    assert (run.complete, run.out_of_bounds, len(run.devices)) == (True, 0, 4)
    assert parse(outputs[1]).rows == ()


def test_a_node_that_never_comes_ends_the_wait_and_is_not_complete(python: str) -> None:
    process = start(python, free_port(), nodes=2, node=0, gpus=1, timeout=4)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "GPUs 0 of" in output
    assert not parse(output).complete
