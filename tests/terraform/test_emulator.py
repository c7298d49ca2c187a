"""Where the emulator goes beyond moto, as any API client sees it."""

import datetime
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from coderack_lab.aws.console import ConsoleActions
from coderack_lab.aws.server import Emulator

from .account import ACCOUNT, client
from .runner import REGION

IMAGE = "ami-0c0de12b00c0ffee1"


@pytest.fixture
def ec2(emulator: Emulator) -> Any:
    return client(emulator, "ec2")


@pytest.fixture
def subnet(ec2: Any) -> Any:
    """A fresh subnet with three assignable addresses: .4, .5 and .6."""
    vpc = ec2.create_vpc(CidrBlock="10.99.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.99.0.0/29", AvailabilityZone=f"{REGION}a")["Subnet"]
    yield made["SubnetId"]
    for reservation in ec2.describe_instances(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Reservations"]:
        ec2.terminate_instances(InstanceIds=[instance["InstanceId"] for instance in reservation["Instances"]])
    ec2.delete_subnet(SubnetId=made["SubnetId"])
    ec2.delete_vpc(VpcId=vpc)


def launch(ec2: Any, subnet: str, **options: Any) -> Any:
    request = {"ImageId": IMAGE, "InstanceType": "m7i.2xlarge", "SubnetId": subnet, "MinCount": 1, "MaxCount": 1}
    return ec2.run_instances(**(request | options))["Instances"][0]


def test_addresses_are_unique_and_freed_on_termination(ec2: Any, subnet: str) -> None:
    nodes = [launch(ec2, subnet) for _ in range(3)]
    assert [node["PrivateIpAddress"] for node in nodes] == ["10.99.0.4", "10.99.0.5", "10.99.0.6"]
    ec2.terminate_instances(InstanceIds=[nodes[1]["InstanceId"]])
    assert launch(ec2, subnet)["PrivateIpAddress"] == "10.99.0.5"


def test_full_subnet_is_an_error(ec2: Any, subnet: str) -> None:
    for _ in range(3):
        launch(ec2, subnet)
    with pytest.raises(ClientError, match=r"no free address left in 10\.99\.0\.0/29"):
        launch(ec2, subnet)


@pytest.mark.parametrize(
    ("address", "code"), [("10.99.0.3", "InvalidParameterValue"), ("10.99.0.4", "InvalidIPAddress.InUse")]
)
def test_reserved_or_used_address_is_refused(ec2: Any, subnet: str, address: str, code: str) -> None:
    launch(ec2, subnet)
    with pytest.raises(ClientError) as refused:
        launch(ec2, subnet, PrivateIpAddress=address)
    assert refused.value.response["Error"]["Code"] == code


def test_terminating_twice_is_no_error(ec2: Any, subnet: str) -> None:
    node = launch(ec2, subnet)["InstanceId"]
    ec2.terminate_instances(InstanceIds=[node])
    again = ec2.terminate_instances(InstanceIds=[node])["TerminatingInstances"]
    assert [change["InstanceId"] for change in again] == [node]


def test_placement_group_in_use_cannot_be_deleted(ec2: Any, subnet: str) -> None:
    ec2.create_placement_group(GroupName="test", Strategy="cluster")
    node = launch(ec2, subnet, Placement={"GroupName": "test"})
    with pytest.raises(ClientError, match="is in use"):
        ec2.delete_placement_group(GroupName="test")
    ec2.terminate_instances(InstanceIds=[node["InstanceId"]])
    ec2.delete_placement_group(GroupName="test")


def test_capacity_reservation_counts_its_slots(ec2: Any, subnet: str) -> None:
    made = ec2.create_capacity_reservation(
        InstanceType="m7i.2xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone=f"{REGION}a", InstanceCount=1
    )["CapacityReservation"]["CapacityReservationId"]
    target = {"CapacityReservationTarget": {"CapacityReservationId": made}}
    node = launch(ec2, subnet, CapacityReservationSpecification=target)
    with pytest.raises(ClientError, match="with 0 free, 1 asked for"):
        launch(ec2, subnet, CapacityReservationSpecification=target)
    ec2.terminate_instances(InstanceIds=[node["InstanceId"]])
    described = ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"][0]
    assert described["AvailableInstanceCount"] == 1
    ec2.cancel_capacity_reservation(CapacityReservationId=made)


def test_bought_capacity_block_is_a_reservation_that_ends(ec2: Any) -> None:
    offer = ec2.describe_capacity_block_offerings(InstanceType="p5.48xlarge", InstanceCount=2, CapacityDurationHours=24)
    chosen = offer["CapacityBlockOfferings"][0]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=chosen["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    assert (bought["ReservationType"], bought["TotalInstanceCount"]) == ("capacity-block", 2)
    assert bought["EndDate"] - bought["StartDate"] == datetime.timedelta(hours=24)


def test_account_defaults_are_kept(ec2: Any) -> None:
    ec2.modify_instance_metadata_defaults(HttpTokens="required", HttpPutResponseHopLimit=1)
    assert ec2.get_instance_metadata_defaults()["AccountLevel"]["HttpTokens"] == "required"
    ec2.modify_ebs_default_kms_key_id(KmsKeyId="alias/test")
    ec2.reset_ebs_default_kms_key_id()
    assert ec2.get_ebs_default_kms_key_id()["KmsKeyId"] == "alias/aws/ebs"


def test_monitoring_can_be_switched(ec2: Any, subnet: str) -> None:
    node = launch(ec2, subnet)["InstanceId"]
    assert ec2.monitor_instances(InstanceIds=[node])["InstanceMonitorings"][0]["Monitoring"]["State"] == "enabled"


def test_console_shows_what_its_machine_wrote(ec2: Any, subnet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (launch(ec2, subnet)["InstanceId"] for _ in range(2))
    assert "Output" not in ec2.get_console_output(InstanceId=first)
    written = {first: "boots …\n"}
    monkeypatch.setattr(ConsoleActions, "read", staticmethod(lambda instance: written.get(instance, "")))
    assert ec2.get_console_output(InstanceId=first, Latest=True)["Output"] == "boots …\n"
    assert "Output" not in ec2.get_console_output(InstanceId=second)
    with pytest.raises(ClientError, match="InvalidInstanceID"):
        ec2.get_console_output(InstanceId="i-0123456789abcdef0")


def test_budget_keeps_its_subscribers_and_tags(emulator: Emulator) -> None:
    budgets = client(emulator, "budgets")
    notification = {"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 80.0}
    subscribers = [{"SubscriptionType": "EMAIL", "Address": "oncall@example.net"}]
    budgets.create_budget(
        AccountId=ACCOUNT,
        Budget={
            "BudgetName": "test",
            "BudgetType": "COST",
            "TimeUnit": "MONTHLY",
            "BudgetLimit": {"Amount": "1", "Unit": "USD"},
        },
        NotificationsWithSubscribers=[{"Notification": notification, "Subscribers": subscribers}],
        ResourceTags=[{"Key": "owner", "Value": "somebody"}, {"Key": "env", "Value": "test"}],
    )
    arn = f"arn:aws:budgets::{ACCOUNT}:budget/test"
    budgets.tag_resource(ResourceARN=arn, ResourceTags=[{"Key": "owner", "Value": "others"}])
    budgets.untag_resource(ResourceARN=arn, ResourceTagKeys=["env"])
    found = budgets.describe_subscribers_for_notification(
        AccountId=ACCOUNT, BudgetName="test", Notification=notification
    )
    assert found["Subscribers"] == subscribers
    assert budgets.list_tags_for_resource(ResourceARN=arn)["ResourceTags"] == [{"Key": "owner", "Value": "others"}]
    budgets.delete_budget(AccountId=ACCOUNT, BudgetName="test")


def test_bucket_that_refuses_plain_http_takes_uploads(emulator: Emulator) -> None:
    s3 = client(emulator, "s3")
    s3.create_bucket(Bucket="tls-only", CreateBucketConfiguration={"LocationConstraint": REGION})
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": ["arn:aws:s3:::tls-only", "arn:aws:s3:::tls-only/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    s3.put_bucket_policy(Bucket="tls-only", Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    s3.put_object(Bucket="tls-only", Key="probe", Body=b"1")
    s3.delete_object(Bucket="tls-only", Key="probe")
    s3.delete_bucket(Bucket="tls-only")


def test_denial_without_condition_stays_a_denial(emulator: Emulator) -> None:
    s3 = client(emulator, "s3")
    s3.create_bucket(Bucket="closed", CreateBucketConfiguration={"LocationConstraint": REGION})
    statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::closed/*"}
    s3.put_bucket_policy(Bucket="closed", Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    with pytest.raises(ClientError, match="Forbidden"):
        s3.put_object(Bucket="closed", Key="probe", Body=b"1")
    s3.delete_bucket(Bucket="closed")


@pytest.mark.parametrize(("given", "private"), [({}, False), ({"VPCRegion": REGION}, True)], ids=["public", "private"])
def test_zone_with_a_vpc_is_private(emulator: Emulator, ec2: Any, given: dict[str, str], private: bool) -> None:
    zones, vpc = client(emulator, "route53"), ec2.create_vpc(CidrBlock="10.98.0.0/16")["Vpc"]["VpcId"]
    where = {"VPC": given | {"VPCId": vpc}} if given else {}
    made = zones.create_hosted_zone(Name=f"{vpc}.internal", CallerReference=vpc, **where)["HostedZone"]
    assert zones.get_hosted_zone(Id=made["Id"])["HostedZone"]["Config"]["PrivateZone"] is private
    zones.delete_hosted_zone(Id=made["Id"])
    ec2.delete_vpc(VpcId=vpc)


def test_policy_of_aws_that_nodes_need_is_there(emulator: Emulator) -> None:
    policies = client(emulator, "iam").list_policies(Scope="AWS")["Policies"]
    assert [policy["PolicyName"] for policy in policies] == ["AmazonSSMManagedInstanceCore"]


@pytest.mark.parametrize(
    ("service", "action"),
    [
        ("ec2", "describe_ipams"),
        ("ssm", "list_nodes"),
        ("iam", "list_service_specific_credentials"),
        ("dlm", "get_lifecycle_policies"),
    ],
)
def test_what_is_missing_is_a_readable_400(emulator: Emulator, service: str, action: str) -> None:
    with pytest.raises(ClientError, match="The lab's AWS emulator") as refused:
        getattr(client(emulator, service), action)()
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
