"""`coderack fleet check` against a state and against EC2, which the lab's emulator plays."""

import datetime
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from .cloud import REGION, answering, launch_fleet, refusing
from .data import node
from .program import run


def write(contract: dict[str, Any]) -> None:
    code, _, err = run("fleet", "write", "--env", "aws", "-", stdin=json.dumps(contract))
    assert code == 0, err


def check(*options: str, stdin: str | None = None) -> tuple[int, str, str]:
    return run("fleet", "check", "--env", "aws", *options, stdin=stdin)


def test_agrees_with_the_contract_that_it_was_written_from(inventories: Path, fleet_data: dict[str, Any]) -> None:
    write(fleet_data)
    assert check("-", stdin=json.dumps(fleet_data)) == (0, "inventories/aws/hosts.yml agrees with state: 3 nodes\n", "")


def test_names_what_differs_from_the_state(inventories: Path, fleet_data: dict[str, Any]) -> None:
    write(fleet_data)
    node(fleet_data, "gpu-a").update(instance_id="i-0new")
    code, out, err = check("-", stdin=json.dumps(fleet_data))
    assert code == 1
    assert out == "gpu-a: instance_id is i-0new in Terraform's state, i-0bbb in the inventory\n"
    assert "1 difference(s); write the inventory again" in err


def test_a_broken_contract_or_inventory_is_2_and_a_missing_one_3(inventories: Path, fleet_data: dict[str, Any]) -> None:
    assert check("-", stdin=json.dumps(fleet_data))[0] == 3
    write(fleet_data)
    assert check("-", stdin="{}")[0] == 2
    path = inventories / "aws" / "hosts.yml"
    path.write_text(path.read_text().replace("fleet_zone", "fleet_zoen", 1))
    code, _, err = check("-", stdin=json.dumps(fleet_data))
    assert code == 2
    assert "fleet_zoen is not a known key" in err


def test_says_what_to_compare_with_when_nothing_is_given(inventories: Path) -> None:
    code, _, err = check()
    assert (code, err) == (
        2,
        "coderack: nothing to compare with; give FILE (or -), --from DIR, --live, or a state and --live\n",
    )


@pytest.fixture
def live(inventories: Path, ec2: Any) -> dict[str, Any]:
    """A fleet that runs in EC2, and its inventory."""
    contract = launch_fleet(ec2)
    write(contract)
    return contract


def test_agrees_with_ec2(live: dict[str, Any]) -> None:
    assert check("--live") == (0, "inventories/aws/hosts.yml agrees with ec2: 3 nodes\n", "")
    code, out, _ = check("-", "--live", stdin=json.dumps(live))
    assert (code, out) == (0, "inventories/aws/hosts.yml agrees with state and ec2: 3 nodes\n")


def test_names_a_terminated_instance_and_a_stopped_one(live: dict[str, Any], ec2: Any) -> None:
    ec2.terminate_instances(InstanceIds=[node(live, "gpu-b")["instance_id"]])
    ec2.stop_instances(InstanceIds=[node(live, "ops")["instance_id"]])
    code, out, err = check("--live")
    assert code == 1
    assert out.splitlines() == [
        "gpu-b: state is terminated in EC2, running in the inventory",
        "ops: state is stopped in EC2, running in the inventory",
    ]
    assert err.startswith("coderack: 2 difference(s)")


def test_names_instances_and_reservations_that_ec2_does_not_know(live: dict[str, Any]) -> None:
    unknown = ["i-0123456789abcdef0", "i-0123456789abcdef1"]
    for name, identifier in zip(("gpu-a", "ops"), unknown, strict=True):
        node(live, name).update(instance_id=identifier, address=identifier)
    node(live, "gpu-b")["reservation"].update(id="cr-0123456789abcdef0")
    write(live)
    code, out, _ = check("--live", "--json")
    report = json.loads(out)
    assert (code, report["schema"], report["holds"]) == (1, "coderack.fleet-check/1", False)
    assert {(one["node"], one["field"], one["seen"]) for one in report["findings"]} == {
        ("gpu-a", "instance_id", "unknown"),
        ("gpu-b", "reservation.id", node(live, "gpu-a")["reservation"]["id"]),
        ("gpu-b", "reservation cr-0123456789abcdef0", "unknown"),
        ("ops", "instance_id", "unknown"),
    }


