import datetime
import json
from typing import Any

import pytest

from coderack.fleet import drift
from coderack.fleet.contract import parse_fleet
from coderack.spec.fleet import Fleet

from .data import Edit, node

END = datetime.datetime(2027, 1, 31, 11, 30, tzinfo=datetime.UTC)
NOW = END - datetime.timedelta(days=3)


def parsed(data: dict[str, Any]) -> Fleet:
    return parse_fleet(json.dumps(data))


@pytest.mark.parametrize(
    ("edit", "finding"),
    [
        (
            lambda state: node(state, "gpu-a").update(private_address="10.77.0.99"),
            "gpu-a: private_address is 10.77.0.99 in Terraform's state, 10.77.0.10 in the inventory",
        ),
        (
            lambda state: node(state, "gpu-a").update(instance_id="i-0new"),
            "gpu-a: instance_id is i-0new in Terraform's state, i-0bbb in the inventory",
        ),
        (
            lambda state: node(state, "gpu-b").update(name="gpu-c"),
            "gpu-b: node is missing in Terraform's state, present in the inventory\n"
            "gpu-c: node is present in Terraform's state, missing in the inventory",
        ),
        (
            lambda state: node(state, "ops").update(image_id="ami-1"),
            "ops: image_id is ami-1 in Terraform's state, none in the inventory",
        ),
        (
            lambda state: node(state, "gpu-b").update(reservation={"id": "cr-0123"}),
            "gpu-b: reservation is id cr-0123 in Terraform's state, "
            "id cr-0123, ends_at 2027-01-31T11:30:00Z in the inventory",
        ),
        (
            lambda state: state.update(region="eu-west-1"),
            "fleet: region is eu-west-1 in Terraform's state, none in the inventory",
        ),
        (lambda state: state["nodes"].reverse(), ""),
        (lambda state: node(state, "gpu-b")["reservation"].update(ends_at="2027-01-31T12:30:00+01:00"), ""),
    ],
)
def test_differences_to_the_state(fleet_data: dict[str, Any], edit: Edit, finding: str) -> None:
    written = parsed(fleet_data)
    edit(fleet_data)
    assert "\n".join(map(str, drift.against_state(written, parsed(fleet_data)))) == finding


