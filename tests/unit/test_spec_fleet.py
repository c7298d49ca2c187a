import datetime
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from coderack.spec.checked import SpecError, validate
from coderack.spec.fleet import Fleet

from .data import Edit, node


def test_accepts_a_fleet_as_terraform_prints_it(fleet_data: dict[str, Any]) -> None:
    fleet = validate(Fleet, fleet_data, "fleet")
    assert [entry.name for entry in fleet.gpu_nodes] == ["gpu-b", "gpu-a"]
    reservation = fleet.gpu_nodes[0].reservation
    assert reservation is not None
    assert reservation.ends_at == datetime.datetime(2027, 1, 31, 11, 30, tzinfo=datetime.UTC)


def test_accepts_what_the_aws_stack_adds(fleet_data: dict[str, Any]) -> None:
    fleet_data["region"] = "us-west-2"
    node(fleet_data, "gpu-b").update(image_id="ami-0123", placement_group="coderack-gpu", reservation={"id": "cr-0123"})
    fleet = validate(Fleet, fleet_data, "fleet")
    reservation = fleet.gpu_nodes[0].reservation
    assert (fleet.region, fleet.gpu_nodes[0].image_id) == ("us-west-2", "ami-0123")
    assert reservation is not None
    assert reservation.ends_at is None


def test_is_immutable(fleet_data: dict[str, Any]) -> None:
    fleet = validate(Fleet, fleet_data, "fleet")
    with pytest.raises(ValidationError, match="frozen"):
        fleet.nodes[0].address = "10.0.0.1"  # type: ignore[misc]


