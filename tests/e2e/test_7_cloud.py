"""The nodes are the instances: what the EC2 API says is what stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Lab, nodes

Eventually = Callable[[Callable[[], bool], float], bool]


def state(name: str) -> str:
    return nodes().get(name, {}).get("state", "gone")


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
