"""Which doors are open: every TCP port of every node, tried from the operations node and from a stranger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Lab, run

SCAN = Path(__file__).with_name("scan.py")
LAB, BRIDGE, STRANGER, ADDRESS = "coderack-lab", "br-lab", "coderack-stranger", "10.77.0.77"
# vLLM's API (on the head of a group, or on every replica), node exporter, DCGM exporter, token probe.
GPU_PORTS_FOR_OPS = {8000, 9100, 9400}


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    """A network namespace on the lab's network that is none of its nodes."""
    assert run("ip", "netns", "add", STRANGER).code == 0
    try:
        for command in (
            f"ip -n {LAB} link add stranger type veth peer name eth0 netns {STRANGER}",
            f"ip -n {LAB} link set stranger master {BRIDGE} up",
            f"ip -n {STRANGER} address add {ADDRESS}/24 dev eth0",
            f"ip -n {STRANGER} link set eth0 up",
            f"ip -n {STRANGER} link set lo up",
        ):
            assert run(*command.split()).code == 0
        yield STRANGER
    finally:
        run("ip", "netns", "delete", STRANGER)


def ports(output: str) -> set[int]:
    return set(json.loads(output.strip().splitlines()[-1]))


def from_ops(the_lab: Lab, node: str) -> set[int]:
    return ports(
        the_lab.on("ops", f"python3 - {the_lab.addresses[node]} <<'EOF'\n{SCAN.read_text()}\nEOF", timeout=200).text
    )


def from_stranger(the_lab: Lab, namespace: str, node: str) -> set[int]:
    return ports(run("ip", "netns", "exec", namespace, "python3", str(SCAN), the_lab.addresses[node]).text)


@pytest.mark.parametrize("node", ["gpu-a", "gpu-b"])
def test_the_operations_node_reaches_what_it_asks_and_nothing_else(the_lab: Lab, node: str) -> None:
    assert from_ops(the_lab, node) == GPU_PORTS_FOR_OPS


@pytest.mark.parametrize("node", ["gpu-a", "gpu-b"])
def test_a_stranger_reaches_nothing_of_a_gpu_node(the_lab: Lab, stranger: str, node: str) -> None:
    assert from_stranger(the_lab, stranger, node) == set()


def test_a_stranger_reaches_the_gateway_and_nothing_else(the_lab: Lab, stranger: str) -> None:
    assert from_stranger(the_lab, stranger, "ops") == {443}