REFUSALS: dict[str, tuple[Edit, str]] = {
    "two nodes of one name": (
        lambda fleet: node(fleet, "gpu-b").update(name="gpu-a"),
        "node name gpu-a is used 2 times, wanted once",
    ),
    "two nodes of one address": (
        lambda fleet: node(fleet, "gpu-b").update(address="10.77.0.20"),
        "address 10.77.0.20 belongs to nodes ops, gpu-b, wanted one node per address",
    ),
    "private address that is another node's address": (
        lambda fleet: node(fleet, "gpu-b").update(private_address="10.77.0.10"),
        "address 10.77.0.10 belongs to nodes gpu-b, gpu-a, wanted one node per address",
    ),
    "host names that differ in case only": (
        lambda fleet: node(fleet, "gpu-a").update(address="GPU-B.example.org"),
        "address gpu-b.example.org belongs to nodes gpu-b, gpu-a, wanted one node per address",
    ),
    "no GPU node": (
        lambda fleet: fleet.update(nodes=[node(fleet, "ops")]),
        "no node has role gpu, wanted at least one",
    ),
    "no ops node": (
        lambda fleet: fleet["nodes"].remove(node(fleet, "ops")),
        "nodes of role ops: none; wanted exactly one",
    ),
    "two ops nodes": (
        lambda fleet: fleet["nodes"].append(
            node(fleet, "ops") | {"name": "ops-2", "address": "10.77.0.21", "private_address": "10.77.0.21"}
        ),
        "nodes of role ops: ops, ops-2; wanted exactly one",
    ),
    "version as truth value": (lambda fleet: fleet.update(version=True), "version is True, wanted the number 1"),
    "version as fraction": (lambda fleet: fleet.update(version=1.0), "version is 1.0, wanted the number 1"),
    "two fabrics in one group": (
        lambda fleet: node(fleet, "gpu-a").update(fabric={"kind": "infiniband"}),
        "GPU nodes differ in fabric.kind (gpu-a has infiniband, gpu-b has efa), wanted the same on all",
    ),
    "GPU nodes of two kinds": (
        lambda fleet: node(fleet, "gpu-b")["gpus"].update(model="NVIDIA H200"),
        "GPU nodes differ in gpus (gpu-a has 8 x NVIDIA H100, gpu-b has 8 x NVIDIA H200), wanted the same on all",
    ),
    "a GPU too few": (
        lambda fleet: node(fleet, "gpu-b")["gpus"].update(count=7),
        "GPU nodes differ in gpus (gpu-a has 8 x NVIDIA H100, gpu-b has 7 x NVIDIA H100), wanted the same on all",
    ),
    "two nodes that are one instance": (
        lambda fleet: node(fleet, "gpu-b").update(instance_id="i-0bbb"),
        "instance_id i-0bbb is used 2 times, wanted once",
    ),
    "public address between nodes": (
        lambda fleet: node(fleet, "gpu-a").update(private_address="52.1.2.3"),
        "node gpu-a: private_address is '52.1.2.3', wanted the IPv4 address of a host in one of 10.0.0.0/8",
    ),
    "loopback between nodes": (
        lambda fleet: node(fleet, "gpu-a").update(private_address="127.0.0.1"),
        "node gpu-a: private_address is '127.0.0.1', wanted the IPv4 address",
    ),
    "host name between nodes": (
        lambda fleet: node(fleet, "gpu-a").update(private_address="gpu-a.internal"),
        "node gpu-a: private_address is 'gpu-a.internal', wanted the IPv4 address",
    ),
    "misspelt address": (
        lambda fleet: node(fleet, "gpu-a").update(address="10.77.0.300"),
        "node gpu-a: address is '10.77.0.300', wanted an IP address in its usual spelling or a host name",
    ),
    "address that is a URL": (
        lambda fleet: node(fleet, "gpu-a").update(address="https://gpu-a"),
        "node gpu-a: address is 'https://gpu-a', wanted an IP address in its usual spelling or a host name",
    ),
    "GPU node without GPUs": (
        lambda fleet: node(fleet, "gpu-a")["gpus"].update(count=0),
        "node gpu-a: role is gpu and gpus.count is 0, wanted at least 1",
    ),
    "ops node with GPUs": (
        lambda fleet: node(fleet, "ops")["gpus"].update(count=2),
        "node ops: role is ops and gpus.count is 2, wanted 0",
    ),
    "devices without a fabric": (
        lambda fleet: node(fleet, "ops")["fabric"].update(devices=["mlx5_0"]),
        "node ops: fabric.kind is none and fabric.devices is ['mlx5_0'], wanted no devices",
    ),
    "unknown key": (
        lambda fleet: node(fleet, "gpu-a").update(password="x"),
        "nodes[gpu-a].password is not a known key",
    ),
    "missing key": (
        lambda fleet: node(fleet, "gpu-a").pop("private_address"),
        "nodes[gpu-a].private_address is missing",
    ),
    "number as text": (
        lambda fleet: node(fleet, "gpu-a")["gpus"].update(count="8"),
        "nodes[gpu-a].gpus.count is '8': input should be a valid integer",
    ),
    "unknown fabric": (
        lambda fleet: node(fleet, "gpu-a")["fabric"].update(kind="roce"),
        "nodes[gpu-a].fabric.kind is 'roce': input should be 'infiniband', 'efa' or 'none'",
    ),
    "text that Ansible would execute": (
        lambda fleet: node(fleet, "gpu-a").update(zone="{{ lookup('pipe', 'id') }}"),
        "nodes[gpu-a].zone is \"{{ lookup('pipe', 'id') }}\"",
    ),
    "reservation end without a time zone": (
        lambda fleet: node(fleet, "gpu-b")["reservation"].update(ends_at="2027-01-31T11:30:00"),
        "nodes[gpu-b].reservation.ends_at is '2027-01-31T11:30:00'",
    ),
    "other contract version": (lambda fleet: fleet.update(version=2), "version is 2: input should be 1"),
}


