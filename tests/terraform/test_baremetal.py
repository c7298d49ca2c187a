"""The stack for declared hosts: what it hands on, what it refuses, and that messages tell what to do. Asks no cloud."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from coderack.cli.main import app
from coderack.spec.fleet import Fleet

from .runner import REPOSITORY, Terraform

STACK = REPOSITORY / "terraform" / "stacks" / "baremetal"
EXAMPLE = REPOSITORY / "inventories" / "baremetal" / "terraform.tfvars.example"

Nodes = list[dict[str, Any]]


def good_nodes() -> Nodes:
    """Two machines with eight GPUs, each with an HCA of its own, and an ops node."""
    devices = [{"name": f"mlx5_{rail}", "rail": rail} for rail in range(8)]
    gpu = {
        "role": "gpu",
        "gpus": {"model": "NVIDIA H100 80GB HBM3", "count": 8},
        "fabric": {"kind": "infiniband", "devices": devices},
    }
    return [
        {"name": "gpu-a", "address": "gpu-a.example.net", "private_address": "10.20.0.11", **copy.deepcopy(gpu)},
        {"name": "gpu-b", "address": "203.0.113.12", "private_address": "10.20.0.12", **copy.deepcopy(gpu)},
        {"name": "ops", "role": "ops", "address": "10.20.0.10", "private_address": "10.20.0.10"},
    ]


@pytest.fixture(scope="module")
def stack(terraform_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    work = tmp_path_factory.mktemp("baremetal")
    terraform = Terraform(terraform_binary, STACK, work)
    terraform.must("init", "-input=false", "-lockfile=readonly", f"-backend-config=path={work / 'terraform.tfstate'}")
    return terraform


def put(*path: str | int, to: object) -> Callable[[Nodes], None]:
    """A change of one value in the nodes."""

    def change(nodes: Nodes) -> None:
        here: Any = nodes
        for step in path[:-1]:
            here = here[step]
        here[path[-1]] = to

    return change


def without(*indices: int) -> Callable[[Nodes], None]:
    def change(nodes: Nodes) -> None:
        nodes[:] = [node for index, node in enumerate(nodes) if index not in indices]

    return change


def without_infiniband(nodes: Nodes) -> None:
    for node in nodes[:2]:
        node["fabric"]["kind"] = "none"


REFUSALS: dict[str, tuple[Callable[[Nodes], None], str]] = {
    "a role that does not exist": (
        put(2, "role", to="head"),
        'nodes: ops has role "head"; give gpu (serves the model) or ops (gateway and monitoring)',
    ),
    "no ops node": (without(2), "nodes has 0 of role ops []; declare exactly one: gateway and monitoring run there"),
    "no GPU node": (without(0, 1), "nodes has 0 of role gpu []; declare an even number, at least two"),
    "an odd number of GPU nodes": (
        without(1),
        "nodes has 1 of role gpu [gpu-a]; declare an even number, at least two: groups are made of pairs",
    ),
    "a name that is no host name": (
        put(0, "name", to="GPU_A"),
        'nodes has the names "GPU_A"; names become host names: lower-case letters, digits and inner hyphens',
    ),
    "a name of Ansible's": (put(0, "name", to="all"), "none of Ansible's own (all, localhost, ungrouped)"),
    "a name twice": (put(0, "name", to="gpu-b"), "nodes has a name twice: gpu-b. Give every node its own."),
    "an address with a user": (
        put(0, "address", to="root@gpu-a"),
        'gpu-a has address "root@gpu-a"; give the IPv4 address or the lower-case host name at which SSH',
    ),
    "an address out of range": (put(0, "address", to="10.20.0.300"), 'gpu-a has address "10.20.0.300"; give the IPv4'),
    "a public cluster address": (
        put(0, "private_address", to="198.51.100.11"),
        'gpu-a has private_address "198.51.100.11"; give the IPv4 address of a host in 10.0.0.0/8, 172.16.0.0/12, '
        "192.168.0.0/16, 100.64.0.0/10: what the nodes say to each other is not encrypted. A public address for SSH "
        "belongs in",
    ),
    "a cluster address in a form of its own": (
        put(0, "private_address", to="10.20.0.011"),
        'gpu-a has private_address "10.20.0.011"; give the IPv4 address of a host in 10.0.0.0/8',
    ),
    "an address of two nodes": (
        put(0, "address", to="10.20.0.12"),
        "10.20.0.12 belongs to gpu-a and gpu-b; give every node addresses of its own",
    ),
    "a private network's own address": (
        put(0, "private_address", to="10.0.0.0"),
        'gpu-a has private_address "10.0.0.0"; give the IPv4 address of a host in',
    ),
    "an address of many hosts": (
        put(0, "address", to="224.0.0.1"),
        'gpu-a has address "224.0.0.1"; give the IPv4 address or the lower-case host name',
    ),
    "an address of no host": (
        put(0, "address", to="0.0.0.0"),
        'gpu-a has address "0.0.0.0"; give the IPv4 address or the lower-case host name',
    ),
    "a host name that is too long": (
        put(0, "address", to=".".join(["a" * 60] * 5)),
        "; give the IPv4 address or the lower-case host name",
    ),
    "a null for a name": (put(2, "name", to=None), '"name":null'),
    "a null for an address": (put(2, "address", to=None), "nodes has null in"),
    "a null for a rail": (
        put(0, "fabric", "devices", 0, "rail", to=None),
        "; give every value, or leave gpus and fabric out on the ops node",
    ),
    "a node with a GPU missing": (
        put(1, "gpus", "count", to=7),
        "gpu-b has 7 GPUs; wanted 8 on every GPU node. Correct gpus.count, leave a pair with a missing GPU out until "
        "it is repaired, or set gpus_per_node",
    ),
    "a model that Ansible would template": (
        put(0, "gpus", "model", to="{{ x }}"),
        'gpu-a has gpus.model "{{ x }}"; give the name that `nvidia-smi -L` prints',
    ),
    "two GPU models": (
        put(1, "gpus", "model", to="NVIDIA H200"),
        "nodes has GPUs of 2 models: NVIDIA H100 80GB HBM3, NVIDIA H200; give one on all GPU nodes",
    ),
    "an ops node with GPUs": (
        put(2, "gpus", to={"model": "NVIDIA L4", "count": 1}),
        "ops has 1 GPUs and fabric none; leave gpus and fabric out on the ops node, or give it role gpu",
    ),
    "EFA": (
        put(0, "fabric", to={"kind": "efa"}),
        'gpu-a has fabric.kind "efa"; give infiniband, or none where there is only Ethernet. EFA exists on AWS only',
    ),
    "two fabrics": (
        put(1, "fabric", to={"kind": "none"}),
        "nodes mixes fabrics: gpu-a has infiniband, gpu-b has none; give the same on all GPU nodes",
    ),
    "too few HCAs": (
        lambda nodes: nodes[0]["fabric"]["devices"].pop(),
        "gpu-a has fabric infiniband and 7 HCAs; wanted 8 in fabric.devices with infiniband and none without. List "
        "those that `ibv_devices` shows for the GPU network, or set hcas_per_node",
    ),
    "HCAs without InfiniBand": (without_infiniband, "gpu-b has fabric none and 8 HCAs; wanted 8 in fabric.devices"),
    "an HCA with a port": (
        put(0, "fabric", "devices", 3, "name", to="mlx5_3:1"),
        'gpu-a has HCA "mlx5_3:1"; give the device as `ibv_devices` prints it, such as mlx5_0: no port',
    ),
    "an HCA that is Ethernet": (
        put(0, "fabric", "devices", 3, "name", to="rocep24s0"),
        'gpu-a has HCA "rocep24s0"; give the device as `ibv_devices` prints it',
    ),
    "an HCA twice": (
        put(1, "fabric", "devices", 3, "name", to="mlx5_2"),
        "gpu-b lists mlx5_0 mlx5_1 mlx5_2 mlx5_2 mlx5_4 mlx5_5 mlx5_6 mlx5_7; list every HCA once",
    ),
    "two HCAs on one rail": (
        put(1, "fabric", "devices", 7, "rail", to=6),
        "gpu-b has rails 0 1 2 3 4 5 6 6; wanted every rail from 0 to 7 exactly once on a node: each HCA on its own",
    ),
}


def plan(stack: Terraform, folder: Path, nodes: Nodes, **others: object) -> tuple[int, str]:
    """Exit code and errors of a plan, in one line without the frame that Terraform draws."""
    file = folder / "nodes.tfvars.json"
    file.write_text(json.dumps({"nodes": nodes, **others}), encoding="utf-8")
    done = stack("plan", "-input=false", "-lock=false", f"-var-file={file}")
    return done.returncode, " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_names_the_value_and_what_to_do(stack: Terraform, tmp_path: Path, case: str) -> None:
    change, message = REFUSALS[case]
    nodes = good_nodes()
    change(nodes)
    code, text = plan(stack, tmp_path, nodes)
    assert code == 1
    assert message in text


def test_all_that_is_wrong_is_said_at_once(stack: Terraform, tmp_path: Path) -> None:
    nodes = good_nodes()
    nodes[0] |= {"name": "GPU_A", "private_address": "198.51.100.11", "fabric": {"kind": "efa"}}
    _code, text = plan(stack, tmp_path, nodes)
    assert [message in text for message in ("host names", "not encrypted", "EFA exists on AWS only")] == [True] * 3


@pytest.mark.parametrize("variable", ["gpus_per_node", "hcas_per_node"])
@pytest.mark.parametrize("value", [0, 17, 7.5])
def test_an_impossible_number_per_node_is_refused(
    stack: Terraform, tmp_path: Path, variable: str, value: float
) -> None:
    code, text = plan(stack, tmp_path, good_nodes(), **{variable: value})
    assert code == 1
    assert f"{variable} is {value}; give a whole number from 1 to 16" in text


def test_own_tests_pass(terraform_binary: str, tmp_path: Path) -> None:
    copied = tmp_path / "baremetal"
    shutil.copytree(STACK, copied)
    terraform = Terraform(terraform_binary, copied, tmp_path)
    terraform.must("init", "-input=false", "-backend=false")
    terraform.must("test")


@pytest.fixture(scope="module")
def output(stack: Terraform, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `terraform output -json fleet` prints after an apply of the example that operators copy."""
    file = tmp_path_factory.mktemp("example") / "terraform.tfvars"
    shutil.copy(EXAMPLE, file)
    stack.must("apply", "-input=false", "-auto-approve", f"-var-file={file}")
    return stack.must("output", "-json", "fleet")


