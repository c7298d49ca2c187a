"""Many nodes: asked in parallel, compared with each other, and none of their silences taken for health."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from coderack.clients import ssh
from coderack.health import cluster
from coderack.health.compare import COMPARED, compare
from coderack.health.explain import explain, names

from .program import coderack

pytestmark = pytest.mark.simulated_node

FACTS = {"driver": "580.159.04", "vbios": "96.00.89.00.01", "kernel": "6.8.0-1021", "nccl": "nvidia_nccl_cu12 2.27.3"}


def _report(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "coderack.health-node/1",
        "node": "itself",
        "profile": "h100-sxm",
        "verdict": "healthy",
        "exit_code": 0,
        "time": 1.0,
        "seconds": 0.2,
        "findings": [],
        "facts": FACTS,
        "probes": [],
        **changes,
    }


def _says(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"]


def test_equal_nodes_have_no_finding() -> None:
    assert list(compare({"a": FACTS, "b": dict(FACTS)})) == []


@pytest.mark.parametrize("fact", COMPARED)
def test_every_fact_that_differs_is_a_finding_of_its_own_that_names_both_nodes(fact: str) -> None:
    (found,) = compare({"gpu-a": {fact: "1"}, "gpu-b": {fact: "2"}})
    assert found.id == f"nodes-differ-{fact.replace('_', '-')}"
    assert ("gpu-a has 1" in found.seen, "gpu-b has 2" in found.seen) == (True, True)
    assert explain(found.id) is not None


def test_of_three_nodes_the_odd_one_out_is_named() -> None:
    (found,) = compare({"a": FACTS, "b": {**FACTS, "driver": "570.86.15"}, "c": FACTS})
    assert (found.subject.name, found.wanted) == ("b", "580.159.04, as on the others")


def test_a_fact_that_one_node_lacks_is_a_difference() -> None:
    (found,) = compare({"a": FACTS, "b": {key: value for key, value in FACTS.items() if key != "nccl"}})
    assert "b has not known" in found.seen


def test_a_node_that_cannot_be_reached_hangs_or_babbles_is_unknown_and_the_others_are_judged() -> None:
    good = json.dumps(_report())
    answers = cluster.ask(
        {
            "good": _says(good),
            "down": [sys.executable, "-c", "import sys; print('Connection refused', file=sys.stderr); sys.exit(255)"],
            "hangs": [sys.executable, "-c", "import time; time.sleep(60)"],
            "babbles": _says("bash: coderack: command not found", 127),
            "older": _says(json.dumps(_report(schema="coderack.health-node/0"))),
            "absent": ["/nonexistent/ssh"],
        },
        seconds=5,
        parallel=8,
    )
    found = {one.subject.name: (one.id, one.severity.value) for one in cluster.between(answers)}
    assert found == {
        "down": ("node-unreachable", "unknown"),
        "hangs": ("node-unreachable", "unknown"),
        "babbles": ("node-garbled", "unknown"),
        "older": ("node-garbled", "unknown"),
        "absent": ("node-unreachable", "unknown"),
    }
    assert [answer.name for answer in answers if answer.report] == ["good"]


def test_nodes_are_asked_at_the_same_time() -> None:
    command = [sys.executable, "-c", f"import time; time.sleep(3); print({json.dumps(_report())!r})"]
    begun = time.monotonic()
    answers = cluster.ask({f"n{number}": command for number in range(6)}, seconds=20, parallel=6)
    assert all(answer.report for answer in answers)
    assert time.monotonic() - begun < 15, "one after the other would take 18 s"


def _inventories(root: Path, names: list[str], variables: str = "ansible_user: admin\n") -> Path:
    nodes = {
        name: {
            "ansible_host": f"10.0.{number // 200}.{number % 200 + 11}",
            "fleet_private_address": f"10.0.{number // 200}.{number % 200 + 11}",
            "fleet_gpus": {"model": "NVIDIA H100", "count": 8},
            "fleet_fabric": {"kind": "infiniband", "devices": []},
        }
        for number, name in enumerate(names)
    }
    ops = {
        "ops": {
            "ansible_host": "10.9.0.9",
            "fleet_private_address": "10.9.0.9",
            "fleet_gpus": {"model": "none", "count": 0},
            "fleet_fabric": {"kind": "none", "devices": []},
        }
    }
    tree = {
        "all": {
            "children": {"gpu_nodes": {"hosts": nodes}, "ops_nodes": {"hosts": ops}},
            "vars": {"fleet_stack": "baremetal", "fleet_version": 1},
        }
    }
    (root / "aws/group_vars").mkdir(parents=True)
    (root / "aws/hosts.yml").write_text(yaml.safe_dump(tree))
    (root / "aws/group_vars/all.yml").write_text(variables)
    return root


def _cluster(root: Path, script: str, *words: str) -> tuple[int, dict[str, Any], str]:
    """Each "node" runs `script` instead of coderack, by a shell on this machine instead of ssh."""
    program = root / "answer.py"
    program.write_text(script)
    done = coderack(
        "health",
        "cluster",
        "--env",
        "aws",
        "--inventories",
        str(root / "inventories"),
        "--json",
        "--ssh",
        "/bin/sh -c",
        "--command",
        f"{sys.executable} {program} {{name}}",
        *words,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_two_equal_healthy_nodes_are_a_healthy_cluster(tmp_path: Path) -> None:
    _inventories(tmp_path / "inventories", ["gpu-a", "gpu-b"])
    code, report, _ = _cluster(tmp_path, f"print({json.dumps(_report())!r})")
    assert (code, report["schema"], report["verdict"]) == (0, "coderack.health-cluster/1", "healthy")
    assert [node["node"] for node in report["nodes"]] == ["gpu-a", "gpu-b"]


def test_nodes_with_different_drivers_make_the_cluster_unhealthy(tmp_path: Path) -> None:
    _inventories(tmp_path / "inventories", ["gpu-a", "gpu-b"])
    other = _report(facts={**FACTS, "driver": "570.86.15"})
    script = f"import sys; print({json.dumps(_report())!r} if sys.argv[1] == 'gpu-a' else {json.dumps(other)!r})"
    code, report, _ = _cluster(tmp_path, script)
    assert (code, [one["id"] for one in report["findings"]]) == (1, ["nodes-differ-driver"])


def test_a_silent_node_makes_the_cluster_unknown(tmp_path: Path) -> None:
    _inventories(tmp_path / "inventories", ["gpu-a", "gpu-b"])
    script = f"import sys; sys.exit(255) if sys.argv[1] == 'gpu-b' else print({json.dumps(_report())!r})"
    code, report, _ = _cluster(tmp_path, script)
    assert (code, report["verdict"], report["findings"][0]["id"]) == (3, "unknown", "node-unreachable")


def test_ssh_asks_no_question_and_takes_the_environments_user_and_arguments(tmp_path: Path) -> None:
    root = _inventories(
        tmp_path,
        ["gpu-a"],
        'ansible_user: ubuntu\nansible_ssh_common_args: -o ProxyJump=b -i "{{ inventory_dir }}/key"\n',
    )
    user, arguments = ssh.of_environment(root / "aws")
    words = ssh.words("10.0.0.11", user, arguments, "sudo -n coderack health node --json")
    assert words[:5] == ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
    assert words[5:] == [
        "-o",
        "ProxyJump=b",
        "-i",
        f"{root.resolve()}/aws/key",
        "--",
        "ubuntu@10.0.0.11",
        "sudo -n coderack health node --json",
    ]


def test_arguments_that_only_ansible_can_fill_in_are_refused(tmp_path: Path) -> None:
    root = _inventories(tmp_path, ["gpu-a"], "ansible_ssh_common_args: -o ProxyCommand={{ lookup('env', 'X') }}\n")
    with pytest.raises(ssh.NoConnection, match="give --ssh"):
        ssh.of_environment(root / "aws")


def test_every_finding_can_be_explained() -> None:
    assert all(explain(name) is not None for name in names())


@pytest.mark.parametrize(
    ("what", "finding"),
    [
        ("79", "xid-79"),
        ("xid-79", "xid-79"),
        ("XID 79", "xid-79"),
        ("20034", "sxid-20034"),
        ("SXid-12028", "sxid-12028"),
    ],
)
def test_numbers_are_understood_as_people_write_them(what: str, finding: str) -> None:
    found = explain(what)
    assert found is not None
    assert found["finding"] == finding


def test_explain_says_meaning_action_and_source() -> None:
    done = coderack("health", "explain", "fabric-manager-stopped")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("fabric manager does not run", "drain", "NVSentinel #883"))


def test_explain_of_nothing_names_what_is_near() -> None:
    done = coderack("health", "explain", "nvlink-dwn")
    assert (done.returncode, "nvlink-down" in done.stderr) == (2, True)
