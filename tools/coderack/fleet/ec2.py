"""What EC2 says now about instances and reservations that are known by id."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from coderack.clients.aws import AwsError, errors

# AWS advises against more ids per request, and an answer about 500 nodes of 32 interfaces has 20 MB.
_BATCH = 500
_ID = re.compile(r"\b(?:i|cr)-[0-9a-zA-Z]+")
# What is compared of an instance. The rest is nine tenths of the answer.
_WANTED = (
    "instanceId",
    "instanceState",
    "instanceType",
    "imageId",
    "privateIpAddress",
    "ipAddress",
    "ipv6Address",
    "placement",
    "capacityReservationId",
)


def instances(client: Any, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """EC2's records of those instances that it knows, by id. Raises AwsError."""
    # Nobody else uses this client; botocore drops the handler with it.
    client.meta.events.register("before-parse.ec2.DescribeInstances", _keep_wanted)

    def ask(batch: list[str]) -> list[dict[str, Any]]:
        answer = client.describe_instances(InstanceIds=batch)
        return [record for reservation in answer["Reservations"] for record in reservation["Instances"]]

    records = _known(ask, ids, "InvalidInstanceID.NotFound", "DescribeInstances")
    return {record["InstanceId"]: record for record in records}


def reservations(client: Any, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """EC2's records of those capacity reservations that it knows, by id. Raises AwsError."""

    def ask(batch: list[str]) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = client.describe_capacity_reservations(CapacityReservationIds=batch)[
            "CapacityReservations"
        ]
        return records

    records = _known(ask, ids, "InvalidCapacityReservationId.NotFound", "DescribeCapacityReservations")
    return {record["CapacityReservationId"]: record for record in records}


def _known(
    ask: Callable[[list[str]], list[dict[str, Any]]], ids: Iterable[str], not_found: str, action: str
) -> list[dict[str, Any]]:
    """One unknown id makes EC2 refuse the whole request and name it; the others are then asked for again."""
    rest = sorted(set(ids))
    records: list[dict[str, Any]] = []
    while rest:
        batch = rest[:_BATCH]
        try:
            with errors(action):
                records += ask(batch)
        except AwsError as error:
            unknown = set(_ID.findall(str(error))) & set(batch)
            if error.code != not_found or not unknown:
                raise
            rest = [one for one in rest if one not in unknown]
        else:
            rest = rest[_BATCH:]
    return records


def _keep_wanted(response_dict: dict[str, Any], **_: object) -> None:
    """Drop what is not compared before botocore turns each element into objects: a quarter of the time is left."""
    try:
        root = ElementTree.fromstring(response_dict["body"])  # noqa: S314 - botocore parses the same text the same way
    except ElementTree.ParseError:
        return  # botocore says what is wrong with it
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    wanted = {space + name for name in _WANTED}
    for group in root.iter(f"{space}instancesSet"):
        for instance in group:
            instance[:] = [element for element in instance if element.tag in wanted]
    response_dict["body"] = ElementTree.tostring(root)


def tags(record: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a record of EC2."""
    return {tag["Key"]: tag["Value"] for tag in record.get("Tags", [])}
