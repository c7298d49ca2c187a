"""The service of role vllm as Ansible renders it for every kind of node, and what the role refuses."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .data import REPOSITORY

ROLE = REPOSITORY / "roles/vllm"
STAND_IN = ROLE / "molecule/default/files"
LOCK = ROLE / "files/vllm-0.32.0.lock"
KEY = "0123456789abcdef-secret"
# Of roles/vllm/defaults that a playbook gets by the role.
ROLE_FILES = {"role_path": str(ROLE), "vllm_profiles_dir": str(REPOSITORY / "inventories/profiles")}
# Names that vLLM 0.32 knows (vllm/envs.py); it refuses to start with another.
KNOWN = {
    "VLLM_CACHE_ROOT",
    "VLLM_ENGINE_READY_TIMEOUT_S",
    "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR",
    "VLLM_HOST_IP",
    "VLLM_NO_USAGE_STATS",
    "VLLM_TUNED_CONFIG_FOLDER",
}


def playbook(folder: Path, play: dict[str, Any], groups: dict[str, dict[str, dict[str, Any]]]) -> tuple[int, str]:
    """Run a play on hosts that are all this machine; exit code and output."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {name: {"hosts": hosts, "vars": local} for name, hosts in groups.items()}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    settings = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible" / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_NOCOLOR": "1",
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", "hosts.yml", "play.yml"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def node(address: str, group: list[str], profile: str, **variables: Any) -> dict[str, Any]:
    return {
        "fleet_private_address": address,
        "vllm_hosts": group,
        "vllm_profile": profile,
        "vllm_probe": {"stdout": "interface: ens5"},
        **variables,
    }


