"""The whole stack through its life: apply, plan again, lose a node, repair, destroy. Lived once, looked at by all."""

import ipaddress
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError

from coderack.spec.fleet import Fleet
from coderack_lab.aws.instances import InstanceView, running_instances
from coderack_lab.aws.server import Emulator

from .account import ACCOUNT, client, everything
from .runner import HERE, PUBLIC_KEY, REGION, Terraform

SUBNET = ipaddress.IPv4Network("10.77.0.0/24")
GPU_NAMES = ["gpu-a", "gpu-b"]
WHOLE = HERE / "whole.tfvars"
DEFAULT_TAGS = {
    "coderack:stack": "coderack",
    "project": "coderack",
    "env": "test",
    "owner": "ml-platform@example.net",
    "expiry": "2099-12-31",
}


@dataclass
class Plan:
    """What `terraform plan -detailed-exitcode` said: 0 nothing to do, 2 something."""

    code: int
    text: str

    def actions(self) -> dict[str, str]:
        """Address to action, as in the headlines of a plan."""
        lines = [line.strip()[2:] for line in self.text.splitlines() if line.startswith("  # ")]
        parts = [line.partition(" will be ") if " will be " in line else line.partition(" must be ") for line in lines]
        return {address: action.partition(",")[0] for address, _, action in parts}


