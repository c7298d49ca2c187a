"""The lab's machines without Terraform, for hosts where it cannot be had (TERRAFORM=none).

Calls the same EC2 API as the stack would, for the same names, types and tags, and prints the same contract. What
Terraform adds (state, plan, network rules, launch template) is not exercised; the test summary says so.
"""

from __future__ import annotations

from typing import Any

import boto3

from coderack_lab import settings as s
from coderack_lab.errors import LabError

_KEY_PAIR = "coderack"
_IMAGE_OWNER = "136693071363"  # Debian's account
_NODES = {"gpu-a": ("gpu", "p5.48xlarge"), "gpu-b": ("gpu", "p5.48xlarge"), "ops": ("ops", "m7i.2xlarge")}


def client() -> Any:
    """An EC2 client for the emulator."""
    return boto3.client(
        "ec2",
        endpoint_url=f"http://127.0.0.1:{s.AWS_PORT}",
        region_name=s.AWS_REGION,
        aws_access_key_id="lab",
        aws_secret_access_key="lab",
    )


def make() -> dict[str, object]:
    """Run the three instances that are not there yet and return the fleet contract.

    Raises LabError when the emulator offers no image.
    """
    ec2 = client()
    present = {node["name"]: node for node in _describe(ec2)}
    missing = [name for name in _NODES if name not in present]
    if missing:
        subnet = _subnet(ec2)
        image = _image(ec2)
        if not ec2.describe_key_pairs(Filters=[{"Name": "key-name", "Values": [_KEY_PAIR]}])["KeyPairs"]:
            ec2.import_key_pair(KeyName=_KEY_PAIR, PublicKeyMaterial=s.SSH_KEY.with_suffix(".pub").read_bytes())
        for name in missing:
            role, kind = _NODES[name]
            tags = [{"Key": "Name", "Value": name}, {"Key": "coderack:role", "Value": role}]
            ec2.run_instances(
                ImageId=image, InstanceType=kind, MinCount=1, MaxCount=1, KeyName=_KEY_PAIR, SubnetId=subnet,
                TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
            )  # fmt: skip
    return {"version": 1, "stack": "aws", "region": s.AWS_REGION, "nodes": _describe(ec2)}


def stop(name: str) -> None:
    """Stop a node's instance and wait until EC2 says so. Raises LabError when there is none of that name."""
    ec2 = client()
    ids = [_id_of(ec2, name)]
    ec2.stop_instances(InstanceIds=ids)
    ec2.get_waiter("instance_stopped").wait(InstanceIds=ids, WaiterConfig={"Delay": 1, "MaxAttempts": 30})


def start(name: str) -> None:
    """Start a node's stopped instance. Raises LabError when there is none of that name."""
    ec2 = client()
    ec2.start_instances(InstanceIds=[_id_of(ec2, name)])


def _id_of(ec2: Any, name: str) -> str:
    wanted = [
        {"Name": "tag:Name", "Values": [name]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
    ]
    found = [i["InstanceId"] for r in ec2.describe_instances(Filters=wanted)["Reservations"] for i in r["Instances"]]
    if len(found) != 1:
        raise LabError(f"the EC2 API knows {len(found)} instances named {name}; wanted: one. See: make lab-status")
    return str(found[0])


def _subnet(ec2: Any) -> str:
    found = ec2.describe_subnets(Filters=[{"Name": "cidr-block", "Values": [s.SUBNET]}])["Subnets"]
    if not found:
        vpc = ec2.create_vpc(CidrBlock=s.VPC)["Vpc"]["VpcId"]
        found = [ec2.create_subnet(VpcId=vpc, CidrBlock=s.SUBNET, AvailabilityZone=f"{s.AWS_REGION}a")["Subnet"]]
    return str(found[0]["SubnetId"])


def _image(ec2: Any) -> str:
    images = ec2.describe_images(Owners=[_IMAGE_OWNER])["Images"]
    if not images:
        raise LabError(f"the EC2 API offers no image of owner {_IMAGE_OWNER}; wanted: one, from aws/amis.json")
    return str(images[0]["ImageId"])


def _describe(ec2: Any) -> list[dict[str, object]]:
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    reservations = ec2.describe_instances(Filters=running)["Reservations"]
    return sorted(
        (_node(instance) for reservation in reservations for instance in reservation["Instances"]),
        key=lambda node: str(node["name"]),
    )


def _node(instance: dict[str, Any]) -> dict[str, object]:
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    is_gpu = tags["coderack:role"] == "gpu"
    return {
        "name": tags["Name"],
        "role": tags["coderack:role"],
        "address": instance["PrivateIpAddress"],
        "private_address": instance["PrivateIpAddress"],
        "instance_id": instance["InstanceId"],
        "instance_type": instance["InstanceType"],
        "zone": instance["Placement"]["AvailabilityZone"],
        "gpus": {"model": "NVIDIA H100", "count": 8} if is_gpu else {"model": "none", "count": 0},
        "fabric": {"kind": "efa" if is_gpu else "none", "devices": []},
    }
