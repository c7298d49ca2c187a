"""What the stack refuses, and that the message tells what to do. No plan gets as far as making anything.

A plan takes seconds and reports all errors that do not hide each other, so each plan here carries several.
"""

import json
from dataclasses import dataclass

import pytest

from .runner import LAB_VARIABLES, Terraform


@dataclass(frozen=True)
class Refusal:
    """Values that one plan has to refuse, and parts of the messages that it has to give."""

    values: dict[str, object]
    messages: tuple[str, ...]


REFUSALS = {
    "every variable by itself": Refusal(
        {
            "region": "Oregon",
            "stack_name": "Code Rack",
            "public_subnet_cidr": "192.168.0.0/24",
            "admin_cidrs": [],
            "client_cidrs": [],
            "gpu_node_names": ["GPU_1", "GPU_1"],
            "gpu_instance_type": "p5",
            "efa_layout": "both",
            "gpu_ami_id": "latest",
            "gpu_root_volume_gib": 8,
            "ssh_public_key": "-----BEGIN OPENSSH PRIVATE KEY-----",
        },
        (
            'region is "Oregon"; give a region\'s name such as us-west-2.',
            'stack_name is "Code Rack"; use 2 to 31 lower-case letters',
            'public_subnet_cidr is "192.168.0.0/24"; give an IPv4 range inside vpc_cidr (10.77.0.0/16)',
            "admin_cidrs is empty, so nobody could configure the nodes. Name at least one range",
            "client_cidrs is []; give at least one IPv4 range in CIDR form",
            'gpu_node_names has "GPU_1", "GPU_1"; names become host names',
            "gpu_node_names has a name twice: GPU_1, GPU_1. Give every node its own.",
            'gpu_instance_type is "p5"; give an EC2 instance type such as p5.48xlarge',
            'efa_layout is "both"; choose efa_primary or ena_plus_efa_only',
            'gpu_ami_id is "latest"; give an image id such as ami-0123456789abcdef0',
            "gpu_root_volume_gib is 8; driver, CUDA and vLLM need at least 50 GiB",
            "ssh_public_key is not an OpenSSH public key. Give the whole line of a .pub file",
        ),
    ),
    "variables against each other": Refusal(
        {
            "admin_cidrs": ["10.0.0.0/8", "0.0.0.0/0"],
            "availability_zone": "us-east-1a",
            "ops_node_name": "gpu-a",
            "private_subnet_cidr": "10.78.0.0/24",
        },
        (
            "admin_cidrs has 0.0.0.0/0; give IPv4 ranges in CIDR form, none of them the whole Internet",
            'availability_zone is "us-east-1a"; give a zone of us-west-2',
            'ops_node_name is "gpu-a"; it becomes a host name',
            'private_subnet_cidr is "10.78.0.0/24"; give an IPv4 range inside vpc_cidr (10.77.0.0/16)',
        ),
    ),
    "no node, no network address": Refusal(
        {"gpu_node_names": [], "vpc_cidr": "10.77.3.0/16"},
        (
            "gpu_node_names is empty; name at least one GPU node",
            'vpc_cidr is "10.77.3.0/16"; give an IPv4 range that starts at its network address',
        ),
    ),
    "types that cannot serve": Refusal(
        {"gpu_instance_type": "m7i.2xlarge", "ops_instance_type": "x9.large"},
        (
            "m7i.2xlarge has no GPU. Set gpu_instance_type to a GPU type such as p5.48xlarge",
            "m7i.2xlarge has no EFA",
            "x9.large is not offered in us-west-2a. Set ops_instance_type",
        ),
    ),
    "a type of another zone": Refusal(
        {"gpu_instance_type": "p5e.48xlarge"},  # in us-west-2 only zone c has it
        ("p5e.48xlarge is not offered in us-west-2a. Choose an availability_zone that has it",),
    ),
}


@pytest.fixture(scope="module", params=REFUSALS)
def refused(request: pytest.FixtureRequest, stack: Terraform) -> tuple[Refusal, str]:
    """A refusal and all messages of its plan, as one line."""
    refusal = REFUSALS[request.param]
    given = [f"-var={name}={v if isinstance(v, str) else json.dumps(v)}" for name, v in refusal.values.items()]
    done = stack("plan", "-input=false", "-lock=false", f"-var-file={LAB_VARIABLES}", *given)
    assert done.returncode == 1, f"planned, though it should have refused {refusal.values}\n{done.stdout}"
    return refusal, " ".join(done.stderr.replace("│", " ").split())


def test_every_message_names_the_value_and_what_to_do(refused: tuple[Refusal, str]) -> None:
    refusal, text = refused
    missing = [message for message in refusal.messages if message not in text]
    assert not missing, text
