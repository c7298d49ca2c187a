"""The stack through its life: apply, plan again, stop and terminate by API, destroy. Lived once, looked at by all."""

import ipaddress
import time
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest

from coderack.spec.fleet import Fleet
from coderack_lab.aws.instances import InstanceView, running_instances
from coderack_lab.aws.server import Emulator

from .runner import LAB_VARIABLES, PUBLIC_KEY, REGION, Terraform

SUBNET = ipaddress.IPv4Network("10.77.0.0/24")
GPU_NAMES = ["gpu-a", "gpu-b"]


@dataclass
class Life:
    """What was seen on the way."""

    fleet: Any
    instances: dict[str, Any]
    placement_groups: list[Any]
    rules: dict[str, list[Any]]
    volumes: list[Any]
    second_plan: tuple[int, str]
    when_up: list[InstanceView]
    when_stopped: list[InstanceView] = field(default_factory=list)
    when_terminated: list[InstanceView] = field(default_factory=list)
    before: dict[str, list[str]] = field(default_factory=dict)
    after: dict[str, list[str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def life(stack: Terraform, emulator: Emulator) -> Life:
    ec2 = boto3.client(
        "ec2",
        endpoint_url=emulator.endpoint,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    variables = f"-var-file={LAB_VARIABLES}"
    before = everything(ec2)
    with timed("apply"):
        stack.must("apply", "-input=false", "-auto-approve", variables)
    with timed("second plan"):
        plan = stack("plan", "-input=false", "-detailed-exitcode", variables)
    instances = by_name(ec2)
    seen = Life(
        fleet=stack.output("fleet"),
        instances=instances,
        placement_groups=ec2.describe_placement_groups()["PlacementGroups"],
        rules=rules_by_group(ec2),
        volumes=ec2.describe_volumes()["Volumes"],
        second_plan=(plan.returncode, plan.stdout + plan.stderr),
        when_up=running_instances(emulator.endpoint, REGION),
        before=before,
    )
    ec2.stop_instances(InstanceIds=[instances["gpu-a"]["InstanceId"]])
    seen.when_stopped = running_instances(emulator.endpoint, REGION)
    ec2.terminate_instances(InstanceIds=[instances["gpu-b"]["InstanceId"]])
    seen.when_terminated = running_instances(emulator.endpoint, REGION)
    with timed("destroy"):
        stack.must("destroy", "-input=false", "-auto-approve", variables)
    seen.after = everything(ec2)
    return seen


class timed:
    """Prints how long a step took; `pytest -s` or a failure shows it."""

    def __init__(self, step: str) -> None:
        self.step = step

    def __enter__(self) -> None:
        self.begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        print(f"terraform {self.step}: {time.monotonic() - self.begin:.1f} s")


def by_name(ec2: Any) -> dict[str, Any]:
    found = {}
    running = [{"Name": "instance-state-name", "Values": ["running"]}]
    for reservation in ec2.describe_instances(Filters=running)["Reservations"]:
        for instance in reservation["Instances"]:
            found[tags(instance)["Name"]] = instance
    return found


def tags(resource: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in resource["Tags"]}


def rules_by_group(ec2: Any) -> dict[str, list[Any]]:
    names = {group["GroupId"]: group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]}
    rules: dict[str, list[Any]] = {}
    for rule in ec2.describe_security_group_rules()["SecurityGroupRules"]:
        rules.setdefault(names[rule["GroupId"]], []).append(rule)
    return rules


def everything(ec2: Any) -> dict[str, list[str]]:
    """Ids of all that exists in the region. What EC2 itself keeps showing for a while after its end does not count."""
    gone = ("terminated", "deleted")
    reservations = ec2.describe_instances()["Reservations"]
    return {
        "instances": sorted(
            instance["InstanceId"]
            for reservation in reservations
            for instance in reservation["Instances"]
            if instance["State"]["Name"] not in gone
        ),
        "NAT gateways": sorted(
            gateway["NatGatewayId"]
            for gateway in ec2.describe_nat_gateways()["NatGateways"]
            if gateway["State"] not in gone
        ),
        "endpoints": sorted(
            endpoint["VpcEndpointId"]
            for endpoint in ec2.describe_vpc_endpoints()["VpcEndpoints"]
            if endpoint["State"] not in gone
        ),
        "VPCs": sorted(vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"]),
        "subnets": sorted(subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]),
        "route tables": sorted(table["RouteTableId"] for table in ec2.describe_route_tables()["RouteTables"]),
        "gateways": sorted(one["InternetGatewayId"] for one in ec2.describe_internet_gateways()["InternetGateways"]),
        "security groups": sorted(group["GroupId"] for group in ec2.describe_security_groups()["SecurityGroups"]),
        "interfaces": sorted(
            one["NetworkInterfaceId"] for one in ec2.describe_network_interfaces()["NetworkInterfaces"]
        ),
        "addresses": sorted(address["PublicIp"] for address in ec2.describe_addresses()["Addresses"]),
        "volumes": sorted(volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]),
        "key pairs": sorted(pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]),
        "templates": sorted(one["LaunchTemplateName"] for one in ec2.describe_launch_templates()["LaunchTemplates"]),
        "placement groups": sorted(group["GroupName"] for group in ec2.describe_placement_groups()["PlacementGroups"]),
    }


def test_second_plan_is_empty(life: Life) -> None:
    code, text = life.second_plan
    assert code == 0, text


