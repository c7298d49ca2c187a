"""What role gpu_health promises: metrics by a timer, and a gate that names the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testinfra.host import Host

STATE = "/run/coderack-lab-gpu/state"
METRICS = "/var/lib/prometheus/node-exporter/coderack_gpu.prom"


@pytest.fixture
def broken(host: Host) -> Iterator[None]:
    """Link 5 of GPU 3 is down while the test runs."""
    host.check_output(
        f"cp {STATE} {STATE}.whole && (cat {STATE}.whole; echo 'gpu.3.link.5.state = 0') > {STATE}.new"
        f" && mv {STATE}.new {STATE}"
    )
    yield
    host.check_output(f"mv {STATE}.whole {STATE} && systemctl stop vllm && systemctl reset-failed")


def test_the_timer_leaves_metrics_of_a_healthy_node(host: Host) -> None:
    assert host.service("coderack-health.timer").is_enabled
    host.check_output("systemctl start coderack-health")
    metrics = host.file(METRICS).content_string
    assert 'coderack_gpu_health_verdict{verdict="healthy"} 1' in metrics
    assert metrics.count("coderack_gpu_info{") == 8


def test_a_fit_node_lets_vllm_start(host: Host) -> None:
    host.check_output("systemctl start vllm")
    assert host.check_output("systemctl is-active vllm") == "active"
    host.check_output("systemctl stop vllm")


@pytest.mark.usefixtures("broken")
def test_a_broken_node_does_not_and_the_gate_says_why(host: Host) -> None:
    assert host.run("systemctl start vllm").rc != 0
    assert host.run("systemctl is-active vllm").stdout.strip() == "failed"
    status = host.run("systemctl status --no-pager --lines=20 --full coderack-gate").stdout
    assert "gate CLOSED: h100-sxm: nvlink-down: GPU 3 (GPU-" in status


@pytest.mark.usefixtures("broken")
def test_an_unhealthy_node_is_no_failure_of_the_watch(host: Host) -> None:
    assert host.run("systemctl start coderack-health").rc == 0
    assert 'coderack_gpu_health_verdict{verdict="unhealthy"} 1' in host.file(METRICS).content_string


def test_after_the_repair_vllm_starts_again(host: Host) -> None:
    assert host.run("systemctl start vllm").rc == 0
    host.check_output("systemctl stop vllm")


@pytest.mark.parametrize("unit", ["coderack-gate.service", "coderack-health.service"])
def test_the_units_are_locked_in(host: Host, unit: str) -> None:
    line = host.check_output(f"systemd-analyze security --no-pager {unit} | tail -n 1")
    assert float(line.rsplit(":", 1)[1].split()[0]) <= 4.0
