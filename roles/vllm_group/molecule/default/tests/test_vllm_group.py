"""What role vllm_group promises, looked at from the nodes and from outside."""

from __future__ import annotations

import json
import time
from typing import Any

from testinfra.host import Host

COMMAND = "/opt/coderack/current/bin/coderack group {}"


def status(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.run(COMMAND.format("status --json")).stdout or "{}"))


def until_running(host: Host, epoch: int) -> dict[str, Any]:
    """The group's status, once it runs as one in this epoch or a later one."""
    end = time.monotonic() + 60
    while True:
        seen = status(host)
        if seen.get("verdict") == "running" and seen["epoch"] >= epoch:
            return seen
        assert time.monotonic() < end, seen
        time.sleep(1)


def started(host: Host) -> str:
    return str(host.check_output("systemctl show vllm --property=InvocationID --value"))


def test_every_node_sees_the_group_run_as_one(host: Host) -> None:
    seen = until_running(host, 1)
    assert [member["name"] for member in seen["members"]] == ["mol", "mol-b"]
    assert host.run(COMMAND.format("status")).rc == 0


def test_engines_that_ran_before_the_agents_were_taken_over(host: Host) -> None:
    assert "taken over without a restart" in host.check_output("journalctl -u coderack-group -o cat") or (
        "taking over the engine" in host.check_output("journalctl -u coderack-group -o cat")
    )


def test_an_engine_that_is_killed_restarts_with_all_others(host: Host) -> None:
    before, epoch = started(host), until_running(host, 1)["epoch"]
    host.check_output("systemctl kill --signal=KILL vllm")
    seen = until_running(host, epoch + 1)
    assert seen["last_restart"]["reason"] == "engine_failed"
    assert started(host) != before


def test_an_agent_that_is_killed_disturbs_nothing(host: Host) -> None:
    before = started(host)
    host.check_output("systemctl kill --signal=KILL coderack-group")
    time.sleep(3)
    until_running(host, 1)
    assert started(host) == before


def test_the_secret_is_for_root_alone(host: Host) -> None:
    assert host.file("/etc/coderack/group.secret").mode == 0o600


def test_nobody_outside_the_group_reaches_the_port(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    outside = host.backend.run_local(
        f"nsenter --net=/run/netns/coderack-lab curl --silent --max-time 2 http://{address}:29700/status"
    )
    assert outside.rc == 28, "curl's exit code for a time-out: the packets are dropped"


def test_metrics_reach_the_exporter(host: Host) -> None:
    assert host.file("/var/lib/prometheus/node-exporter/coderack_group.prom").contains("coderack_group_epoch")


def test_the_unit_is_hardened(host: Host) -> None:
    line = host.run("systemd-analyze security coderack-group.service").stdout.splitlines()[-1]
    assert float(line.split(": ")[1].split()[0]) <= 4.0, line