def test_example_is_accepted_by_the_tools(output: str) -> None:
    fleet = Fleet.model_validate(json.loads(output))
    assert [(node.name, node.role) for node in fleet.nodes] == [("gpu-a", "gpu"), ("gpu-b", "gpu"), ("ops", "ops")]
    assert fleet.nodes[1].gpus.count == 8


def test_devices_come_in_the_order_of_their_rails(output: str) -> None:
    """Ten sorts before two as text; rails are numbers."""
    fleet = Fleet.model_validate(json.loads(output))
    wanted = tuple(f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11))
    assert (fleet.nodes[0].fabric.kind, fleet.nodes[0].fabric.devices) == ("infiniband", wanted)


def test_more_than_ten_rails_keep_their_order(stack: Terraform, tmp_path: Path) -> None:
    nodes = good_nodes()
    for node in nodes[:2]:
        node["fabric"]["devices"] = [{"name": f"mlx5_{15 - rail}", "rail": rail} for rail in reversed(range(16))]
    file = tmp_path / "nodes.tfvars.json"
    file.write_text(json.dumps({"nodes": nodes, "hcas_per_node": 16}), encoding="utf-8")
    planned = tmp_path / "plan"
    stack.must("plan", "-input=false", "-lock=false", f"-var-file={file}", f"-out={planned}")
    values = json.loads(stack.must("show", "-json", str(planned)))["planned_values"]["outputs"]["fleet"]["value"]
    assert values["nodes"][0]["fabric"]["devices"] == [f"mlx5_{number}" for number in reversed(range(16))]


def test_output_becomes_the_inventory(output: str, tmp_path: Path) -> None:
    (tmp_path / "baremetal").mkdir()
    arguments = ["fleet", "write", "--env", "baremetal", "--inventories", str(tmp_path), "-"]
    done = CliRunner().invoke(app, arguments, input=output)
    assert done.exit_code == 0, done.output
    groups = yaml.safe_load((tmp_path / "baremetal" / "hosts.yml").read_text(encoding="utf-8"))
    text = json.dumps(groups)
    assert "mlx5_11" in text
    assert "gpu-b.mgmt.example.net" in text


def test_nothing_but_the_output_is_kept_and_no_provider_is_needed(stack: Terraform, output: str) -> None:
    state = json.loads(stack.must("state", "pull"))
    assert state["resources"] == []
    assert "provider[" not in stack.must("providers")
