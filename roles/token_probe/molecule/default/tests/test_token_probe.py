"""What role token_probe promises, looked at from the node and from outside."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from testinfra.host import Host

UNIT = "coderack-token-probe"
METRICS = "/var/lib/prometheus/node-exporter/coderack_token_probe.prom"


def document(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.file("/run/coderack/probe.json").content_string))


def wait_for(host: Host, state: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (seen := document(host))["state"] != state:
        assert time.monotonic() < deadline, seen
        time.sleep(0.5)


@pytest.fixture
def dead_rank(host: Host) -> Iterator[None]:
    """Rank 1 hangs while the test runs."""
    host.check_output("touch /run/hang-1")
    yield
    host.check_output("rm /run/hang-1")
    wait_for(host, "up", 20)


def test_the_service_runs_now_and_after_a_reboot(host: Host) -> None:
    assert (host.service(UNIT).is_running, host.service(UNIT).is_enabled) == (True, True)


def test_it_tells_that_both_ranks_give_tokens(host: Host) -> None:
    wait_for(host, "up", 10)
    assert [rank["state"] for rank in document(host)["ranks"]] == ["up", "up"]
    assert 'coderack_token_probe_state{state="up"} 1' in host.file(METRICS).content_string
    assert "2 of 2 ranks gave a token" in host.check_output(f"systemctl status {UNIT}")


def test_everybody_may_read_what_it_tells(host: Host) -> None:
    assert host.file("/run/coderack/probe.json").mode == 0o644
    assert host.file(METRICS).mode == 0o644


@pytest.mark.usefixtures("dead_rank")
def test_a_rank_that_hangs_is_told_within_15_seconds(host: Host) -> None:
    wait_for(host, "degraded", 15)
    address = host.check_output("hostname -I").split()[0]
    assert (
        host.check_output(f"curl --silent --output /dev/null --write-out '%{{http_code}}' http://{address}:9102/")
        == "503"
    )


def test_a_stopped_server_is_down_and_one_that_is_started_again_is_up(host: Host) -> None:
    host.check_output("systemctl stop vllm")
    wait_for(host, "down", 15)
    host.check_output("systemctl start vllm")
    wait_for(host, "up", 15)


def test_the_key_is_in_no_argument_and_no_environment(host: Host) -> None:
    pid = host.check_output(f"systemctl show -p MainPID --value {UNIT}")
    assert "key-of" not in host.check_output(
        f"tr '\\0' '\\n' < /proc/{pid}/cmdline; tr '\\0' '\\n' < /proc/{pid}/environ"
    )


def test_it_runs_without_rights_of_its_own(host: Host) -> None:
    process = host.check_output(f"cat /proc/$(systemctl show -p MainPID --value {UNIT})/status")
    assert "CapEff:\t0000000000000000" in process
    assert "NoNewPrivs:\t1" in process
    assert "Seccomp:\t2" in process
    assert "Uid:\t0" not in process


def test_its_exposure_is_low(host: Host) -> None:
    last = host.check_output(f"systemd-analyze security --no-pager {UNIT} | tail -n 1")
    assert float(last.split(":")[1].split()[0]) <= 4.0


def test_a_killed_service_comes_back(host: Host) -> None:
    before = host.check_output(f"systemctl show -p MainPID --value {UNIT}")
    host.check_output(f"systemctl kill --signal=KILL {UNIT}")
    time.sleep(5)
    assert host.service(UNIT).is_running
    assert host.check_output(f"systemctl show -p MainPID --value {UNIT}") != before


def test_nobody_but_the_ops_nodes_reaches_the_port(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    outside = host.backend.run_local(
        f"nsenter --net=/run/netns/coderack-lab curl --silent --max-time 2 http://{address}:9102/"
    )
    assert outside.rc == 28, "curl's exit code for a time-out: the packets are dropped"
