"""What the stack refuses, and that the message tells what to do. No plan gets as far as making anything.

A plan takes seconds and reports all errors that do not hide each other, so each plan here carries several.
"""

import datetime
import json
from dataclasses import dataclass

import pytest

from .runner import LAB_VARIABLES, Terraform


@dataclass(frozen=True)
class Refusal:
    """Values that one plan has to refuse, and parts of the messages that it has to give."""

    values: dict[str, object]
    messages: tuple[str, ...]


def from_now(**span: int) -> str:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(**span)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


ARM_IMAGE = "ami-0c0dea1164c0ffee4"
RESERVATION = "cr-0123456789abcdef0"
BLOCK = {
    "kind": "capacity_block",
    "reservation_id": RESERVATION,
    "instance_type": "p5.48xlarge",
    "zone": "us-west-2a",
    "count": 2,
    "starts_at": from_now(days=-1),
    "ends_at": from_now(days=1),
}
ENDS_SOON, STARTS_LATER = from_now(minutes=29), from_now(hours=2)

REFUSALS = {
    "every variable by itself": Refusal(
        {
            "region": "Oregon",
            "stack_name": "Code Rack",
            "project": "",
            "env": "my test",
            "owner": "",
            "expiry": "2027-02-30",
            "public_subnet_cidr": "192.168.0.0/24",
            "egress": "proxy",
            "admin_cidrs": [],
            "client_cidrs": [],
            "private_zone_name": "coderack.internal.",
            "flow_log_days": 100,
            "gpu_node_names": ["GPU_1", "GPU_1"],
            "gpu_instance_type": "p5",
            "gpus_per_node": 0.5,
            "efa_layout": "both",
            "gpu_ami_id": "latest",
            "gpu_root_volume_gib": 8,
            "ops_instance_type": "m7i",
            "ops_ami_id": "debian",
            "ops_root_volume_gib": 8,
            "user_data": "apt-get install agent",
            "ssh_public_key": "-----BEGIN OPENSSH PRIVATE KEY-----",
            "weights_noncurrent_days": 0,
            "secret_recovery_days": 1,
            "alarm_emails": ["oncall"],
        },
        (
            'region is "Oregon"; give a region\'s name such as us-west-2.',
            'stack_name is "Code Rack"; use 2 to 31 lower-case letters',
            'project is ""; give a tag value',
            'env is "my test"; give a short name such as prod',
            'owner is ""; name who answers for the costs',
            'expiry is "2027-02-30"; give a day that exists as year-month-day',
            'public_subnet_cidr is "192.168.0.0/24"; give an IPv4 range inside vpc_cidr (10.77.0.0/16)',
            'egress is "proxy"; choose nat or endpoints',
            "admin_cidrs is empty, so nobody could configure the nodes. Name at least one range",
            "client_cidrs is []; give at least one IPv4 range in CIDR form",
            'private_zone_name is "coderack.internal."; give a domain such as coderack.internal (lower case, no dot',
            "flow_log_days is 100; CloudWatch takes 1, 3, 5",
            'gpu_node_names has "GPU_1", "GPU_1"; names become host names',
            "gpu_node_names has a name twice: GPU_1, GPU_1. Give every node its own.",
            'gpu_instance_type is "p5"; give an EC2 instance type such as p5.48xlarge',
            "gpus_per_node is 0.5; give a whole number from 1 to 16",
            'efa_layout is "both"; choose efa_primary or ena_plus_efa_only',
            'gpu_ami_id is "latest"; give an image id such as ami-0123456789abcdef0',
            "gpu_root_volume_gib is 8; driver, CUDA and vLLM need at least 50 GiB",
            'ops_instance_type is "m7i"; give an EC2 instance type such as m7i.2xlarge',
            'ops_ami_id is "debian"; give an image id such as ami-0123456789abcdef0',
            "ops_root_volume_gib is 8; give 20 to 16384",
            'user_data has 21 characters and starts with "apt-get inst"; cloud-init takes at most 16384',
            "ssh_public_key is not an OpenSSH public key. Give the whole line of a .pub file",
            "weights_noncurrent_days is 0; give at least 1, or null",
            "secret_recovery_days is 1; Secrets Manager takes 7 to 30, or 0",
            'alarm_emails has "oncall"; give e-mail addresses',
        ),
    ),
    "variables against each other": Refusal(
        {
            "admin_cidrs": ["10.0.0.0/8", "0.0.0.0/0"],
            "availability_zone": "us-east-1a",
            "ops_node_name": "gpu-a",
            "private_subnet_cidr": "10.78.0.0/24",
            "alarm_emails": [],
            "monthly_budget_usd": 1000,
        },
        (
            "admin_cidrs has 0.0.0.0/0; give IPv4 ranges in CIDR form, /8 or smaller: SSH is never open to the whole",
            'availability_zone is "us-east-1a"; give a zone of us-west-2',
            'ops_node_name is "gpu-a"; it becomes a host name',
            'private_subnet_cidr is "10.78.0.0/24"; give an IPv4 range inside vpc_cidr (10.77.0.0/16)',
            "monthly_budget_usd is 1000 and alarm_emails is empty, so nobody would hear of it. Name at least one",
        ),
    ),
    "no node, no network address": Refusal(
        {"gpu_node_names": [], "vpc_cidr": "10.0.3.0/8", "administration": "telnet", "monthly_budget_usd": 0},
        (
            "gpu_node_names is empty; name at least one pair of GPU nodes",
            'vpc_cidr is "10.0.3.0/8"; give an IPv4 range that starts at its network address',
            'vpc_cidr is "10.0.3.0/8"; a VPC has /16 to /28',
            'administration is "telnet"; choose ssm or ssh',
            "monthly_budget_usd is 0; give a sum above 0, or null",
        ),
    ),
    "an odd number of nodes, subnets that overlap": Refusal(
        {"gpu_node_names": ["a", "b", "c"], "public_subnet_cidr": "10.77.0.128/25"},
        (
            "gpu_node_names has 3 names: a, b, c. Groups are of two nodes, and replicas come in pairs: add a name",
            "public_subnet_cidr (10.77.0.128/25) overlaps private_subnet_cidr (10.77.0.0/24). Give each its own range",
        ),
    ),
    "an unknown kind of capacity": Refusal(
        {"capacity": {"kind": "spot"}}, ('capacity.kind is "spot"; choose on_demand, odcr or capacity_block',)
    ),
    "a reservation that would not be used": Refusal(
        {"capacity": {"kind": "on_demand", "reservation_id": RESERVATION}},
        ("capacity.kind is on_demand, and capacity also has reservation_id, which would not be used. Set",),
    ),
    "a group that would not be used": Refusal(
        {"placement_group": "mine"},
        ('placement_group is "mine" and capacity.kind on_demand; only a reservation (odcr) that was made in a group',),
    ),
    "another reservation than was asked for": Refusal(
        {"capacity": BLOCK | {"zone": "us-west-2b", "instance_type": "p5en.48xlarge", "count": 1, "ends_at": None}},
        (
            'capacity.zone is "us-west-2b" and availability_zone is "us-west-2a"; a reservation can be used in its own',
            'capacity.instance_type is "p5en.48xlarge" and gpu_instance_type is "p5.48xlarge"; set gpu_instance_type',
            "capacity.count is 1 and gpu_node_names has 2 names; use a reservation with room for all of them",
            "capacity.ends_at is not given; a capacity block ends, and takes the nodes away when it does. Give its end",
        ),
    ),
    "a reservation without id, a time that is none": Refusal(
        {"capacity": {"kind": "odcr", "zone": "us-west-2a", "ends_at": "tomorrow"}},
        (
            "capacity.reservation_id is null; kind odcr needs the id of a reservation, such as cr-0123456789abcdef0.",
            'capacity.ends_at "tomorrow"; give times in RFC 3339, such as 2027-01-15T11:30:00Z',
        ),
    ),
    "what has expired or not begun": Refusal(
        {"expiry": "2020-01-01", "capacity": BLOCK | {"ends_at": ENDS_SOON, "starts_at": STARTS_LATER}},
        (
            "expiry was 2020-01-01, so this stack should be gone. Remove it with a destroy, or set expiry",
            f'Reservation "{RESERVATION}" ends at "{ENDS_SOON}", and its nodes go 30 minutes earlier, which is now or',
            f'Reservation "{RESERVATION}" starts at "{STARTS_LATER}"; nothing can be launched into it before. Apply',
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
    "a type with one GPU, an ops node that cannot be recovered": Refusal(
        {"gpu_instance_type": "p5.4xlarge", "ops_instance_type": "p5.48xlarge"},
        (
            "p5.4xlarge has 1 GPUs, and gpus_per_node is 8, which the serving profiles count on. Set gpu_instance_type",
            "p5.48xlarge cannot be recovered by EC2 when its hardware fails. Set ops_instance_type",
        ),
    ),
    "images of another architecture": Refusal(
        {"gpu_ami_id": ARM_IMAGE, "ops_ami_id": ARM_IMAGE},
        (
            "is built for arm64; p5.48xlarge runs x86_64. Set gpu_ami_id to an image of that architecture.",
            "is built for arm64; m7i.2xlarge runs x86_64. Set ops_ami_id to an image of that architecture.",
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
