from typing import Any

import pytest

from coderack.clients import aws as clients
from coderack.fleet import ec2 as live

from .cloud import IMAGE, REGION, launch_fleet, refusing


def test_reads_answers_of_several_pages(ec2: Any) -> None:
    # The emulator's pages, as EC2's, hold 100 launches.
    vpc = ec2.create_vpc(CidrBlock="10.99.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.99.0.0/24")["Subnet"]["SubnetId"]
    request = {"SubnetId": subnet, "ImageId": IMAGE, "InstanceType": "m7i.2xlarge", "MinCount": 1, "MaxCount": 1}
    ids = [ec2.run_instances(**request)["Instances"][0]["InstanceId"] for _ in range(102)]
    assert live.instances(clients.client("ec2", REGION), ids).keys() == set(ids)


def test_reads_of_an_instance_what_botocore_reads(ec2: Any) -> None:
    contract = launch_fleet(ec2)
    ids = [node["instance_id"] for node in contract["nodes"]]
    whole = {
        record["InstanceId"]: record
        for reservation in ec2.describe_instances(InstanceIds=ids)["Reservations"]
        for record in reservation["Instances"]
    }
    for identifier, record in live.instances(clients.client("ec2", REGION), ids).items():
        theirs = whole[identifier]
        state, placement = record.pop("State"), record.pop("Placement")
        assert state["Name"] == theirs["State"]["Name"] == "running"
        assert all((placement[key] or "") == theirs["Placement"].get(key, "") for key in placement)
        assert record == {key: theirs[key] for key in record}
        assert {"ImageId", "InstanceType", "PrivateIpAddress"} <= record.keys()


def test_no_ids_ask_nothing(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    client = clients.client("ec2", REGION)
    assert (live.instances(client, []), live.reservations(client, [])) == ({}, {})


def test_an_unknown_id_that_ec2_does_not_name_is_an_error(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing("InvalidInstanceID.NotFound", "Something is not there.", 400) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        client = clients.client("ec2", REGION)
        with pytest.raises(clients.AwsError, match="Something is not there"):
            live.instances(client, ["i-0123456789abcdef0"])