def records(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Instances as EC2 shows them when all is well; a host name has no counterpart there."""
    return {
        entry.instance_id or "": {
            "InstanceId": entry.instance_id,
            "State": {"Name": "running"},
            "InstanceType": entry.instance_type,
            "ImageId": "ami-1",
            "PrivateIpAddress": entry.private_address,
            "Placement": {"AvailabilityZone": entry.zone, "GroupName": "group"},
            **({"CapacityReservationId": entry.reservation.id} if entry.reservation else {}),
        }
        for entry in fleet.nodes
    }


Records = dict[str, dict[str, Any]]
BLOCK = {"CapacityReservationId": "cr-0123", "State": "active", "EndDate": END}


@pytest.mark.parametrize(
    ("change", "findings"),
    [
        ({}, []),
        ({"State": {"Name": "stopped"}}, ["gpu-b: state is stopped in EC2, running in the inventory"]),
        (
            {"State": {"Name": "terminated"}, "PrivateIpAddress": None},
            ["gpu-b: state is terminated in EC2, running in the inventory"],
        ),
        (
            {"PrivateIpAddress": "10.77.0.99"},
            ["gpu-b: private_address is 10.77.0.99 in EC2, 10.77.0.11 in the inventory"],
        ),
        ({"ImageId": "ami-2"}, ["gpu-b: image_id is ami-2 in EC2, ami-1 in the inventory"]),
        (
            {"Placement": {"AvailabilityZone": "us-west-2b", "GroupName": ""}},
            [
                "gpu-b: zone is us-west-2b in EC2, us-west-2a in the inventory",
                "gpu-b: placement_group is none in EC2, group in the inventory",
            ],
        ),
        (
            {"InstanceType": "p5en.48xlarge"},
            ["gpu-b: instance_type is p5en.48xlarge in EC2, p5.48xlarge in the inventory"],
        ),
        ({"CapacityReservationId": None}, ["gpu-b: reservation.id is none in EC2, cr-0123 in the inventory"]),
    ],
)
def test_differences_of_an_instance(fleet_data: dict[str, Any], change: dict[str, Any], findings: list[str]) -> None:
    node(fleet_data, "gpu-b").update(image_id="ami-1", placement_group="group")
    fleet = parsed(fleet_data)
    found = records(fleet)
    found["i-0ccc"] |= change
    assert [str(one) for one in drift.against_ec2(fleet, found, {"cr-0123": BLOCK}, NOW)] == findings


def test_an_instance_that_ec2_does_not_know(fleet_data: dict[str, Any]) -> None:
    fleet = parsed(fleet_data)
    found = records(fleet)
    del found["i-0bbb"]
    assert [str(one) for one in drift.against_ec2(fleet, found, {"cr-0123": BLOCK}, NOW)] == [
        "gpu-a: instance_id is unknown in EC2, i-0bbb in the inventory"
    ]


@pytest.mark.parametrize(
    ("address", "public", "count"),
    [("52.1.2.3", "52.1.2.3", 0), ("52.1.2.3", "52.9.9.9", 1), ("52.1.2.3", None, 1), ("gpu.example.org", None, 0)],
)
def test_an_address_to_connect_to_must_be_the_instances(
    fleet_data: dict[str, Any], address: str, public: str | None, count: int
) -> None:
    node(fleet_data, "gpu-b").update(address=address)
    fleet = parsed(fleet_data)
    found = records(fleet)
    found["i-0ccc"] |= {"PublicIpAddress": public}
    assert len(drift.against_ec2(fleet, found, {"cr-0123": BLOCK}, NOW)) == count


@pytest.mark.parametrize(
    ("record", "now", "findings"),
    [
        (BLOCK, NOW, []),
        (None, NOW, ["gpu-b: reservation cr-0123 is unknown in EC2, active in the inventory"]),
        (BLOCK | {"State": "expired"}, NOW, ["gpu-b: reservation cr-0123 is expired in EC2, active in the inventory"]),
        (
            BLOCK | {"EndDate": END + datetime.timedelta(days=7)},
            NOW,
            ["gpu-b: end of reservation cr-0123 is 2027-02-07T11:30:00Z in EC2, 2027-01-31T11:30:00Z in the inventory"],
        ),
        (
            BLOCK,
            END - datetime.timedelta(minutes=30),
            [
                "gpu-b: end of reservation cr-0123 is 2027-01-31T11:30:00Z, which is too close: AWS takes the nodes "
                "30 minutes before it in EC2, further off in the inventory"
            ],
        ),
        (BLOCK, END - datetime.timedelta(minutes=31), []),
    ],
)
def test_differences_of_a_reservation(
    fleet_data: dict[str, Any], record: dict[str, Any] | None, now: datetime.datetime, findings: list[str]
) -> None:
    fleet = parsed(fleet_data)
    held = {"cr-0123": record} if record else {}
    assert [str(one) for one in drift.against_ec2(fleet, records(fleet), held, now)] == findings


def test_a_reservation_without_an_end_has_none_to_compare(fleet_data: dict[str, Any]) -> None:
    node(fleet_data, "gpu-b").update(reservation={"id": "cr-0123"})
    fleet = parsed(fleet_data)
    held = {"cr-0123": {"CapacityReservationId": "cr-0123", "State": "active"}}
    assert drift.against_ec2(fleet, records(fleet), held, NOW) == []


def test_what_an_older_inventory_does_not_say_is_counted_and_what_is_a_name(fleet_data: dict[str, Any]) -> None:
    assert drift.not_compared(parsed(fleet_data)) == {"image_id": 3, "placement_group": 2, "address": 1}
