"""What EC2 says now about instances and reservations that are known by id."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from coderack.clients.aws import AwsError, errors

# An answer about a hundred nodes of 32 interfaces has 4 MB; longer ones come in pages, each for a question that repeats
# all ids.
_BATCH = 100
_ACTION = "DescribeInstances"
_ID = re.compile(r"\b(?:i|cr)-[0-9a-zA-Z]+")
# Element of DescribeInstances' answer -> member of botocore's record; what is compared of an instance, a tenth of it.
_MEMBERS = {
    "instanceId": "InstanceId",
    "instanceType": "InstanceType",
    "imageId": "ImageId",
    "privateIpAddress": "PrivateIpAddress",
    "ipAddress": "PublicIpAddress",
    "ipv6Address": "Ipv6Address",
    "capacityReservationId": "CapacityReservationId",
}

Records = dict[str, dict[str, Any]]  # by id


def instances(client: Any, ids: Iterable[str]) -> Records:
    """EC2's records of those instances that it knows, by id. Raises AwsError."""
    # Nobody else uses this client; botocore drops the handler with it.
    client.meta.events.register(f"before-parse.ec2.{_ACTION}", _read_wanted)

    def ask(batch: list[str]) -> Records:
        # A question by id is answered in pages too where the answer is long, though their size cannot be chosen.
        pages = client.get_paginator("describe_instances").paginate(InstanceIds=batch)
        found = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
        return {record["InstanceId"]: record for record in found}

    return _known(ask, ids, "InvalidInstanceID.NotFound", _ACTION)


def reservations(client: Any, ids: Iterable[str]) -> Records:
    """EC2's records of those capacity reservations that it knows, by id. Raises AwsError."""

    def ask(batch: list[str]) -> Records:
        pages = client.get_paginator("describe_capacity_reservations").paginate(CapacityReservationIds=batch)
        found = [record for page in pages for record in page["CapacityReservations"]]
        return {record["CapacityReservationId"]: record for record in found if record["State"]}

    return _known(ask, ids, "InvalidCapacityReservationId.NotFound", "DescribeCapacityReservations")


def _known(ask: Callable[[list[str]], Records], ids: Iterable[str], not_found: str, action: str) -> Records:
    """One unknown id makes EC2 refuse the whole request and name it; the others are then asked for again."""
    rest = sorted(set(ids))
    records: Records = {}
    while rest:
        batch = rest[:_BATCH]
        try:
            with errors(action):
                records |= ask(batch)
        except AwsError as error:
            unknown = set(_ID.findall(str(error))) & set(batch)
            if error.code != not_found or not unknown:
                raise
            rest = [one for one in rest if one not in unknown]
        else:
            rest = rest[_BATCH:]
    return records


def _read_wanted(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Read the few members that are wanted in place of botocore, whose objects for all of them cost four times as much.

    An answer without instances, such as an error, is left to botocore.
    """
    try:
        root = ElementTree.fromstring(response_dict["body"])  # noqa: S314 - botocore parses the same text the same way
    except ElementTree.ParseError:
        return
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    reservations = root.find(f"{space}reservationSet")
    if reservations is None:
        return
    customized_response_dict["Reservations"] = [
        {"Instances": [_record(one, space) for one in group]} for group in reservations.iter(f"{space}instancesSet")
    ]
    # What is left tells whether there is another page.
    root.remove(reservations)
    response_dict["body"] = ElementTree.tostring(root)


def _record(instance: ElementTree.Element, space: str) -> dict[str, Any]:
    texts = {child.tag.removeprefix(space): child.text for child in instance}
    record: dict[str, Any] = {member: texts[name] for name, member in _MEMBERS.items() if texts.get(name)}
    record["State"] = {"Name": instance.findtext(f"{space}instanceState/{space}name", "unknown")}
    placement = f"{space}placement/{space}"
    names = {"AvailabilityZone": "availabilityZone", "GroupName": "groupName"}
    record["Placement"] = {member: instance.findtext(placement + name) for member, name in names.items()}
    return record


def tags(record: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a record of EC2."""
    return {tag["Key"]: tag["Value"] for tag in record.get("Tags", [])}