def test_names_a_changed_image_group_and_reservation_end(live: dict[str, Any]) -> None:
    block = node(live, "gpu-a")["reservation"]
    later = datetime.datetime.fromisoformat(block["ends_at"]) + datetime.timedelta(days=1)
    node(live, "gpu-a").update(image_id="ami-other", placement_group="other")
    for name in ("gpu-a", "gpu-b"):
        node(live, name)["reservation"] = block | {"ends_at": later.isoformat()}
    write(live)
    code, out, _ = check("--live")
    assert code == 1
    fields = [line.split(" is ")[0] for line in out.splitlines()]
    assert fields == [
        "gpu-a: image_id",
        "gpu-a: placement_group",
        f"gpu-a: end of reservation {block['id']}",
    ]


def test_an_ended_reservation_is_a_difference(live: dict[str, Any], ec2: Any) -> None:
    ec2.cancel_capacity_reservation(CapacityReservationId=node(live, "gpu-a")["reservation"]["id"])
    code, out, _ = check("--live")
    assert code == 1
    assert "is cancelled in EC2, active in the inventory" in out


def test_an_older_inventory_is_compared_in_what_it_says(live: dict[str, Any]) -> None:
    for entry in live["nodes"]:
        entry.pop("image_id")
    live.pop("region")
    write(live)
    code, out, _ = check("--live", "--region", REGION)
    assert code == 0
    assert "not compared, as the inventory does not say it or says a name: image_id of 3 node(s)" in out


def test_the_region_is_the_contracts_then_the_operators(live: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert check("--live")[0] == 0
    assert check("--live", "--region", "eu-west-1")[0] == 1
    live.pop("region")
    write(live)
    assert check("--live")[0] == 1
    monkeypatch.delenv("AWS_REGION")
    code, _, err = check("--live")
    assert code == 2
    assert "no region is known; give --region or set AWS_REGION" in err


def test_a_node_without_an_instance_id_is_unknown_not_healthy(live: dict[str, Any]) -> None:
    node(live, "ops").pop("instance_id")
    write(live)
    code, out, err = check("--live")
    assert (code, out) == (3, "")
    assert "no instance_id in inventories/aws/hosts.yml for ops: EC2 cannot be asked about them" in err


def test_bare_metal_has_nothing_to_ask_ec2_about(inventories: Path, fleet_data: dict[str, Any]) -> None:
    for entry in fleet_data["nodes"]:
        entry.pop("instance_id")
    write(fleet_data | {"stack": "baremetal"})
    code, _, err = check("--live")
    assert code == 2
    assert "no node has an instance_id (stack baremetal)" in err


def test_an_endpoint_that_does_not_answer_is_3(live: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderack.clients.aws._ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    code, out, err = check("--live")
    assert (code, out) == (3, "")
    assert err.startswith("coderack: DescribeInstances: Could not connect to the endpoint URL")


def test_an_error_of_the_api_is_3_and_named(live: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing("UnauthorizedOperation", "You are not authorized to perform this operation.") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        answer = check("--live")
    message = "AWS answers UnauthorizedOperation: You are not authorized to perform this operation."
    assert answer == (3, "", f"coderack: DescribeInstances: {message}\n")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 200),
        ("<html><body>Please log in<br></body></html>", 200),
        ("<html><body>Please log in</body></html>", 200),
        ("<DescribeInstancesResponse><reservationSet><item><instancesSet><item/></instancesSet></item>"
         "</reservationSet></DescribeInstancesResponse>", 200),
        ("upstream timed out", 500),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "command",
    [
        ("check", "--env", "aws", "--live"),
        ("host-keys", "--env", "aws"),
        ("reservations", "--env", "aws"),
        ("reserve", "--env", "aws", "--list"),
    ],
)
def test_an_answer_that_is_not_awss_is_3(
    live: dict[str, Any], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], body: str, status: int
) -> None:
    with answering(body, status) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        code, _, err = run("fleet", *command)
    assert code == 3
    assert "the answer is not AWS's" in err or "its console does not show them" in err


