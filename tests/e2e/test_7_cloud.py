"""The nodes are the instances: what the EC2 API says is what stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import PINS, ROOT, Done, Lab, lab, make, nodes, provision, run

Eventually = Callable[[Callable[[], bool], float], bool]


def state(name: str) -> str:
    return nodes().get(name, {}).get("state", "gone")


def ping(node: str) -> Done:
    """Ansible's own way to a node, over a connection that is not left from an earlier run."""
    command = ("ansible", node, "-i", "inventories/lab", "-m", "ansible.builtin.ping")
    config = str(ROOT / "ansible/ansible.cfg")
    return run(*command, ANSIBLE_CONFIG=config, ANSIBLE_SSH_ARGS="-o ControlMaster=no")


def test_the_pinned_host_keys_are_those_of_the_nodes(the_lab: Lab) -> None:
    pinned = PINS.read_text()
    for node, address in the_lab.addresses.items():
        kind, key, *_ = the_lab.on(node, "cat /etc/ssh/ssh_host_ed25519_key.pub").text.split()
        assert f"{address} {kind} {key}\n" in pinned, node


def test_a_stopped_instance_stops_its_node_and_keeps_its_disk(the_lab: Lab, ec2: Any, eventually: Eventually) -> None:
    instance = nodes()["gpu-b"]["instance_id"]
    the_lab.on("gpu-b", "sudo touch /etc/kept-over-stop")
    ec2.stop_instances(InstanceIds=[instance])
    assert eventually(lambda: state("gpu-b") == "stopped", 40)
    ec2.start_instances(InstanceIds=[instance])
    assert eventually(lambda: the_lab.on("gpu-b", "test -e /etc/kept-over-stop").code == 0, 60)


def test_a_node_that_powers_itself_off_stops_its_instance(the_lab: Lab, ec2: Any, eventually: Eventually) -> None:
    instance = nodes()["gpu-b"]["instance_id"]

    def instance_state() -> str:
        found = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        return str(found["State"]["Name"])

    the_lab.on("gpu-b", "sudo systemctl poweroff")
    assert eventually(lambda: instance_state() == "stopped", 40)
    ec2.start_instances(InstanceIds=[instance])
    assert eventually(lambda: the_lab.on("gpu-b", "true").code == 0, 60)


def test_a_node_comes_back_from_a_reboot(the_lab: Lab, eventually: Eventually) -> None:
    boot = the_lab.on("gpu-b", "systemctl show -p UserspaceTimestampMonotonic --value").text
    the_lab.on("gpu-b", "sudo systemctl reboot")
    assert eventually(
        lambda: (
            (now := the_lab.on("gpu-b", "systemctl show -p UserspaceTimestampMonotonic --value")).code == 0
            and now.text != boot
        ),
        60,
    )


def test_a_terminated_instance_takes_its_node_and_disk_along(the_lab: Lab, ec2: Any, eventually: Eventually) -> None:
    ec2.terminate_instances(InstanceIds=[nodes()["gpu-b"]["instance_id"]])
    assert eventually(lambda: state("gpu-b") == "gone", 40)
    assert not Path("/var/lib/coderack-lab/nodes/gpu-b").exists()


def test_a_machine_made_anew_is_a_stranger_until_its_keys_are_accepted(the_lab: Lab, eventually: Eventually) -> None:
    """After the test before: another gpu-b, at the same address."""
    before = PINS.read_text()
    made = provision()
    assert made.code == 0, made.text
    assert eventually(lambda: state("gpu-b") == "running", 40)
    assert lab("wait").code == 0
    assert nodes()["gpu-b"]["address"] == the_lab.addresses["gpu-b"]
    refused = make("host-keys", "ENV=lab")
    assert refused.code != 0
    assert f"host keys have changed, {PINS.relative_to(ROOT)} is left as it is" in refused.text
    assert PINS.read_text() == before
    assert "Host key verification failed" in ping("gpu-b").text
    accepted = make("host-keys", "ENV=lab", "ARGS=--accept-changed gpu-b")
    assert accepted.code == 0, accepted.text
    known = ping("gpu-b")
    assert known.code == 0, known.text
