"""NCCL's environment as role nccl renders it, and what the role refuses, by Ansible itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .data import REPOSITORY

HCAS = ["mlx5_0", "mlx5_3"]
TEMPLATE = REPOSITORY / "roles/nccl/templates/nccl.env.j2"
PLAY = [
    {
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "tasks": [
            {
                "name": "Check",
                "ansible.builtin.include_role": {"name": "nccl", "tasks_from": "preflight", "public": True},
            },
            {
                "name": "Render",
                "ansible.builtin.copy": {
                    "content": f"{{{{ lookup('ansible.builtin.template', '{TEMPLATE}') }}}}",
                    "dest": "{{ inventory_dir }}/nccl.env",
                    "mode": "0644",
                },
            },
        ],
    }
]


def apply(folder: Path, kind: str, hosts: int = 2, **variables: Any) -> tuple[int, str]:
    """Run the role's preflight for one host of so many and render the file; exit code and output."""
    devices = HCAS if kind == "infiniband" else []
    common = {
        "fleet_private_address": "127.0.0.1",
        "fleet_fabric": {"kind": kind, "devices": devices},
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    names = {f"gpu-{letter}": None for letter in "ab"[:hosts]}
    inventory = {"gpu_nodes": {"hosts": names, "vars": common | variables}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "play.yml").write_text(yaml.safe_dump(PLAY))
    settings = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible" / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_NOCOLOR": "1",
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", "hosts.yml", "--limit", "gpu-a", "play.yml"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def environment(folder: Path) -> dict[str, str]:
    """What a shell reads out of the file; systemd reads the same."""
    script = "set -a; . ./nccl.env; exec env --null"
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    pairs = dict(item.split("=", 1) for item in done.stdout.split("\0") if item)
    return {name: value for name, value in pairs.items() if name not in ("PATH", "PWD", "_", "SHLVL", "OLDPWD")}


@pytest.mark.parametrize(
    ("kind", "hosts", "variables", "wanted"),
    [
        ("none", 2, {}, {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=lo"}),
        (
            "infiniband",
            2,
            {},
            {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_IB_HCA": "=mlx5_0,mlx5_3"},
        ),
        (
            "efa",
            2,
            {"nccl_efa_library_dirs": ["/opt/amazon/ofi-nccl/lib"], "nccl_debug": "INFO"},
            {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "=lo", "LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib"},
        ),
        ("infiniband", 1, {}, {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=lo"}),
        (
            "none",
            1,
            {
                "nccl_cuda_device_max_connections": 1,
                "nccl_extra": {"NCCL_IB_TIMEOUT": 22, "NCCL_DEBUG": 'quo"te $HOME'},
            },
            {
                "NCCL_SOCKET_IFNAME": "=lo",
                "CUDA_DEVICE_MAX_CONNECTIONS": "1",
                "NCCL_IB_TIMEOUT": "22",
                "NCCL_DEBUG": 'quo"te $HOME',
            },
        ),
    ],
    ids=["sockets", "infiniband", "efa", "one node of InfiniBand", "switches"],
)
def test_a_profile_sets_what_it_needs_and_nothing_else(
    tmp_path: Path, kind: str, hosts: int, variables: dict[str, Any], wanted: dict[str, str]
) -> None:
    code, output = apply(tmp_path, kind, hosts, **variables)
    assert code == 0, output
    assert environment(tmp_path) == wanted


def test_every_setting_is_written_with_its_reason_and_source(tmp_path: Path) -> None:
    apply(tmp_path, "infiniband")
    lines = (tmp_path / "nccl.env").read_text().splitlines()
    settings = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    assert len(settings) == 3
    assert all(lines[number - 1].startswith("# ") and lines[number - 1].endswith(")") for number in settings)


@pytest.mark.parametrize(
    ("kind", "variables", "message"),
    [
        ("infiniband", {"fleet_fabric": {"kind": "infiniband", "devices": []}}, "nccl_hcas of gpu-a is empty"),
        ("infiniband", {"nccl_extra": {"NCCL_IB_GID_INDEX": 3}}, "for RoCE only"),
        ("efa", {"vllm_environment": {"FI_PROVIDER": "efa"}}, "FI_PROVIDER is set in vllm_environment"),
        ("none", {"nccl_extra": {"RDMAV_FORK_SAFE": 1}}, "breaks newer kernels"),
        ("none", {"nccl_extra": {"not a name": 1}}, "letters, digits and underscores"),
        ("none", {"nccl_cuda_device_max_connections": 33}, "wanted is 1 to 32"),
        ("none", {"fleet_private_address": "192.0.2.9"}, "No interface of gpu-a holds 192.0.2.9"),
    ],
)
def test_what_does_harm_or_makes_no_sense_is_refused(
    tmp_path: Path, kind: str, variables: dict[str, Any], message: str
) -> None:
    code, output = apply(tmp_path, kind, **variables)
    assert code != 0
    assert message in output
    assert not (tmp_path / "nccl.env").exists()


def test_a_harmful_setting_can_be_wanted_all_the_same(tmp_path: Path) -> None:
    code, output = apply(tmp_path, "none", nccl_extra={"NCCL_NVLS_ENABLE": 0}, nccl_allow=["NCCL_NVLS_ENABLE"])
    assert code == 0, output
    assert environment(tmp_path)["NCCL_NVLS_ENABLE"] == "0"


def test_the_defaults_hold_a_value_for_every_profile_that_a_setting_names() -> None:
    defaults = yaml.safe_load((REPOSITORY / "roles/nccl/defaults/main.yml").read_text())
    specs = yaml.safe_load((REPOSITORY / "roles/nccl/meta/argument_specs.yml").read_text())
    options = specs["argument_specs"]["main"]["options"]
    profiles = set(options["nccl_profile"]["choices"])
    assert all(set(setting["profiles"]) <= profiles for setting in defaults["nccl_settings"])
    assert json.dumps(sorted(defaults)) == json.dumps(sorted(name for name in options if name.startswith("nccl_")))
