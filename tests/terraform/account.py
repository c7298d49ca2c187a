"""What exists in the emulated account, service by service: the answer to "is anything left?"."""

from collections.abc import Callable
from typing import Any

import boto3

from coderack_lab.aws.server import Emulator

from .runner import REGION

ACCOUNT = "123456789012"  # the emulator's
# What EC2 itself keeps showing for a while after its end does not count.
ENDED = ("terminated", "deleted", "cancelled")


def client(emulator: Emulator, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=emulator.endpoint,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def everything(emulator: Emulator) -> dict[str, list[str]]:
    """Identifiers of all that the stack could leave behind, by kind."""

    def ask(service: str) -> Any:
        return client(emulator, service)

    return {kind: sorted(found) for kind, found in {**_ec2(ask("ec2")), **_others(ask)}.items()}


def _ec2(ec2: Any) -> dict[str, list[str]]:
    instances = [one for r in ec2.describe_instances()["Reservations"] for one in r["Instances"]]
    gateways = ec2.describe_nat_gateways()["NatGateways"]
    endpoints = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    return {
        "instances": [one["InstanceId"] for one in instances if one["State"]["Name"] not in ENDED],
        "NAT gateways": [one["NatGatewayId"] for one in gateways if one["State"] not in ENDED],
        "endpoints": [one["VpcEndpointId"] for one in endpoints if one["State"] not in ENDED],
        "VPCs": [one["VpcId"] for one in ec2.describe_vpcs()["Vpcs"]],
        "subnets": [one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]],
        "route tables": [one["RouteTableId"] for one in ec2.describe_route_tables()["RouteTables"]],
        "gateways": [one["InternetGatewayId"] for one in ec2.describe_internet_gateways()["InternetGateways"]],
        "security groups": [one["GroupId"] for one in ec2.describe_security_groups()["SecurityGroups"]],
        "interfaces": [one["NetworkInterfaceId"] for one in ec2.describe_network_interfaces()["NetworkInterfaces"]],
        "addresses": [one["PublicIp"] for one in ec2.describe_addresses()["Addresses"]],
        "volumes": [one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]],
        "key pairs": [one["KeyName"] for one in ec2.describe_key_pairs()["KeyPairs"]],
        "templates": [one["LaunchTemplateName"] for one in ec2.describe_launch_templates()["LaunchTemplates"]],
        "placement groups": [one["GroupName"] for one in ec2.describe_placement_groups()["PlacementGroups"]],
        "flow logs": [one["FlowLogId"] for one in ec2.describe_flow_logs()["FlowLogs"]],
    }


def _others(ask: Callable[[str], Any]) -> dict[str, list[str]]:
    iam, kms, alarms = ask("iam"), ask("kms"), ask("cloudwatch").describe_alarms()["MetricAlarms"]
    keys = [kms.describe_key(KeyId=one["KeyId"])["KeyMetadata"] for one in kms.list_keys()["Keys"]]
    # The account's own key for volumes, which the emulator makes with the first one.
    of_aws = [one["TargetKeyId"] for one in kms.list_aliases()["Aliases"] if one["AliasName"].startswith("alias/aws/")]
    return {
        "roles": [one["RoleName"] for one in iam.list_roles()["Roles"]],
        "instance profiles": [one["InstanceProfileName"] for one in iam.list_instance_profiles()["InstanceProfiles"]],
        "policies": [one["PolicyName"] for one in iam.list_policies(Scope="Local")["Policies"]],
        # KMS never deletes at once: 7 to 30 days pending, during which the key cannot be used.
        "keys": [key["KeyId"] for key in keys if key["KeyState"] != "PendingDeletion" and key["KeyId"] not in of_aws],
        "buckets": [one["Name"] for one in ask("s3").list_buckets()["Buckets"]],
        "secrets": [one["Name"] for one in ask("secretsmanager").list_secrets()["SecretList"]],
        "alarms": [one["AlarmName"] for one in alarms],
        "topics": [one["TopicArn"] for one in ask("sns").list_topics()["Topics"]],
        "subscriptions": [one["SubscriptionArn"] for one in ask("sns").list_subscriptions()["Subscriptions"]],
        "log groups": [one["logGroupName"] for one in ask("logs").describe_log_groups()["logGroups"]],
        "zones": [one["Name"] for one in ask("route53").list_hosted_zones()["HostedZones"]],
        "budgets": [one["BudgetName"] for one in ask("budgets").describe_budgets(AccountId=ACCOUNT)["Budgets"]],
    }
