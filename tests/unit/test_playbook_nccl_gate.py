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


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Two nodes of eight GPUs with InfiniBand, whose tests go well."""
    program = tmp_path / "python"
    program.write_text(PROGRAM.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    (tmp_path / "node-0.log").write_text(node(480))
    whole = pair(infiniband_log()).splitlines()
    of_b = [line for line in whole if line.startswith("gpu-b:")]
    (tmp_path / "group-0.log").write_text("\n".join(line for line in whole if line not in of_b))
    (tmp_path / "group-1.log").write_text("\n".join(of_b))
    variables = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "fleet_gpus": {"model": "NVIDIA H100 80GB HBM3", "count": 8},
        "fleet_fabric": {"kind": "infiniband", "devices": list(HCAS)},
        "nccl_gate_python": str(program),
        "nccl_gate_floors": {"node": 440, "group": 440},
    }
    hosts = {name: {"fleet_private_address": f"10.20.0.{number}"} for number, name in enumerate(("gpu-a", "gpu-b"), 11)}
    inventory = {"gpu_nodes": {"hosts": hosts, "vars": variables}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    return tmp_path


def gate(fleet: Path, *options: str, **variables: Any) -> tuple[int, str]:
    settings = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible" / "ansible.cfg"),
        "ANSIBLE_HOME": str(fleet / "home"),
        "ANSIBLE_NOCOLOR": "1",
    }
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        str(fleet / "hosts.yml"),
        "-e",
        json.dumps(variables),
        *options,
        str(REPOSITORY / "ansible" / "playbooks" / "nccl-gate.yml"),
    ]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


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


def test_a_lost_nvls_ends_the_run_with_its_name(fleet: Path) -> None:
    (fleet / "node-0.log").write_text(node(370))
    code, output = gate(fleet, nccl_gate_tests=["node"])
    assert code != 0
    assert "NVLS lost" in output
    assert "Exit codes 1 on gpu-a" in output


def test_a_node_that_fell_back_to_sockets_fails_the_group(fleet: Path) -> None:
    log = (fleet / "group-1.log").read_text().replace("Using network IB", "Using network Socket")
    (fleet / "group-1.log").write_text(log)
    code, output = gate(fleet)
    assert code != 0
    assert "network-not-used" in output


def test_without_a_floor_the_run_says_what_to_record(fleet: Path) -> None:
    code, output = gate(fleet, nccl_gate_floors={}, nccl_gate_tests=["node"])
    assert code != 0
    assert "Exit codes 3" in output
    assert "record 432" in output


def test_a_program_that_prints_nothing_is_not_passed(fleet: Path) -> None:
    (fleet / "node-0.log").unlink()
    code, output = gate(fleet, nccl_gate_tests=["node"])
    assert code != 0
    assert "not-finished" in output


def test_a_missing_python_is_named_before_anything_runs(fleet: Path) -> None:
    code, output = gate(fleet, nccl_gate_python="/nowhere/bin/python")
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
