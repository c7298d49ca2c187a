"""What role vllm promises about the service, whoever plays vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host


@pytest.fixture
def address(host: Host) -> str:
    return host.check_output("hostname -I").split()[0]


@pytest.fixture
def answer(host: Host, address: str) -> Any:
    return json.loads(host.check_output(f"curl --silent --fail --data '{{}}' http://{address}:8000/v1/completions"))


def unit(host: Host, name: str) -> str:
    return host.check_output(f"systemctl show --property={name} --value vllm")


def test_the_service_runs_now_and_after_a_reboot(host: Host) -> None:
    assert (host.service("vllm").is_running, host.service("vllm").is_enabled) == (True, True)


def test_arguments_and_environment_arrive_unchanged(answer: dict[str, Any]) -> None:
    assert '{"a": "50% of $HOME"}' in answer["arguments"]
    assert answer["secret"] == 'quo"te $HOME `x` \\ %n'


def test_the_environment_is_for_root_only(host: Host) -> None:
    assert host.file("/etc/coderack/vllm.env").mode == 0o640
    assert "quo" not in host.check_output("ps --no-headers -eo args | grep -v grep")


def test_it_runs_without_rights_of_its_own(host: Host) -> None:
    process = host.check_output("cat /proc/$(systemctl show -p MainPID --value vllm)/status")
    assert "CapEff:\t0000000000000000" in process
    assert "NoNewPrivs:\t1" in process
    assert "Seccomp:\t2" in process


def test_it_can_write_its_caches_and_nothing_else(host: Host) -> None:
    assert unit(host, "ProtectSystem") == "strict"
    assert host.file("/var/lib/vllm/").is_directory


# Containers can't raise limits, so the unit's wish is all that can be seen here.
@pytest.mark.parametrize(
    ("limit", "wanted"), [("LimitNOFILE", "65536"), ("LimitMEMLOCK", "infinity"), ("LimitCORE", "0")]
)
def test_the_unit_asks_for_the_limits_that_vllm_needs(host: Host, limit: str, wanted: str) -> None:
    assert unit(host, limit) == wanted


def test_a_stop_has_time_for_running_requests(host: Host) -> None:
    assert (unit(host, "KillMode"), unit(host, "TimeoutStopUSec")) == ("mixed", "2min")


# The stand-in has a child that knows nothing of SIGTERM, as an engine core that hangs.
def test_a_stop_leaves_no_process_behind(host: Host, address: str) -> None:
    assert host.check_output("pgrep --count --full ^stand-in-engine-core") == "1"
    host.check_output("systemctl stop vllm")
    try:
        assert host.run("pgrep --full ^stand-in-engine-core").rc == 1
    finally:
        host.check_output("systemctl start vllm")
        wait = "curl --silent --fail --retry 20 --retry-connrefused --retry-delay 1 --data '{}'"
        host.check_output(f"{wait} http://{address}:8000/")


def test_the_environment_is_reached_through_a_link_that_can_be_moved(host: Host) -> None:
    link = host.file("/opt/vllm")
    assert link.is_symlink
    assert link.linked_to == f"/opt/vllm-{host.file('/opt/vllm/.requirements').content_string.strip()}"


def test_the_port_is_open_to_the_gateway_and_not_to_the_controller(host: Host, address: str) -> None:
    assert "gateway and monitoring" in host.check_output("nft list chain inet coderack input")
    outside = host.backend.run_local(
        f"nsenter --net=/run/netns/coderack-lab curl --silent --max-time 3 http://{address}:8000/health"
    )
    assert outside.rc != 0