def test_fleet_output_is_the_contract(life: Life) -> None:
    def node(name: str, role: str, kind: str, gpus: dict[str, Any], fabric: str) -> dict[str, Any]:
        address = life.instances[name]["PrivateIpAddress"]
        return {
            "name": name,
            "role": role,
            "address": address,
            "private_address": address,
            "instance_id": life.instances[name]["InstanceId"],
            "instance_type": kind,
            "zone": "us-west-2a",
            "gpus": gpus,
            "fabric": {"kind": fabric, "devices": []},
        }

    h100 = {"model": "NVIDIA H100", "count": 8}
    assert life.fleet == {
        "version": 1,
        "stack": "aws",
        "nodes": [
            node("gpu-a", "gpu", "p5.48xlarge", h100, "efa"),
            node("gpu-b", "gpu", "p5.48xlarge", h100, "efa"),
            node("ops", "ops", "m7i.2xlarge", {"model": "none", "count": 0}, "none"),
        ],
    }


def test_fleet_output_is_accepted_by_the_tools(life: Life) -> None:
    assert [node.name for node in Fleet.model_validate(life.fleet).nodes] == [*GPU_NAMES, "ops"]


@pytest.mark.parametrize("name", GPU_NAMES)
def test_gpu_node_has_efa_on_all_32_cards(life: Life, name: str) -> None:
    interfaces = life.instances[name]["NetworkInterfaces"]
    places = [(one["Attachment"]["NetworkCardIndex"], one["Attachment"]["DeviceIndex"]) for one in interfaces]
    kinds = {place: one["InterfaceType"] for place, one in zip(places, interfaces, strict=True)}
    assert kinds == {(0, 0): "efa"} | {(card, 1): "efa-only" for card in range(1, 32)}


@pytest.mark.parametrize("name", GPU_NAMES)
def test_gpu_nodes_share_a_cluster_placement_group(life: Life, name: str) -> None:
    strategies = {group["GroupName"]: group["Strategy"] for group in life.placement_groups}
    assert strategies[life.instances[name]["Placement"]["GroupName"]] == "cluster"


@pytest.mark.parametrize("name", [*GPU_NAMES, "ops"])
def test_node_demands_imds_v2_within_one_hop(life: Life, name: str) -> None:
    options = life.instances[name]["MetadataOptions"]
    assert (options["HttpTokens"], options["HttpPutResponseHopLimit"]) == ("required", 1)


@pytest.mark.parametrize("name", [*GPU_NAMES, "ops"])
def test_node_is_private_and_tagged(life: Life, name: str) -> None:
    instance = life.instances[name]
    assert "PublicIpAddress" not in instance
    role = "ops" if name == "ops" else "gpu"
    own = {key: value for key, value in tags(instance).items() if not key.startswith("aws:")}
    assert own == {"Name": name, "coderack:role": role, "coderack:stack": "coderack"}


def test_root_volumes_are_encrypted_gp3(life: Life) -> None:
    assert sorted((v["Size"], v["VolumeType"], v["Encrypted"]) for v in life.volumes) == [
        (100, "gp3", True),
        (200, "gp3", True),
        (200, "gp3", True),
    ]


@pytest.mark.parametrize("egress", [False, True], ids=["ingress", "egress"])
def test_gpu_group_lets_itself_through_in_both_directions(life: Life, egress: bool) -> None:
    group = life.instances["gpu-a"]["SecurityGroups"][0]
    peers = [
        rule["ReferencedGroupInfo"]["GroupId"]
        for rule in life.rules[group["GroupName"]]
        if rule["IsEgress"] is egress and rule["IpProtocol"] == "-1" and "ReferencedGroupInfo" in rule
    ]
    assert peers == [group["GroupId"]]


@pytest.mark.parametrize(
    ("group", "allowed"),
    [
        ("coderack-gpu", {("tcp", 22, "10.77.0.0/16"), ("tcp", 8000, "coderack-ops"), ("tcp", 9100, "coderack-ops")}),
        ("coderack-ops", {("tcp", 22, "10.77.0.0/16"), ("tcp", 443, "10.77.0.0/16")}),
    ],
)
def test_nothing_else_comes_in_from_outside(life: Life, group: str, allowed: set[tuple[str, int, str]]) -> None:
    names = {one["GroupId"]: one["GroupName"] for i in life.instances.values() for one in i["SecurityGroups"]}
    sources = {
        (
            rule["IpProtocol"],
            rule["FromPort"],
            rule.get("CidrIpv4") or names[rule["ReferencedGroupInfo"]["GroupId"]],
        )
        for rule in life.rules[group]
        if not rule["IsEgress"]
    }
    assert sources - {("-1", -1, "coderack-gpu")} == allowed


def test_supervisor_sees_what_it_has_to_boot(life: Life) -> None:
    assert [(view.name, view.role, view.state) for view in life.when_up] == [
        ("gpu-a", "gpu", "running"),
        ("gpu-b", "gpu", "running"),
        ("ops", "ops", "running"),
    ]
    assert {view.public_key for view in life.when_up} == {PUBLIC_KEY}


def test_addresses_are_the_lowest_that_aws_would_give(life: Life) -> None:
    assert {view.private_ip for view in life.when_up} == {str(SUBNET[number]) for number in (4, 5, 6)}


def test_supervisor_sees_a_stopped_node_as_stopped(life: Life) -> None:
    assert [(view.name, view.state) for view in life.when_stopped] == [
        ("gpu-a", "stopped"),
        ("gpu-b", "running"),
        ("ops", "running"),
    ]


def test_supervisor_no_longer_sees_a_terminated_node(life: Life) -> None:
    assert [view.name for view in life.when_terminated] == ["gpu-a", "ops"]


def test_destroy_leaves_nothing(life: Life) -> None:
    assert life.after == life.before
