"""The environments that come with the project, as Ansible itself reads them."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .data import REPOSITORY

HCAS = ["mlx5_0", "mlx5_3"]


def hosts(address: str, kind: str, devices: list[str]) -> dict[str, Any]:
    """An inventory as `coderack fleet write` makes it, of one GPU node."""
    fabric = {"kind": kind, "devices": devices}
    node = {"ansible_host": address, "fleet_private_address": "10.20.0.11", "fleet_fabric": fabric}
    return {"all": {"vars": {"fleet_region": "us-west-2"}, "children": {"gpu_nodes": {"hosts": {"gpu-a": node}}}}}


def run(program: str, *arguments: str, home: Path) -> str:
    settings = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible" / "ansible.cfg"),
        "ANSIBLE_HOME": str(home),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(
        command, env=os.environ | settings, cwd=home, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the environment, to which a test adds its hosts."""
    copied = tmp_path / str(request.param)
    ignored = shutil.ignore_patterns("hosts.yml", "secrets", "*.tfstate*", "terraform.tfvars")
    shutil.copytree(REPOSITORY / "inventories" / str(request.param), copied, ignore=ignored)
    return copied


def value(environment: Path, variable: str) -> Any:
    """A variable of gpu-a as a task would see it."""
    task = ("-m", "ansible.builtin.debug", "-a", f"var={variable}")
    printed = run("ansible", "gpu-a", "-i", str(environment), "-c", "local", *task, home=environment.parent)
    return json.loads(printed.partition("=>")[2])[variable]


def put_hosts(environment: Path, address: str, kind: str = "none", devices: list[str] | None = None) -> None:
    (environment / "hosts.yml").write_text(yaml.safe_dump(hosts(address, kind, devices or [])), encoding="utf-8")


@pytest.mark.parametrize("environment", ["aws"], indirect=True)
def test_an_instance_id_is_reached_by_session_manager_in_the_fleets_region(environment: Path) -> None:
    put_hosts(environment, "i-0123456789abcdef0", "efa")
    options = shlex.split(value(environment, "ansible_ssh_common_args"))
    assert options == [
        "-o",
        "ProxyCommand=aws ssm start-session --region us-west-2 --target %h --document-name AWS-StartSSHSession"
        " --parameters portNumber=%p",
        "-o",
        f"UserKnownHostsFile={environment}/known_hosts",
        "-o",
        "StrictHostKeyChecking=yes",
    ]


@pytest.mark.parametrize("environment", ["aws", "baremetal"], indirect=True)
def test_an_address_is_reached_directly_and_only_with_a_pinned_key(environment: Path) -> None:
    put_hosts(environment, "10.20.0.11")
    options = shlex.split(value(environment, "ansible_ssh_common_args"))
    assert options == ["-o", f"UserKnownHostsFile={environment}/known_hosts", "-o", "StrictHostKeyChecking=yes"]


@pytest.mark.parametrize("environment", ["lab"], indirect=True)
def test_the_labs_nodes_are_no_exception(environment: Path) -> None:
    put_hosts(environment, "10.77.0.4")
    options = shlex.split(value(environment, "ansible_ssh_common_args"))
    checks = [option for option in options if option.startswith(("UserKnownHostsFile", "StrictHostKeyChecking"))]
    assert checks == [f"UserKnownHostsFile={environment}/known_hosts", "StrictHostKeyChecking=yes"]


@pytest.mark.parametrize("environment", ["aws", "baremetal"], indirect=True)
def test_the_floors_of_the_nccl_gate_are_recorded_and_reachable(environment: Path) -> None:
    put_hosts(environment, "10.20.0.11", "efa")
    floors = value(environment, "nccl_gate_floors")
    assert floors.keys() == {"node", "group"}
    # 480 GB/s is the peak of eight H100 with NVLS (nccl-tests #212); above 370 a lost NVLS cannot pass.
    assert all(370 < floor < 480 for floor in floors.values())


@pytest.mark.parametrize("environment", ["aws", "baremetal"], indirect=True)
def test_only_hosts_yml_is_an_inventory(environment: Path) -> None:
    """Terraform's files beside it are not: as JSON, a reservation would even pass for one."""
    put_hosts(environment, "10.20.0.11")
    (environment / "reservation.auto.tfvars.json").write_text('{"capacity": {"hosts": {"ghost": {}}}}')
    (environment / "terraform.tfvars").write_text("nodes = []\n")
    (environment / "terraform.tfstate").write_text("{}")
    (environment / "bootstrap.tfstate").write_text("{}")
    (environment / "backend.hcl").write_text('bucket = "x"\n')
    (environment / "known_hosts").write_text("10.20.0.11 ssh-ed25519 AAAA\n")
    (environment / "terraform.tfstate.backup").write_text("{}")
    (environment / "bootstrap.tfstate.backup").write_text("{}")
    listed = json.loads(run("ansible-inventory", "-i", str(environment), "--list", home=environment.parent))
    assert listed["_meta"]["hostvars"].keys() == {"gpu-a"}
    assert "capacity" not in listed
