"""What role dcgm promises, looked at from the node and from outside."""

from __future__ import annotations

import pytest
from testinfra.host import Host

FIELDS = [
    "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_EXP_XID_ERRORS_COUNT",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
]


def page(host: Host) -> str:
    return str(host.check_output("curl --silent --fail http://$(hostname -I | cut -d' ' -f1):9400/metrics"))


@pytest.mark.parametrize("field", FIELDS)
def test_the_fields_that_alerts_and_dashboards_use_are_served_for_every_gpu(host: Host, field: str) -> None:
    assert page(host).count(f"\n{field}{{") == 8


def test_a_rate_that_calls_itself_a_counter_is_not_served(host: Host) -> None:
    assert "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" not in page(host)


@pytest.mark.parametrize("unit", ["nvidia-dcgm", "nvidia-dcgm-exporter"])
def test_it_runs_and_comes_back_after_a_boot(host: Host, unit: str) -> None:
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


def test_dcgm_and_exporter_are_the_wanted_pair_and_held_while_a_newer_one_is_on_offer(host: Host) -> None:
    assert host.package("datacenter-gpu-manager-4-core").version == "1:4.5.2-1"
    assert host.package("datacenter-gpu-manager-exporter").version == "4.8.1-1"
    held = host.check_output("apt-mark showhold").split()
    assert {"datacenter-gpu-manager-4-core", "datacenter-gpu-manager-exporter"} <= set(held)
    host.check_output("DEBIAN_FRONTEND=noninteractive apt-get -qy dist-upgrade")
    assert host.package("datacenter-gpu-manager-exporter").version == "4.8.1-1"


def test_it_listens_on_the_private_address_alone(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    assert host.socket(f"tcp://{address}:9400").is_listening
    assert not host.socket("tcp://127.0.0.1:9400").is_listening
    assert not host.socket("tcp://0.0.0.0:9400").is_listening


def test_nobody_but_the_ops_nodes_reaches_it(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    outside = host.backend.run_local(
        f"nsenter --net=/run/netns/coderack-lab curl --silent --max-time 2 http://{address}:9400/metrics"
    )
    assert outside.rc == 28, "curl's exit code for a time-out: the packets are dropped"


def test_a_dead_host_engine_brings_the_exporter_down_with_it_instead_of_a_page_of_old_values(host: Host) -> None:
    host.check_output("systemctl stop nvidia-dcgm")
    try:
        assert not host.service("nvidia-dcgm-exporter").is_running
    finally:
        host.check_output("systemctl start nvidia-dcgm-exporter")
    assert host.service("nvidia-dcgm").is_running
