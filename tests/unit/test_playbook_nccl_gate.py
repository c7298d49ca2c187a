"""playbooks/nccl-gate.yml from end to end, with programs in place of vLLM's Python that print known outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .data import REPOSITORY
from .nccl_outputs import HCAS, infiniband_log, node, pair

# Prints the output of the test it is asked for, as the node that it plays; notes what it was given.
PROGRAM = """\
#!{python}
import json, os, sys
from pathlib import Path
job = json.load(sys.stdin)
here = Path({folder!r})
kind = "group" if job["nodes"] > 1 else "node"
(here / f"job-{{kind}}-{{job['node']}}").write_text(json.dumps(job))
compile(sys.argv[2], "all_reduce.py", "exec")
print((here / f"{{kind}}-{{job['node']}}.log").read_text())
"""


def program(folder: Path) -> str:
    """A program in this folder that prints the outputs lying there."""
    path = folder / "python"
    path.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
    path.chmod(0o755)
    return str(path)


def write_inventory(folder: Path, hosts: dict[str, Any], **variables: Any) -> None:
    """GPU nodes of eight GPUs with InfiniBand, on this machine."""
    common = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "fleet_gpus": {"model": "NVIDIA H100 80GB HBM3", "count": 8},
        "fleet_fabric": {"kind": "infiniband", "devices": list(HCAS)},
        "nccl_gate_floors": {"node": 440, "group": 440},
    }
    inventory = {"gpu_nodes": {"hosts": hosts, "vars": common | variables}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Two nodes whose tests go well."""
    (tmp_path / "node-0.log").write_text(node(480))
    whole = pair(infiniband_log()).splitlines()
    of_b = [line for line in whole if line.startswith("gpu-b:")]
    (tmp_path / "group-0.log").write_text("\n".join(line for line in whole if line not in of_b))
    (tmp_path / "group-1.log").write_text("\n".join(of_b))
    hosts = {name: {"fleet_private_address": f"10.20.0.{number}"} for number, name in enumerate(("gpu-a", "gpu-b"), 11)}
    write_inventory(tmp_path, hosts, nccl_gate_python=program(tmp_path))
    return tmp_path


def gate(fleet: Path, *options: str, **variables: Any) -> tuple[int, str]:
    """The playbook's exit code and what it said, on one line."""
    code, output = play(fleet, *options, "-e", json.dumps(variables))
    return code, " ".join(output.split())


def play(fleet: Path, *options: str, **environment: str) -> tuple[int, str]:
    settings = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible" / "ansible.cfg"),
        "ANSIBLE_HOME": str(fleet / "home"),
        "ANSIBLE_NOCOLOR": "1",
    }
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        str(fleet / "hosts.yml"),
        *options,
        str(REPOSITORY / "ansible" / "playbooks" / "nccl-gate.yml"),
    ]
    done = subprocess.run(
        command, env=os.environ | settings | environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Nodes, each with a trouble of its own, that one run tests by themselves: what it says of each at its end."""
    folder = tmp_path_factory.mktemp("refused")
    hosts: dict[str, Any] = {}
    for name, output in {"lost-nvls": node(370), "no-floor": node(480), "silent": None}.items():
        (folder / name).mkdir()
        if output is not None:
            (folder / name / "node-0.log").write_text(output)
        hosts[name] = {"nccl_gate_python": program(folder / name), "fleet_private_address": "10.20.0.11"}
    hosts["no-floor"]["nccl_gate_floors"] = {}
    write_inventory(folder, hosts)
    only_node = ("-e", json.dumps({"nccl_gate_tests": ["node"]}))
    code, output = play(folder, *only_node, ANSIBLE_STDOUT_CALLBACK="ansible.posix.json")
    assert code != 0
    ends = json.loads(output)["plays"][0]["tasks"][-1]["hosts"]
    return {host: " ".join(end["msg"].split()) for host, end in ends.items() if end.get("failed")}


def test_healthy_nodes_pass_and_the_reports_are_kept(fleet: Path) -> None:
    reports = fleet / "reports"
    reports.mkdir()
    code, output = gate(fleet, nccl_gate_report_dir=str(reports))
    assert code == 0, output
    group = json.loads((reports / "gpu-a-group.json").read_text())
    assert (group["verdict"], group["busbw_gb_s"], len(group["devices"])) == ("holds", 487.09, 16)
    assert json.loads((reports / "gpu-b-node.json").read_text())["expectation"]["floor"] == 440
    jobs = [json.loads((fleet / f"job-group-{number}").read_text()) for number in (0, 1)]
    assert [(job["node"], job["nodes"], job["head"], job["gpus"]) for job in jobs] == [
        (0, 2, "10.20.0.11", 8),
        (1, 2, "10.20.0.11", 8),
    ]


def test_a_lost_nvls_ends_the_run_with_its_name(refused: dict[str, str]) -> None:
    assert "NVLS lost" in refused["lost-nvls"]
    assert "Exit codes 1 on lost-nvls" in refused["lost-nvls"]


def test_a_node_that_fell_back_to_sockets_fails_the_group(fleet: Path) -> None:
    log = (fleet / "group-1.log").read_text().replace("Using network IB", "Using network Socket")
    (fleet / "group-1.log").write_text(log)
    code, output = gate(fleet, nccl_gate_tests=["group"])
    assert code != 0
    assert "network-not-used" in output


def test_without_a_floor_the_run_says_what_to_record(refused: dict[str, str]) -> None:
    assert "Exit codes 3" in refused["no-floor"]
    assert "record 432" in refused["no-floor"]


def test_a_program_that_prints_nothing_is_not_passed(refused: dict[str, str]) -> None:
    assert "not-finished" in refused["silent"]


def test_a_missing_python_is_named_before_anything_runs(fleet: Path) -> None:
    only_a = ("--limit", "gpu-a")
    code, output = gate(fleet, *only_a, nccl_gate_tests=["node"], nccl_gate_python="/nowhere/bin/python")
    assert code != 0
    assert "There is no /nowhere/bin/python on gpu-a" in output


def test_a_gate_that_would_measure_nothing_does_not_pass(fleet: Path) -> None:
    code, output = gate(fleet, nccl_gate_tests=["group"], fleet_fabric={"kind": "none", "devices": []})
    assert code != 0
    assert "nothing can be measured" in output


def test_half_of_a_group_is_refused(fleet: Path) -> None:
    code, output = gate(fleet, "--limit", "gpu-a")
    assert code != 0
    assert "leaves out gpu-b" in output
