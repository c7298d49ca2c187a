"""From the keys on a lab node's disk, over its instance's console, to the pins: `make host-keys ENV=lab`."""

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coderack.clients import ssh_keys
from coderack.fleet import known_hosts
from coderack_lab import demo
from coderack_lab import settings as s
from coderack_lab.node import Node, NodeSpec

from .cloud import launch_fleet
from .program import run


@pytest.fixture(autouse=True)
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the nodes' disks lie, instead of the host's own place for them."""
    monkeypatch.setattr(s, "STATE", tmp_path / "state")
    monkeypatch.setattr(s, "PINS", tmp_path / "inventories/lab/known_hosts")
    return tmp_path / "state/nodes"


@pytest.fixture
def fleet(inventories: Path, ec2: Any) -> dict[str, Any]:
    """Three instances, reached by their addresses as in the lab, in the lab's inventory."""
    contract = launch_fleet(ec2)
    for entry in contract["nodes"]:
        entry["address"] = entry["private_address"]
    assert run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(contract))[0] == 0
    return contract


@pytest.fixture
def nodes(fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Node]:
    """Their machines, as the supervisor keeps them; the emulator's consoles are theirs."""
    from coderack_lab.supervisor import console  # noqa: PLC0415 - moto takes a second, and most tests need no cloud

    made = {
        entry["name"]: Node(NodeSpec(entry["name"], entry["address"], entry["role"], "", entry["instance_id"]))
        for entry in fleet["nodes"]
    }
    read = staticmethod(functools.partial(console, made))
    monkeypatch.setattr("coderack_lab.aws.console.ConsoleActions.read", read)
    return made


def boot(node: Node) -> dict[str, str]:
    """What a first boot leaves on the disk, without the RSA key, which takes long; returns the public keys by type."""
    folder = node.spec.disk / "upper/etc/ssh"
    folder.mkdir(parents=True)
    (node.spec.disk / "root").mkdir()
    for kind in ("ecdsa", "ed25519"):
        command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(folder / f"ssh_host_{kind}_key")]
        subprocess.run(command, check=True, capture_output=True)
    texts = [file.read_text().split() for file in folder.glob("*.pub")]
    return {kind: key for kind, key, *_ in texts}


def test_the_keys_of_each_node_are_pinned_at_its_address(inventories: Path, nodes: dict[str, Node]) -> None:
    keys = {node.spec.address: boot(node) for node in nodes.values()}
    code, out, err = run("fleet", "host-keys", "--env", "lab")
    assert (code, err) == (0, ""), out
    assert known_hosts.read(inventories / "lab" / "known_hosts") == keys
    assert all("ssh-ed25519" in of_node for of_node in keys.values())


def test_a_node_that_has_not_made_all_its_keys_shows_none(ec2: Any, nodes: dict[str, Node]) -> None:
    node = nodes["gpu-a"]
    assert "Output" not in ec2.get_console_output(InstanceId=node.spec.instance_id)
    boot(node)
    assert ssh_keys.from_console(ec2, node.spec.instance_id)
    (node.spec.disk / "upper/etc/ssh/ssh_host_ed25519_key").unlink()
    assert ssh_keys.from_console(ec2, node.spec.instance_id) == {}


def test_an_instance_without_a_machine_shows_nothing(ec2: Any, nodes: dict[str, Node]) -> None:
    gone = nodes.pop("gpu-a")
    boot(gone)
    assert ssh_keys.from_console(ec2, gone.spec.instance_id) == {}


def test_a_machine_made_anew_is_told_from_one_whose_keys_changed(inventories: Path, nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        boot(node)
    assert demo.made_anew(list(nodes)) == []  # nothing is pinned: there is nothing to accept
    assert run("fleet", "host-keys", "--env", "lab")[0] == 0
    pinned = s.PINS.stat().st_mtime
    for node in nodes.values():
        if node.spec.role == "gpu":
            node.wipe()
            boot(node)
        made = pinned + (60 if node.spec.name == "gpu-b" else -60)
        os.utime(node.spec.disk / "root", (made, made))
    accepted = demo.made_anew(list(nodes))
    assert accepted == ["gpu-b"]
    code, _, err = run("fleet", "host-keys", "--env", "lab", "--accept-changed", *accepted)
    assert code == 1
    assert f"{nodes['gpu-a'].spec.address}: pinned " in err
    assert f"{nodes['gpu-b'].spec.address}: pinned " not in err
