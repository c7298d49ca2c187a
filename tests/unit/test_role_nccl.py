"""NCCL's environment as role nccl renders it, and what the role refuses, by Ansible itself."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from .data import REPOSITORY

HCAS = ["mlx5_0", "mlx5_3"]
TEMPLATE = REPOSITORY / "roles/nccl/templates/nccl.env.j2"


@dataclass(frozen=True)
class Case:
    """A GPU node with its variables: `wanted` is what its file sets, or else `refused` why there is none."""

    name: str
    kind: str
    variables: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    alone: bool = False  # the only GPU node of its inventory


CASES = [
    Case("sockets", "none", wanted={"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=lo"}),
    Case(
        "infiniband",
        "infiniband",
        wanted={"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_IB_HCA": "=mlx5_0,mlx5_3"},
    ),
    Case(
        "efa",
        "efa",
        {"nccl_efa_library_dirs": ["/opt/amazon/ofi-nccl/lib"], "nccl_debug": "INFO"},
        {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "=lo", "LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib"},
    ),
    Case(
        "one-node-of-infiniband",
        "infiniband",
        wanted={"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=lo"},
        alone=True,
    ),
    Case(
        "switches",
        "none",
        {"nccl_cuda_device_max_connections": 1, "nccl_extra": {"NCCL_IB_TIMEOUT": 22, "NCCL_DEBUG": 'quo"te $HOME'}},
        {
            "NCCL_SOCKET_IFNAME": "=lo",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "NCCL_IB_TIMEOUT": "22",
            "NCCL_DEBUG": 'quo"te $HOME',
        },
        alone=True,
    ),
    Case(
        "harmful-but-allowed",
        "none",
        {"nccl_extra": {"NCCL_NVLS_ENABLE": 0}, "nccl_allow": ["NCCL_NVLS_ENABLE"]},
        {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_NVLS_ENABLE": "0"},
    ),
    Case(
        "no-hcas",
        "infiniband",
        {"fleet_fabric": {"kind": "infiniband", "devices": []}},
        refused="nccl_hcas of no-hcas is empty",
    ),
    Case("gid-index", "infiniband", {"nccl_extra": {"NCCL_IB_GID_INDEX": 3}}, refused="for RoCE only"),
    Case(
        "provider",
        "efa",
        {"vllm_environment": {"FI_PROVIDER": "efa"}},
        refused="FI_PROVIDER is set in vllm_environment",
    ),
    Case("fork-safe", "none", {"nccl_extra": {"RDMAV_FORK_SAFE": 1}}, refused="breaks newer kernels"),
    Case("not-a-name", "none", {"nccl_extra": {"not a name": 1}}, refused="letters, digits and underscores"),
    Case("connections", "none", {"nccl_cuda_device_max_connections": 33}, refused="wanted is 1 to 32"),
    Case(
        "address",
        "none",
        {"fleet_private_address": "192.0.2.9"},
        refused="No interface of address holds 192.0.2.9",
    ),
]
WRITTEN = [case for case in CASES if case.wanted]
REFUSED = [case for case in CASES if case.refused]


def play(hosts: str, variables: dict[str, Any]) -> dict[str, Any]:
    """The role's preflight, and its template as a message: no node is needed to read what the file would hold."""
    message = f"{{{{ lookup('ansible.builtin.template', '{TEMPLATE}') }}}}"
    preflight = {"name": "nccl", "tasks_from": "preflight", "public": True}
    return {
        "hosts": hosts,
        "gather_facts": False,
        "vars": variables,
        "tasks": [
            {"name": "Check", "ansible.builtin.include_role": preflight},
            {"name": "Render", "ansible.builtin.debug": {"msg": message}},
        ],
    }


def variables_of(case: Case) -> dict[str, Any]:
    devices = HCAS if case.kind == "infiniband" else []
    return {"fleet_fabric": {"kind": case.kind, "devices": devices}} | case.variables


def apply(folder: Path, hosts: dict[str, Any], plays: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The plays over these GPU nodes in one run; what Ansible's JSON output says of each play."""
    common = {
        "fleet_private_address": "127.0.0.1",
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": common}}))
    (folder / "play.yml").write_text(yaml.safe_dump(plays))
    settings = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible" / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_FORKS": "2",
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yml", "play.yml"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    said: list[dict[str, Any]] = json.loads(done.stdout)["plays"]
    return said


def results(said: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Of each node of a play the file that it would get, and the refusal; one of them is empty."""
    files, refusals = {}, {}
    for task in said["tasks"]:
        for host, result in task["hosts"].items():
            if result.get("failed") or result.get("unreachable"):
                refusals[host] = " ".join(str(result["msg"]).split())
            elif task["task"]["name"] == "Render":
                files[host] = str(result["msg"])
    return {host: (files.get(host, ""), refusals.get(host, "")) for host in files.keys() | refusals.keys()}


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Case -> file and refusal: those of a group in one run with a node each, those of a node alone in a play each."""
    group = {case.name: variables_of(case) for case in CASES if not case.alone}
    (together,) = apply(tmp_path_factory.mktemp("group"), group, [play("gpu_nodes", {})])
    found = results(together)
    alone = [case for case in CASES if case.alone]
    plays = [play("gpu-a", variables_of(case)) for case in alone]
    said = apply(tmp_path_factory.mktemp("alone"), {"gpu-a": {}}, plays)
    return found | {case.name: results(one)["gpu-a"] for case, one in zip(alone, said, strict=True)}


def environment(folder: Path) -> dict[str, str]:
    """What a shell reads out of the file; systemd reads the same."""
    script = "set -a; . ./nccl.env; exec env --null"
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    pairs = dict(item.split("=", 1) for item in done.stdout.split("\0") if item)
    return {name: value for name, value in pairs.items() if name not in ("PATH", "PWD", "_", "SHLVL", "OLDPWD")}


@pytest.mark.parametrize("case", WRITTEN, ids=[case.name for case in WRITTEN])
def test_a_profile_sets_what_it_needs_and_nothing_else(
    tmp_path: Path, applied: dict[str, tuple[str, str]], case: Case
) -> None:
    text, refusal = applied[case.name]
    assert refusal == ""
    (tmp_path / "nccl.env").write_text(text)
    assert environment(tmp_path) == case.wanted


def test_every_setting_is_written_with_its_reason_and_source(applied: dict[str, tuple[str, str]]) -> None:
    lines = applied["infiniband"][0].splitlines()
    settings = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    assert len(settings) == 3
    assert all(lines[number - 1].startswith("# ") and lines[number - 1].endswith(")") for number in settings)


@pytest.mark.parametrize("case", REFUSED, ids=[case.name for case in REFUSED])
def test_what_does_harm_or_makes_no_sense_is_refused(applied: dict[str, tuple[str, str]], case: Case) -> None:
    text, refusal = applied[case.name]
    assert case.refused in refusal
    assert text == ""


def test_the_defaults_hold_a_value_for_every_profile_that_a_setting_names() -> None:
    defaults = yaml.safe_load((REPOSITORY / "roles/nccl/defaults/main.yml").read_text())
    specs = yaml.safe_load((REPOSITORY / "roles/nccl/meta/argument_specs.yml").read_text())
    options = specs["argument_specs"]["main"]["options"]
    profiles = set(options["nccl_profile"]["choices"])
    assert all(set(setting["profiles"]) <= profiles for setting in defaults["nccl_settings"])
    assert json.dumps(sorted(defaults)) == json.dumps(sorted(name for name in options if name.startswith("nccl_")))
