"""What role vllm promises about the service, whoever plays vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host

KEY = "--header 'Authorization: Bearer 0123456789abcdef'"


@pytest.fixture
def address(host: Host) -> str:
    return host.check_output("hostname -I").split()[0]


@pytest.fixture
def answer(host: Host, address: str) -> Any:
    return json.loads(
        host.check_output(f"curl --silent --fail {KEY} --data '{{}}' http://{address}:8000/v1/completions")
    )


def unit(host: Host, name: str) -> str:
    return host.check_output(f"systemctl show --property={name} --value vllm")


def environment(host: Host) -> str:
    return str(host.file("/opt/vllm/blue").linked_to).removeprefix("/opt/vllm/")


def wait(host: Host, address: str) -> None:
    ask = f"curl --silent --fail --retry 20 --retry-connrefused --retry-delay 1 {KEY} --data '{{}}'"
    host.check_output(f"{ask} http://{address}:8000/")


def start(host: Host, address: str) -> None:
    host.check_output("systemctl reset-failed vllm && systemctl start vllm")
    wait(host, address)


def test_the_service_runs_now_and_after_a_reboot(host: Host) -> None:
    assert (host.service("vllm").is_running, host.service("vllm").is_enabled) == (True, True)


def test_arguments_and_environment_arrive_unchanged(answer: dict[str, Any]) -> None:
    assert '{"a": "50% of $HOME"}' in answer["arguments"]
    assert answer["secret"] == 'quo"te $HOME `x` \\ %n'


def test_the_environment_is_for_root_only(host: Host) -> None:
    assert host.file("/etc/coderack/vllm.env").mode == 0o640
    assert "quo" not in host.check_output("ps --no-headers -eo args | grep -v grep")


def test_the_api_key_is_for_root_only_and_asked_for(host: Host, address: str) -> None:
    assert host.file("/etc/coderack/vllm-key.env").mode == 0o600
    seen = "ps --no-headers -eo args | grep -v grep; systemctl show vllm; journalctl --quiet --unit=vllm"
    everything = host.check_output(f"{seen}; journalctl --quiet | grep ansible-")
    assert "0123456789abcdef" not in everything
    assert host.run(f"curl --silent --fail --data '{{}}' http://{address}:8000/v1/completions").rc != 0


def test_it_runs_without_rights_of_its_own(host: Host) -> None:
    process = host.check_output("cat /proc/$(systemctl show -p MainPID --value vllm)/status")
    assert "CapEff:\t0000000000000000" in process
    assert "NoNewPrivs:\t1" in process
    assert "Seccomp:\t2" in process


def test_it_can_write_its_caches_and_nothing_else(host: Host) -> None:
    assert unit(host, "ProtectSystem") == "strict"
    assert host.file("/var/lib/vllm/").is_directory
    assert host.file(f"/var/cache/vllm/{environment(host)}/cuda").is_directory


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
        start(host, address)


def test_a_closed_gate_keeps_it_from_starting_and_its_status_says_why(host: Host, address: str) -> None:
    host.check_output("systemctl stop vllm && touch /srv/models/stand-in/unfit")
    try:
        assert host.run("systemctl start vllm").rc != 0
        status = host.run("systemctl status vllm").stdout
        assert "stand-in-gate.service failed" in status
        assert "GPU 3 is lost" in status
    finally:
        host.check_output("rm /srv/models/stand-in/unfit && systemctl stop vllm")
        start(host, address)


def test_the_gate_is_asked_at_every_start(host: Host, address: str) -> None:
    asked = "journalctl --quiet --output=cat --unit=stand-in-gate | grep --count Finished"
    before = int(host.check_output(asked))
    host.check_output("systemctl reset-failed vllm && systemctl restart vllm")
    wait(host, address)
    assert int(host.check_output(asked)) == before + 1


def test_the_program_is_reached_through_the_link_of_its_colour(host: Host, answer: dict[str, Any]) -> None:
    assert answer["program"] == "/opt/vllm/blue/bin/vllm"
    assert not host.file("/opt/vllm/green").exists


def test_of_the_unused_environments_the_newest_is_kept_and_one_being_built(host: Host) -> None:
    assert set(host.file("/opt/vllm").listdir()) == {"blue", environment(host), "0.31.0-bb", "0.33.0-cc"}


def test_the_port_is_open_to_the_gateway_and_not_to_the_controller(host: Host, address: str) -> None:
    assert "gateway and monitoring" in host.check_output("nft list chain inet coderack input")
    outside = host.backend.run_local(
        f"nsenter --net=/run/netns/coderack-lab curl --silent --max-time 3 http://{address}:8000/health"
    )
    assert outside.rc != 0