FUSED, SPLIT = ["gpu-a", "gpu-b"], ["replica-a", "replica-b"]
NODES = {
    "gpu-a": node("10.77.0.10", FUSED, "fused-16", vllm_api_key=KEY, vllm_tuned_config_folder="/srv/tuned"),
    "gpu-b": node("10.77.0.11", FUSED, "fused-16", vllm_api_key=KEY),
    "replica-a": node("10.77.0.12", SPLIT, "split-8", vllm_colour="green", vllm_required_units=[]),
    "replica-b": node("10.77.0.13", SPLIT, "split-8"),
}
TEMPLATES = ("vllm.service", "vllm.env", "vllm-key.env", "firewall.nft")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of every node of NODES, one folder each."""
    folder = tmp_path_factory.mktemp("vllm")
    for name in NODES:
        (folder / name).mkdir()
    lookups = ", ".join(
        f"'{name}': lookup('ansible.builtin.template', '{ROLE}/templates/{name}.j2')" for name in TEMPLATES
    )
    dump = {
        "content": f"{{{{ {{{lookups}}} | to_json }}}}",
        "dest": f"{folder}/{{{{ inventory_hostname }}}}/all.json",
        "mode": "0600",
    }
    play = {
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "vars_files": [f"{ROLE}/vars/main.yml"],
        "tasks": [{"ansible.builtin.copy": dump}],
    }
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    hosts = {name: {**defaults, **ROLE_FILES, **variables} for name, variables in NODES.items()}
    operations = {"ops": {"fleet_private_address": "10.77.0.20"}}
    code, output = playbook(folder, play, {"gpu_nodes": hosts, "ops_nodes": operations})
    assert code == 0, output
    (folder / "hosts.yml").unlink()  # it holds the key
    for name in NODES:
        bundle = folder / name / "all.json"
        for file, text in json.loads(bundle.read_text()).items():
            (folder / name / file).write_text(text)
        bundle.unlink()
    return folder


def settings_of(unit: Path) -> dict[str, list[str]]:
    text = unit.read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            found.setdefault(name, []).append(" ".join(value.split()))
    return found


@pytest.fixture
def units(rendered: Path) -> dict[str, dict[str, list[str]]]:
    return {name: settings_of(rendered / name / "vllm.service") for name in NODES}


Units = dict[str, dict[str, list[str]]]


def test_a_node_runs_the_link_of_its_colour(units: Units) -> None:
    assert units["gpu-a"]["ExecStart"][0].startswith("/opt/vllm/blue/bin/vllm serve ")
    assert units["replica-a"]["ExecStart"][0].startswith("/opt/vllm/green/bin/vllm serve ")


def test_only_replicas_are_restarted_by_systemd(units: Units) -> None:
    assert (units["gpu-a"]["Restart"], units["gpu-a"]["StartLimitIntervalSec"]) == (["no"], ["0"])
    assert units["replica-a"]["Restart"] == ["always"]
    assert units["replica-a"]["StartLimitBurst"] == ["3"]


def test_required_units_are_started_with_all_rights_before_every_start(units: Units) -> None:
    wanted = "+/usr/local/lib/coderack/vllm-require coderack-gate.service coderack-weights.service"
    assert units["gpu-a"]["ExecStartPre"][0] == wanted
    assert int(units["gpu-a"]["TimeoutStartSec"][0]) > 600  # the health gate may wait that long for an answer
    assert not any("vllm-require" in command for command in units["replica-a"]["ExecStartPre"])


def test_the_stop_takes_longer_than_the_drain_and_leaves_nothing(units: Units) -> None:
    assert units["gpu-a"]["KillMode"] == ["mixed"]
    drain = re.search(r"--shutdown-timeout (\d+)", units["gpu-a"]["ExecStart"][0])
    assert drain is not None
    assert int(units["gpu-a"]["TimeoutStopSec"][0]) > int(drain[1])


def test_unknown_vllm_variables_end_the_start(units: Units) -> None:
    assert all("--fail-on-environ-validation" in unit["ExecStart"][0] for unit in units.values())


@pytest.mark.parametrize("name", NODES)
def test_vllm_knows_every_variable_that_it_is_given(rendered: Path, name: str) -> None:
    names = set(re.findall(r"^(VLLM_\w+)=", (rendered / name / "vllm.env").read_text(), re.MULTILINE))
    assert names <= KNOWN
    assert ("VLLM_TUNED_CONFIG_FOLDER" in names) == (name == "gpu-a")


def test_caches_belong_to_one_environment(rendered: Path) -> None:
    fingerprint = hashlib.sha256(LOCK.read_text().rstrip().encode()).hexdigest()[:12]
    assert f'VLLM_CACHE_ROOT="/var/cache/vllm/0.32.0-{fingerprint}/vllm"' in (rendered / "gpu-a/vllm.env").read_text()


def test_the_api_key_is_in_its_own_file_only(rendered: Path) -> None:
    holding = {path.relative_to(rendered) for path in rendered.rglob("*") if path.is_file() and KEY in path.read_text()}
    assert {str(path) for path in holding} == {"gpu-a/vllm-key.env", "gpu-b/vllm-key.env"}
    assert "VLLM_API_KEY" not in (rendered / "replica-a/vllm-key.env").read_text()


def test_the_api_is_open_to_operations_and_engine_ports_to_peers(rendered: Path) -> None:
    fused = (rendered / "gpu-a/firewall.nft").read_text()
    assert "ip saddr { 10.77.0.20 } tcp dport 8000 accept" in fused
    assert "ip saddr { 10.77.0.11 } tcp dport { 8000, 13345, 50000-59999 } accept" in fused
    assert "50000" not in (rendered / "replica-a/firewall.nft").read_text()


def systemd_analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_finds_the_exposure_of_a_unit_with_gpus_acceptable(rendered: Path) -> None:
    unit = rendered / "gpu-a/vllm.service"
    done = systemd_analyze("security", "--offline=true", "--no-pager", "--threshold=40", unit)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert "Overall exposure level" in done.stdout


@pytest.mark.parametrize("name", NODES)
def test_systemd_understands_every_line(rendered: Path, tmp_path: Path, name: str) -> None:
    unit = tmp_path / "vllm.service"
    text = (rendered / name / "vllm.service").read_text()
    # Programs that are on nodes only.
    unit.write_text(re.sub(r"/opt/vllm/\w+/bin/vllm\b|/usr/local/lib/coderack/vllm-require", "/bin/true", text))
    done = systemd_analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def refused(folder: Path, **differing: Any) -> str:
    """What the preflight says about a fused group whose second node has other variables."""
    role = {"name": "Check", "ansible.builtin.include_role": {"name": "vllm", "tasks_from": "preflight"}}
    play = {"hosts": "gpu_nodes", "gather_facts": False, "any_errors_fatal": True, "tasks": [role]}
    common = {"vllm_profile": "fused-16", "vllm_profiles_dir": ROLE_FILES["vllm_profiles_dir"]}
    hosts = {name: {**common, "fleet_private_address": "127.0.0.1"} for name in FUSED}
    hosts["gpu-b"] |= differing
    code, output = playbook(
        folder, play, {"gpu_nodes": hosts, "ops_nodes": {"ops": {"fleet_private_address": "127.0.0.1"}}}
    )
    assert code != 0
    return output


def test_nodes_of_a_group_that_would_not_run_the_same_are_refused(tmp_path: Path) -> None:
    output = refused(
        tmp_path, vllm_rpc_port=14000, vllm_environment={"VLLM_LOGGING_LEVEL": "DEBUG", "NCCL_DEBUG": "INFO"}
    )
    assert "Only gpu-a has data-parallel-rpc-port 13345. " in output
    assert "Only gpu-b has data-parallel-rpc-port 14000; VLLM_LOGGING_LEVEL=DEBUG. " in output


def test_wrong_values_are_refused_with_what_is_wanted(tmp_path: Path) -> None:
    output = refused(
        tmp_path,
        vllm_environment={"VLLM_API_KEY": KEY},
        vllm_api_key="short",
        vllm_lock_file="/nowhere/vllm.lock",
        vllm_required_units=["a gate"],
        vllm_rpc_port=8000,
    )
    for message in (
        "vllm_environment holds VLLM_API_KEY; wanted is vllm_api_key",
        "vllm_api_key has 5 characters; wanted are 16 or more",
        "vllm_lock_file is /nowhere/vllm.lock, which is not there or empty",
        "vllm_required_units is a gate; wanted are names of units",
        "vllm_port and vllm_rpc_port are both 8000; wanted are two ports",
    ):
        assert message in output
    assert KEY not in output


def test_only_finished_environments_that_no_colour_uses_are_removed(tmp_path: Path) -> None:
    for age, name in enumerate(["0.32.0-aa", "0.31.0-bb", "0.30.0-cc", "0.29.0-dd"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".finished").touch()
        os.utime(tmp_path / name / ".finished", (1e9 - age, 1e9 - age))
    (tmp_path / "0.33.0-ee").mkdir()  # being built, or brought by the image
    (tmp_path / "blue").symlink_to(tmp_path / "0.32.0-aa")
    (tmp_path / "green").symlink_to("0.30.0-cc")
    script = ROLE / "files/unused.sh"
    found = {
        keep: subprocess.run(
            ["/bin/sh", script, tmp_path, keep], capture_output=True, text=True, check=True
        ).stdout.split()
        for keep in ("0", "1")
    }
    assert found == {"0": [f"{tmp_path}/0.31.0-bb", f"{tmp_path}/0.29.0-dd"], "1": [f"{tmp_path}/0.29.0-dd"]}


def test_the_lock_file_holds_hashes_of_the_wanted_version() -> None:
    text = LOCK.read_text()
    packages = re.findall(r"^[a-z0-9][a-z0-9._-]*==\S+", text, re.MULTILINE)
    assert "vllm==0.32.0" in packages
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=[a-z0-9])", text))


def test_the_stand_in_for_vllm_has_the_hash_of_its_lock_file(tmp_path: Path) -> None:
    program = (STAND_IN / "stand_in.py").read_bytes()
    subprocess.run([sys.executable, STAND_IN / "make_stand_in.py", tmp_path], input=program, check=True)
    digest = hashlib.sha256(next(tmp_path.glob("*.whl")).read_bytes()).hexdigest()
    assert f"sha256:{digest}" in (STAND_IN / "stand-in.lock").read_text()
