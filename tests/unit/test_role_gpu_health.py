"""What role gpu_health makes of an environment: the profile that the node is judged by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from coderack.health import expectations

from .data import REPOSITORY

FABRICS: dict[str, dict[str, Any]] = {
    "infiniband": {"kind": "infiniband", "devices": ["mlx5_0", "mlx5_3"]},
    "efa": {"kind": "efa", "devices": []},
    "none": {"kind": "none", "devices": []},
}
PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "connection": "local",
        "tasks": [
            {"ansible.builtin.include_role": {"name": role, "tasks_from": task, "public": True}}
            for role, task in (("gpu_health", "preflight"),)
        ]
        + [{"ansible.builtin.debug": {"msg": "{{ gpu_health_wanted }}"}}],
    }
]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Kind of fabric -> the content of /etc/coderack/health.yml, by one run of Ansible over a host of each kind."""
    folder = tmp_path_factory.mktemp("ansible")
    hosts = {
        name: {
            "fabric_kind": fabric["kind"],
            "fabric_devices": fabric["devices"],
            "fleet_gpus": {"count": 8},
            "gpu_health_profile": "h100-sxm",
            "gpu_health_overrides": {"limits": {"boot_grace_seconds": 300}},
        }
        for name, fabric in FABRICS.items()
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    (folder / "play.yml").write_text(yaml.safe_dump(PLAY))
    settings = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible/ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(REPOSITORY / "roles"),
        "ANSIBLE_HOME": str(folder),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", "hosts.yml", "play.yml"],
        cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for name in FABRICS:
        printed = done.stdout.split(f"ok: [{name}] => ", 1)[1]
        found[name] = json.JSONDecoder().raw_decode(printed[printed.index("{") :])[0]["msg"]
    return found


@pytest.mark.parametrize("kind", FABRICS)
def test_the_node_is_judged_by_the_fabric_that_it_has(judged: dict[str, dict[str, Any]], kind: str) -> None:
    profile = expectations.built(judged[kind], kind)
    assert (profile.network.kind, profile.network.wanted_count) == {
        "infiniband": ("infiniband", 2),
        "efa": ("efa", 32),
        "none": ("none", None),
    }[kind]
    assert profile.limits.boot_grace_seconds == 300
    assert profile.nvlink.links == 18


@pytest.mark.parametrize("environment", ["aws", "baremetal", "lab"])
def test_the_environments_profiles_hold_together(environment: str) -> None:
    variables = yaml.safe_load((REPOSITORY / f"inventories/{environment}/group_vars/gpu_nodes.yml").read_text())
    wanted = {"profile": variables["gpu_health_profile"]} | variables.get("gpu_health_overrides", {})
    assert expectations.built(wanted, environment).gpus.count == 8