@dataclass
class Life:
    """What was seen on the way."""

    block: dict[str, Any]
    fleet: Any
    bucket: str
    secret: str
    instances: dict[str, Any]
    rules: dict[str, list[Any]]
    volumes: list[Any]
    second_plan: Plan
    plan_with_later_expiry: Plan
    when_up: list[InstanceView]
    refused_by_api: dict[str, str] = field(default_factory=dict)
    protected_destroy: Plan | None = None
    when_protected: dict[str, list[str]] = field(default_factory=dict)
    standing: dict[str, list[str]] = field(default_factory=dict)
    when_stopped: list[InstanceView] = field(default_factory=list)
    when_terminated: list[InstanceView] = field(default_factory=list)
    checks: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    plan_of_repair: Plan | None = None
    before: dict[str, list[str]] = field(default_factory=dict)
    after: dict[str, list[str]] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def life(stack: Terraform, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Life:
    ec2 = client(emulator, "ec2")
    before = everything(emulator)
    block = buy_block(ec2)
    variables: tuple[str, ...] = (f"-var-file={WHOLE}", f"-var=capacity={json.dumps(capacity(block))}")

    def plan(*more: str) -> Plan:
        done = stack("plan", "-input=false", "-detailed-exitcode", *variables, *more)
        return Plan(done.returncode, done.stdout + done.stderr)

    with timed("apply"):
        stack.must("apply", "-input=false", "-auto-approve", *variables)
    with timed("second plan"):
        second = plan()
    instances = by_name(ec2)
    bucket, secret = stack.output("weights_bucket"), stack.output("api_keys_secret")
    life = Life(
        block=block,
        fleet=stack.output("fleet"),
        bucket=bucket,
        secret=secret,
        instances=instances,
        rules=rules_by_group(ec2),
        volumes=ec2.describe_volumes()["Volumes"],
        second_plan=second,
        plan_with_later_expiry=plan("-var=expiry=2100-06-30", "-var=owner=others@example.net"),
        when_up=running_instances(emulator.endpoint, REGION),
        before=before,
        seen=look_around(emulator, bucket, secret),
    )
    inventories = tmp_path_factory.mktemp("inventories")
    (inventories / "whole").mkdir()

    def fleet(verb: str, *more: str) -> subprocess.CompletedProcess[str]:
        """`coderack fleet` on what stands."""
        command = ("coderack", "fleet", verb, "--env=whole", f"--inventories={inventories}", *more)
        return subprocess.run(command, env=stack.environment(), capture_output=True, text=True, timeout=60, check=False)

    life.checks["write"] = fleet("write", f"--from={stack.directory}")
    life.checks["up"] = fleet("check", f"--from={stack.directory}", "--live")
    life.standing = everything(emulator)
    life.refused_by_api = {
        "stop": error_of(ec2.stop_instances, instances["gpu-a"]),
        "terminate": error_of(ec2.terminate_instances, instances["gpu-a"]),
    }
    protected = stack("destroy", "-input=false", "-auto-approve", *variables)
    life.protected_destroy = Plan(protected.returncode, protected.stdout + protected.stderr)
    life.when_protected = everything(emulator)
    variables += ("-var=termination_protection=false",)
    with timed("apply without protection"):
        stack.must("apply", "-input=false", "-auto-approve", *variables)
    ec2.stop_instances(InstanceIds=[instances["gpu-a"]["InstanceId"]])
    life.when_stopped = running_instances(emulator.endpoint, REGION)
    life.checks["stopped"] = fleet("check", "--live")
    ec2.start_instances(InstanceIds=[instances["gpu-a"]["InstanceId"]])
    ec2.terminate_instances(InstanceIds=[instances["gpu-b"]["InstanceId"]])
    life.when_terminated = running_instances(emulator.endpoint, REGION)
    life.checks["terminated"] = fleet("check", "--live")
    life.plan_of_repair = plan()
    with timed("destroy"):  # on the day after its expiry: what has expired must be removable
        stack.must("destroy", "-input=false", "-auto-approve", *variables, "-var=expiry=2020-01-01")
    ec2.cancel_capacity_reservation(CapacityReservationId=block["CapacityReservationId"])
    life.after = everything(emulator)
    return life


class timed:
    """Prints how long a step took; `pytest -s` or a failure shows it."""

    def __init__(self, step: str) -> None:
        self.step = step

    def __enter__(self) -> None:
        self.begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        print(f"terraform {self.step}: {time.monotonic() - self.begin:.1f} s")


def buy_block(ec2: Any) -> dict[str, Any]:
    offers = ec2.describe_capacity_block_offerings(
        InstanceType="p5.48xlarge", InstanceCount=2, CapacityDurationHours=48
    )["CapacityBlockOfferings"]
    bought: dict[str, Any] = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offers[0]["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    return bought


def capacity(block: dict[str, Any]) -> dict[str, Any]:
    """The stack's variable. Without the start, which lies ahead although the emulator's block is active at once."""
    return {
        "kind": "capacity_block",
        "reservation_id": block["CapacityReservationId"],
        "instance_type": block["InstanceType"],
        "zone": block["AvailabilityZone"],
        "count": block["TotalInstanceCount"],
        "ends_at": ends_at(block),
    }


def ends_at(block: dict[str, Any]) -> str:
    return str(block["EndDate"].strftime("%Y-%m-%dT%H:%M:%SZ"))


def error_of(call: Callable[..., Any], instance: dict[str, Any]) -> str:
    try:
        call(InstanceIds=[instance["InstanceId"]])
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "none"


def by_name(ec2: Any) -> dict[str, Any]:
    running = [{"Name": "instance-state-name", "Values": ["running"]}]
    reservations = ec2.describe_instances(Filters=running)["Reservations"]
    return {tags(one)["Name"]: one for reservation in reservations for one in reservation["Instances"]}


def tags(resource: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in resource["Tags"]}


def rules_by_group(ec2: Any) -> dict[str, list[Any]]:
    names = {group["GroupId"]: group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]}
    rules: dict[str, list[Any]] = {}
    for rule in ec2.describe_security_group_rules()["SecurityGroupRules"]:
        rules.setdefault(names[rule["GroupId"]], []).append(rule)
    return rules


def look_around(emulator: Emulator, bucket: str, secret: str) -> dict[str, Any]:
    """What has to be asked while the stack stands."""
    s3, iam, zones = client(emulator, "s3"), client(emulator, "iam"), client(emulator, "route53")
    budgets, alarms = client(emulator, "budgets"), client(emulator, "cloudwatch").describe_alarms()["MetricAlarms"]
    zone = zones.list_hosted_zones()["HostedZones"][0]
    records = zones.list_resource_record_sets(HostedZoneId=zone["Id"])["ResourceRecordSets"]
    s3.put_object(Bucket=bucket, Key="probe", Body=b"weights")
    encryption = s3.head_object(Bucket=bucket, Key="probe")["ServerSideEncryption"]
    versions = s3.list_object_versions(Bucket=bucket)["Versions"]
    for version in versions:
        s3.delete_object(Bucket=bucket, Key="probe", VersionId=version["VersionId"])
    try:
        value = client(emulator, "secretsmanager").get_secret_value(SecretId=secret)["SecretString"]
    except ClientError as error:
        value = error.response["Error"]["Code"]
    return {
        "encryption": encryption,
        "versioning": s3.get_bucket_versioning(Bucket=bucket)["Status"],
        "public access": s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"],
        "bucket policy": json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])["Statement"],
        "lifecycle": s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"],
        "secret": value,
        "rights": {role["RoleName"]: rights(iam, role["RoleName"]) for role in iam.list_roles()["Roles"]},
        "profiles": {one["Arn"]: one["Roles"] for one in iam.list_instance_profiles()["InstanceProfiles"]},
        "zone": zone,
        "records": {one["Name"]: one["ResourceRecords"][0]["Value"] for one in records if one["Type"] == "A"},
        "alarms": {one["AlarmName"]: one for one in alarms},
        "subscribers": [one["Endpoint"] for one in client(emulator, "sns").list_subscriptions()["Subscriptions"]],
        "budget": budgets.describe_budgets(AccountId=ACCOUNT)["Budgets"][0]["BudgetLimit"],
    }


