"""What role node_exporter promises, looked at from the node and from outside."""

from __future__ import annotations

from testinfra.host import Host


def page(host: Host) -> str:
    address = host.check_output("hostname -I").split()[0]
    return str(host.check_output(f"curl --silent --fail --max-time 10 http://{address}:9100/metrics"))


def test_units_that_matter_are_exported(host: Host) -> None:
    assert 'node_systemd_unit_state{name="chrony.service",state="active"' in page(host)


def test_other_units_are_not(host: Host) -> None:
    assert "systemd-journald.service" not in page(host)


def test_a_file_that_another_program_left_is_exported(host: Host) -> None:
    path = "/var/lib/prometheus/node-exporter/probe.prom"
    host.check_output(f"echo 'coderack_probe 42' > {path}")
    seen = page(host)
    host.check_output(f"rm {path}")
    assert "coderack_probe 42" in seen


def test_it_listens_on_the_private_address_alone(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    assert host.socket(f"tcp://{address}:9100").is_listening
    assert not host.socket("tcp://127.0.0.1:9100").is_listening
    assert not host.socket("tcp://0.0.0.0:9100").is_listening


def test_nobody_but_the_ops_nodes_reaches_it(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    outside = host.backend.run_local(
        f"nsenter --net=/run/netns/coderack-lab curl --silent --max-time 2 http://{address}:9100/metrics"
    )
    assert outside.rc == 28, "curl's exit code for a time-out: the packets are dropped"
