"""The GPU stack on both nodes: one driver version that moves only when asked, and a gate in front of vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from harness import Done, Lab, configure, make, prometheus, run

Eventually = Callable[[Callable[[], bool], float], bool]

OLD, NEW = "580.95.05", "580.126.09"
NODES = ("gpu-a", "gpu-b")
# Every part that must be of the one version: packages, the fabric manager's program, the loaded module.
_PARTS = (
    "dpkg-query -W -f '${Version}\\n' 'nvidia-*' 'libnvidia-*'; nv-fabricmanager --version; "
    "grep -o ' 580[0-9.]* ' /proc/driver/nvidia/version"
)


def versions(the_lab: Lab, node: str) -> set[str]:
    return set(re.findall(r"580[.]\d+[.]\d+", the_lab.on(node, _PARTS).text))


def held(the_lab: Lab, node: str) -> set[str]:
    return set(the_lab.on(node, "apt-mark showhold").text.split())


def cluster() -> Done:
    return run("coderack", "health", "cluster", "--env", "lab", "--json")


@pytest.fixture
def broken_link(the_lab: Lab, eventually: Eventually) -> Iterator[None]:
    """Link 5 of GPU 3 of gpu-b is down while the test runs; vLLM runs again afterwards."""
    state = "/run/coderack-lab-gpu/state"
    broken = f"(cat {state}.whole; echo gpu.3.link.5.state = 0) > {state}.new; mv {state}.new {state}"
    the_lab.on("gpu-b", f"sudo sh -c 'cp {state} {state}.whole; {broken}'")
    yield
    the_lab.on("gpu-b", f"sudo sh -c 'mv {state}.whole {state}; systemctl reset-failed; systemctl restart vllm'")
    assert eventually(lambda: '"state": "up"' in the_lab.on("gpu-b", "cat /run/coderack/probe.json").text, 120)


def test_the_nodes_are_healthy_and_alike(the_lab: Lab) -> None:
    done = cluster()
    report = json.loads(done.text)
    assert (done.code, report["verdict"], len(report["nodes"])) == (0, "healthy", 2)


def test_health_and_dcgm_are_in_prometheus(the_lab: Lab, eventually: Eventually) -> None:
    healthy = 'coderack_gpu_health_verdict{verdict="healthy"} == 1'
    assert eventually(lambda: {one["metric"]["node"] for one in prometheus(healthy)} == set(NODES), 60)
    assert {one["metric"]["node"] for one in prometheus("DCGM_FI_DEV_GPU_TEMP")} == set(NODES)


def test_a_broken_node_does_not_serve_and_says_why(the_lab: Lab, broken_link: None) -> None:
    assert the_lab.on("gpu-b", "sudo systemctl restart vllm", timeout=180).code != 0
    status = the_lab.on("gpu-b", "systemctl status --no-pager --full vllm").text
    assert "not started, coderack-gate.service failed: gate CLOSED: h100-sxm: nvlink-down: GPU 3 (GPU-" in status
    assert cluster().code == 1
    refused = configure()
    assert refused.code != 0
    assert "gpu-b is not fit to serve" in refused.text


def test_another_driver_version_is_refused_without_the_flag(the_lab: Lab) -> None:
    done = configure("-e", f"nvidia_driver_version={NEW}")
    assert done.code != 0
    assert "nvidia_driver_upgrade=true" in done.text
    assert [versions(the_lab, node) for node in NODES] == [{OLD}, {OLD}]


def test_an_upgrade_of_everything_leaves_the_driver_alone(the_lab: Lab) -> None:
    """The newer version is on offer, and everything else that apt would upgrade may be."""
    for node in NODES:
        the_lab.on(
            node, "sudo apt-get -q update && sudo DEBIAN_FRONTEND=noninteractive apt-get -qy dist-upgrade", timeout=300
        )
    assert [versions(the_lab, node) for node in NODES] == [{OLD}, {OLD}]


def test_with_the_flag_everything_moves_together_and_stays_held(the_lab: Lab, eventually: Eventually) -> None:
    before = [held(the_lab, node) for node in NODES]
    upgraded = configure("-e", f"nvidia_driver_version={NEW}", "-e", "nvidia_driver_upgrade=true")
    assert upgraded.code == 0, upgraded.text
    assert [versions(the_lab, node) for node in NODES] == [{NEW}, {NEW}]
    assert [held(the_lab, node) for node in NODES] == before
    again = configure("-e", f"nvidia_driver_version={NEW}")
    assert again.changed() == dict.fromkeys(("gpu-a", "gpu-b", "ops", "localhost"), 0)
    assert cluster().code == 0
    back = configure("-e", "nvidia_driver_upgrade=true", "--tags", "nvidia_driver")
    assert back.code == 0, back.text
    assert [versions(the_lab, node) for node in NODES] == [{OLD}, {OLD}]
    assert eventually(lambda: make("smoke", "ENV=lab").code == 0, 180)