def rights(iam: Any, role: str) -> set[str]:
    """Actions of a role's inline policies, and names of the policies attached to it."""
    found = {one["PolicyName"] for one in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]}
    for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
        for statement in iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            found |= {actions} if isinstance(actions, str) else set(actions)
    return found


def test_second_plan_is_empty(life: Life) -> None:
    assert life.second_plan.code == 0, life.second_plan.text


def test_new_tags_replace_nothing(life: Life) -> None:
    """Moving the expiry is routine. The provider takes a changed tag of a launch template for a new version of it."""
    actions = life.plan_with_later_expiry.actions()
    assert set(actions.values()) == {"updated in-place"}, life.plan_with_later_expiry.text


def test_protected_node_is_neither_stopped_nor_terminated(life: Life) -> None:
    assert set(life.refused_by_api.values()) == {"OperationNotPermitted"}


def test_destroy_of_a_protected_stack_touches_nothing(life: Life) -> None:
    assert life.protected_destroy is not None
    text = " ".join(life.protected_destroy.text.replace("│", " ").split())
    assert life.protected_destroy.code == 1
    assert "Apply once with -var termination_protection=false, then destroy again." in text
    assert life.when_protected == life.standing


def test_lost_node_is_made_anew_and_the_others_stay(life: Life) -> None:
    assert life.plan_of_repair is not None
    actions = life.plan_of_repair.actions()
    made = {address for address, action in actions.items() if action == "created"}
    assert made == {'module.gpu_nodes.aws_instance.gpu["gpu-b"]'}
    assert {action for address, action in actions.items() if address not in made} <= {"updated in-place"}


def test_the_live_check_holds_while_all_is_as_written(life: Life) -> None:
    for step in ("write", "up"):
        done = life.checks[step]
        assert done.returncode == 0, (step, done.stdout, done.stderr)
    assert "3 nodes" in life.checks["up"].stdout


def test_the_live_check_names_the_node_that_is_not_as_written(life: Life) -> None:
    for step, node in (("stopped", "gpu-a"), ("terminated", "gpu-b")):
        done = life.checks[step]
        assert done.returncode == 1, (step, done.stdout, done.stderr)
        assert {line.partition(":")[0] for line in done.stdout.splitlines() if " in EC2" in line} == {node}, done.stdout