@pytest.mark.parametrize(("edit", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refuses(fleet_data: dict[str, Any], edit: Edit, message: str) -> None:
    edit(fleet_data)
    with pytest.raises(SpecError) as caught:
        validate(Fleet, fleet_data, "fleet output")
    assert message in str(caught.value)
    assert str(caught.value).startswith("fleet output: ")


@pytest.mark.parametrize("name", ["all", "ungrouped", "localhost", "gpu_nodes", "ops_nodes"])
def test_refuses_node_names_that_mean_something_to_ansible(fleet_data: dict[str, Any], name: str) -> None:
    node(fleet_data, "gpu-a")["name"] = name
    with pytest.raises(SpecError):
        validate(Fleet, fleet_data, "fleet")


@pytest.mark.parametrize("address", ["fd00::1", "gpu-a", "gpu-a.example.org", "52.1.2.3"])
def test_accepts_an_address_to_connect_to(fleet_data: dict[str, Any], address: str) -> None:
    node(fleet_data, "gpu-a")["address"] = address
    assert validate(Fleet, fleet_data, "fleet").nodes[2].address == address


@pytest.mark.parametrize(
    "address",
    [
        "fd00::1%{{ lookup('pipe','id') }}",
        "fe80::1%eth0",
        "FD00::1",
        "fd00:0::1",
        "::ffff:10.0.0.1",
        "::",
        "0.0.0.0",
        "224.0.0.1",
        "10.077.0.10",
        "gpu-a\n",
        "gpu-\N{KELVIN SIGN}",
        "{{ x }}",
        "",
    ],
)
def test_refuses_an_address_that_is_not_plain(fleet_data: dict[str, Any], address: str) -> None:
    node(fleet_data, "gpu-a")["address"] = address
    with pytest.raises(SpecError, match="node gpu-a: address is "):
        validate(Fleet, fleet_data, "fleet")


@pytest.mark.parametrize("address", ["10.0.1.0", "172.31.255.254", "100.64.0.1", "192.168.0.255"])
def test_accepts_a_private_address_of_version_4(fleet_data: dict[str, Any], address: str) -> None:
    node(fleet_data, "gpu-a")["private_address"] = address
    fleet = validate(Fleet, fleet_data, "fleet")
    assert address in {member.private_address for member in fleet.nodes}


@pytest.mark.parametrize(
    "address", ["fd00::1", "::ffff:10.0.0.1", "0.0.0.0", "10.0.0.0", "10.255.255.255", "10.1", "010.0.0.1", "10.0.0.1 "]
)
def test_refuses_a_private_address_that_is_no_hosts_of_version_4(fleet_data: dict[str, Any], address: str) -> None:
    node(fleet_data, "gpu-a")["private_address"] = address
    with pytest.raises(SpecError, match="node gpu-a: private_address is "):
        validate(Fleet, fleet_data, "fleet")


# Every text that is written into the inventory, beside the two addresses.
TEXTS: dict[str, Callable[[dict[str, Any], str], object]] = {
    "stack": lambda fleet, text: fleet.update(stack=text),
    "name": lambda fleet, text: node(fleet, "gpu-b").update(name=text),
    "instance id": lambda fleet, text: node(fleet, "gpu-b").update(instance_id=text),
    "instance type": lambda fleet, text: node(fleet, "gpu-b").update(instance_type=text),
    "zone": lambda fleet, text: node(fleet, "gpu-b").update(zone=text),
    "GPU model": lambda fleet, text: node(fleet, "gpu-b")["gpus"].update(model=text),
    "fabric kind": lambda fleet, text: node(fleet, "gpu-b")["fabric"].update(kind=text),
    "fabric device": lambda fleet, text: node(fleet, "gpu-b")["fabric"].update(devices=[text]),
    "reservation": lambda fleet, text: node(fleet, "gpu-b")["reservation"].update(id=text),
    "reservation end": lambda fleet, text: node(fleet, "gpu-b")["reservation"].update(ends_at=text),
}


@pytest.mark.parametrize("text", ["a{{ x }}", "a{% x %}", "a{# x #}", "a\n", "a\x1b[2J", "a\x85"])
@pytest.mark.parametrize("put", TEXTS.values(), ids=TEXTS.keys())
def test_refuses_text_that_ansible_or_a_terminal_would_act_on(
    fleet_data: dict[str, Any], put: Callable[[dict[str, Any], str], object], text: str
) -> None:
    put(fleet_data, text)
    with pytest.raises(SpecError):
        validate(Fleet, fleet_data, "fleet")


def test_an_error_does_not_repeat_a_value_without_end(fleet_data: dict[str, Any]) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    fleet_data["stack"] = deep
    with pytest.raises(SpecError) as caught:
        validate(Fleet, fleet_data, "fleet")
    assert len(str(caught.value)) < 200


def test_reports_every_problem_at_once(fleet_data: dict[str, Any]) -> None:
    node(fleet_data, "gpu-a").update(private_address="8.8.8.8")
    node(fleet_data, "gpu-b")["gpus"].update(count=0)
    node(fleet_data, "ops").pop("role")
    with pytest.raises(SpecError) as caught:
        validate(Fleet, fleet_data, "fleet")
    assert len(caught.value.problems) == 3


def test_names_the_input_when_it_is_no_object_at_all() -> None:
    with pytest.raises(SpecError, match=r"^fleet: input should be a valid dictionary.*, got \[1\]"):
        validate(Fleet, [1], "fleet")
