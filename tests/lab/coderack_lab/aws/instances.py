"""The instances that the emulator has, as the lab's supervisor needs them. An ordinary API client."""

import functools
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

ROLE_TAG = "coderack:role"
PRESENT_STATES = ["pending", "running", "shutting-down", "stopping", "stopped"]  # all but terminated


@dataclass(frozen=True)
class InstanceView:
    """One instance; texts that the API does not give are empty."""

    instance_id: str
    name: str
    role: str
    state: str
    private_ip: str
    public_key: str  # of the key pair, in OpenSSH's format


def running_instances(endpoint: str, region: str) -> list[InstanceView]:
    """All instances that are not terminated, by name; stopped ones are in it with their state.

    Raises botocore's BotoCoreError or ClientError when the endpoint cannot be read.
    """
    client = _client(endpoint, region)
    pages = client.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "instance-state-name", "Values": PRESENT_STATES}]
    )
    reservations = [reservation for page in pages for reservation in page["Reservations"]]
    found = [instance for reservation in reservations for instance in reservation["Instances"]]
    pairs = client.describe_key_pairs(IncludePublicKey=True)["KeyPairs"]
    keys = {pair["KeyName"]: pair["PublicKey"] for pair in pairs}
    views = [_view(instance, keys) for instance in found]
    return sorted(views, key=lambda view: (view.name, view.instance_id))


def _view(instance: dict[str, Any], keys: dict[str, str]) -> InstanceView:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    return InstanceView(
        instance_id=instance["InstanceId"],
        name=tags.get("Name", ""),
        role=tags.get(ROLE_TAG, ""),
        state=instance["State"]["Name"],
        private_ip=instance.get("PrivateIpAddress", ""),
        public_key=keys.get(instance.get("KeyName", ""), ""),
    )


@functools.cache  # a client takes a third of a second to make, and the supervisor asks every few seconds
def _client(endpoint: str, region: str) -> Any:
    return boto3.client(
        "ec2",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(connect_timeout=3, read_timeout=15, retries={"total_max_attempts": 2}),
    )