def test_fleet_output_is_the_contract(life: Life) -> None:
    def node(name: str, role: str, kind: str, image: str, more: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": name,
            "role": role,
            "address": life.instances[name]["InstanceId"],
            "private_address": life.instances[name]["PrivateIpAddress"],
            "instance_id": life.instances[name]["InstanceId"],
            "instance_type": kind,
            "image_id": image,
            "zone": "us-west-2a",
            **more,
        }

    gpu = {
        "gpus": {"model": "NVIDIA H100", "count": 8},
        "fabric": {"kind": "efa", "devices": []},
        "reservation": {"id": life.block["CapacityReservationId"], "ends_at": ends_at(life.block)},
    }
    ops = {"gpus": {"model": "none", "count": 0}, "fabric": {"kind": "none", "devices": []}}
    assert life.fleet == {
        "version": 1,
        "stack": "aws",
        "region": "us-west-2",
        "nodes": [
            node("gpu-a", "gpu", "p5.48xlarge", "ami-0c0ded1a4c0ffee03", gpu),
            node("gpu-b", "gpu", "p5.48xlarge", "ami-0c0ded1a4c0ffee03", gpu),
            node("ops", "ops", "m7i.2xlarge", "ami-0c0de2404c0ffee02", ops),
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
def test_gpu_node_runs_in_the_block(life: Life, name: str) -> None:
    instance = life.instances[name]
    block = life.block["CapacityReservationId"]
    assert (instance["InstanceLifecycle"], instance["CapacityReservationId"]) == ("capacity-block", block)


@pytest.mark.parametrize("name", GPU_NAMES)
def test_gpu_node_is_not_recovered_to_other_hardware(life: Life, name: str) -> None:
    assert life.instances[name]["MaintenanceOptions"]["AutoRecovery"] == "disabled"


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
    assert own == {"Name": name, "coderack:role": role, **DEFAULT_TAGS}


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
        ("coderack-gpu", {("tcp", 8000, "coderack-ops"), ("tcp", 9100, "coderack-ops")}),
        ("coderack-ops", {("tcp", 443, "10.77.0.0/16")}),
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


def test_weights_are_encrypted_versioned_and_private(life: Life) -> None:
    seen = life.seen
    assert (seen["encryption"], seen["versioning"]) == ("aws:kms", "Enabled")
    assert set(seen["public access"].values()) == {True}
    assert [rule["NoncurrentVersionExpiration"]["NoncurrentDays"] for rule in seen["lifecycle"]] == [30]


def test_weights_travel_over_tls_only(life: Life) -> None:
    (statement,) = life.seen["bucket policy"]
    assert (statement["Effect"], statement["Principal"]) == ("Deny", "*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_secret_of_the_api_keys_has_no_value(life: Life) -> None:
    assert life.seen["secret"] == "ResourceNotFoundException"


@pytest.mark.parametrize(
    ("name", "role", "own"),
    [
        (
            "gpu-a",
            "coderack-gpu-",
            {"s3:GetBucketLocation", "s3:ListBucket", "s3:GetObject", "s3:GetObjectVersion", "kms:Decrypt"},
        ),
        ("ops", "coderack-ops-", {"secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue", "kms:Decrypt"}),
    ],
)
def test_node_may_do_what_it_needs_and_no_more(life: Life, name: str, role: str, own: set[str]) -> None:
    (attached,) = life.seen["profiles"][life.instances[name]["IamInstanceProfile"]["Arn"]]
    assert attached["RoleName"].startswith(role)
    assert life.seen["rights"][attached["RoleName"]] == {*own, "AmazonSSMManagedInstanceCore"}


def test_zone_is_private_and_names_all_nodes(life: Life) -> None:
    addresses = {name: instance["PrivateIpAddress"] for name, instance in life.instances.items()}
    wanted = {f"{name}.coderack.internal.": address for name, address in addresses.items()}
    assert life.seen["zone"]["Config"]["PrivateZone"] is True
    assert life.seen["records"] == wanted | {"gateway.coderack.internal.": addresses["ops"]}


def test_every_node_has_an_alarm_and_only_ops_is_recovered(life: Life) -> None:
    alarms = life.seen["alarms"]
    assert sorted(alarms) == ["coderack-gpu-a-status", "coderack-gpu-b-status", "coderack-ops-recover",
                              "coderack-ops-status"]  # fmt: skip
    recovered = [name for name, alarm in alarms.items() if any("ec2:recover" in one for one in alarm["AlarmActions"])]
    assert recovered == ["coderack-ops-recover"]


def test_node_without_data_counts_as_failed(life: Life) -> None:
    status = [alarm for name, alarm in life.seen["alarms"].items() if name.endswith("-status")]
    assert {alarm["TreatMissingData"] for alarm in status} == {"breaching"}


def test_somebody_hears_of_alarms_and_budget(life: Life) -> None:
    assert life.seen["subscribers"] == ["oncall@example.net"]
    assert float(life.seen["budget"]["Amount"]) == 50000


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


def test_destroy_leaves_nothing_even_after_the_expiry(life: Life) -> None:
    assert life.after == life.before