def test_an_aws_configuration_that_cannot_be_used_is_3(live: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no address")
    code, _, err = check("--live")
    assert code == 3
    assert "your AWS configuration cannot be used (Invalid endpoint: no address)" in err


def test_a_token_that_cannot_be_sent_is_3_and_not_shown(live: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "c0ffee\nc0ffee")
    code, out, err = check("--live")
    assert code == 3
    assert "look for stray characters in your AWS credentials" in err
    assert "c0ffee" not in out + err


def test_missing_credentials_are_3(live: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    # boto3 keeps what an earlier test's session found.
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    code, _, err = check("--live")
    assert code == 3
    assert "log in to AWS first" in err


def test_without_boto3_it_says_what_to_install(live: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    code, _, err = check("--live")
    assert code == 3
    assert "pip install 'coderack[aws]'" in err


# --- Terraform's state ----------------------------------------------------------------------------------------------

LINEAGE = "3f2a0c1e-8a44-4a0e-9a53-0d7a4f6c2b11"


@pytest.fixture
def root(tmp_path: Path, fleet_data: dict[str, Any]) -> Path:
    """A Terraform root with a local state, as an apply leaves it."""
    binary = shutil.which(os.environ.get("TERRAFORM") or "terraform")
    if binary is None:
        pytest.skip("Terraform is not on PATH (or TERRAFORM=none): reading its state was not tested")
    directory = tmp_path / "stack"
    directory.mkdir()
    write_state(directory, fleet_data)
    return directory


def write_state(directory: Path, contract: dict[str, Any], **output: Any) -> None:
    # The type is made up: only Terraform itself looks at it, and only when it plans.
    value = {"value": contract, "type": "dynamic", **output}
    state = {
        "version": 4,
        "terraform_version": "1.11.0",
        "serial": 12,
        "lineage": LINEAGE,
        "outputs": {"fleet": value},
        "resources": [],
    }
    text = json.dumps(state).replace('"type": "dynamic"', f'"type": {json.dumps(type_of(contract))}')
    (directory / "terraform.tfstate").write_text(text)


def type_of(value: object) -> object:
    """The type of a value in Terraform's JSON notation."""
    if isinstance(value, dict):
        return ["object", {key: type_of(member) for key, member in value.items()}]
    if isinstance(value, list):
        return ["tuple", [type_of(item) for item in value]]
    names = {str: "string", int: "number", bool: "bool"}
    return names.get(type(value), "string")


def test_writes_from_the_state_and_says_which_one(inventories: Path, root: Path, fleet_data: dict[str, Any]) -> None:
    code, out, err = run("fleet", "write", "--env", "aws", "--from", "stack", "--json")
    assert code == 0, err
    assert json.loads(out)["origin"] == {"source": "stack", "serial": 12, "lineage": LINEAGE}
    header = (inventories / "aws" / "hosts.yml").read_text().splitlines()[1]
    assert header == f"# Source: stack, serial 12, lineage {LINEAGE}"
    assert check("--from", "stack")[0] == 0
    assert check("-", stdin=json.dumps(fleet_data))[0] == 0


def test_a_state_whose_output_is_sensitive_is_refused(
    inventories: Path, root: Path, fleet_data: dict[str, Any]
) -> None:
    write_state(root, fleet_data, sensitive=True)
    code, _, err = run("fleet", "write", "--env", "aws", "--from", "stack")
    assert code == 2
    assert "the output is marked sensitive" in err


def test_an_empty_state_is_2_and_a_root_that_is_not_there_3(inventories: Path, root: Path) -> None:
    (root / "terraform.tfstate").unlink()
    code, _, err = run("fleet", "write", "--env", "aws", "--from", "stack")
    assert code == 2
    assert "has `terraform apply` run in this stack?" in err
    code, _, err = run("fleet", "write", "--env", "aws", "--from", "none")
    assert code == 3
    assert "none is no directory; wanted a Terraform root" in err


def test_a_terraform_that_fails_or_is_missing_is_3(
    inventories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "terraform"
    program.write_text("#!/bin/sh\necho 'Error: Backend initialization required' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("TERRAFORM", str(program))
    code, _, err = run("fleet", "write", "--env", "aws", "--from", ".")
    assert code == 3
    assert "ended with 1: Error: Backend initialization required" in err
    monkeypatch.setenv("TERRAFORM", "/nonexistent/terraform")
    code, _, err = run("fleet", "write", "--env", "aws", "--from", ".")
    assert code == 3
    assert "/nonexistent/terraform is not on PATH" in err


@pytest.mark.parametrize("options", [(), ("-", "--from", ".")])
def test_exactly_one_source_is_wanted(inventories: Path, options: tuple[str, ...]) -> None:
    code, _, err = run("fleet", "write", "--env", "aws", *options)
    assert code == 2
    assert "of FILE (or -) and --from DIR given, wanted one of them" in err
