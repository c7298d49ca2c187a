"""What role base promises, looked at from the node and from outside."""

from __future__ import annotations

import pytest
from testinfra.host import Host

CHAIN = "nft list chain inet coderack {}"


@pytest.mark.parametrize("chain", ["input", "forward"])
def test_the_kernel_drops_by_default(host: Host, chain: str) -> None:
    assert "policy drop" in host.check_output(CHAIN.format(chain))


def test_the_firewall_is_loaded_at_boot(host: Host) -> None:
    assert host.service("coderack-firewall").is_enabled


def test_a_port_without_a_rule_is_not_reachable_from_outside_and_counted(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    dropped_before = dropped(host)
    host.check_output("systemd-run --collect --unit=probe-listener python3 -m http.server 7777")
    wait = "until ss -Hltn 'sport = :7777' | grep -q .; do sleep 0.2; done"
    host.check_output("timeout 10 sh -c %s", wait)
    try:
        probe = host.backend.run_local(
            f"nsenter --net=/run/netns/coderack-lab socat -u OPEN:/dev/null TCP:{address}:7777,connect-timeout=2"
        )
    finally:
        host.run("systemctl stop probe-listener")
    assert probe.rc != 0
    assert dropped(host) > dropped_before


def dropped(host: Host) -> int:
    line = next(x for x in host.check_output(CHAIN.format("input")).splitlines() if "dropped by policy" in x)
    return int(line.split("packets")[1].split()[0])


def test_tables_of_other_programs_survive_a_reload(host: Host) -> None:
    host.check_output("nft add table inet somebody_else")
    host.check_output("systemctl reload coderack-firewall")
    assert host.run("nft list table inet somebody_else").rc == 0
    host.check_output("nft delete table inet somebody_else")


def test_the_window_of_local_ports_is_in_force(host: Host) -> None:
    assert host.check_output("cat /proc/sys/net/ipv4/ip_local_port_range").split() == ["50000", "59999"]


def test_the_sysctl_file_also_has_what_this_machine_may_not_set(host: Host) -> None:
    assert host.file("/etc/sysctl.d/90-coderack.conf").contains("^vm.swappiness = 10$")


def test_the_node_finds_itself_by_name_at_its_fleet_address(host: Host) -> None:
    address = host.check_output("hostname -I").split()[0]
    assert host.check_output("getent ahostsv4 mol").split()[0] == address


def test_the_clock_is_watched(host: Host) -> None:
    assert host.service("chrony").is_running
    assert host.run("chronyc -n tracking").rc == 0


def test_the_journal_is_kept_over_boots_within_its_cap(host: Host) -> None:
    assert host.file("/var/log/journal").is_directory
    assert "SystemMaxUse=2G" in host.check_output("systemd-analyze cat-config systemd/journald.conf")


def test_only_the_group_reads_the_configuration(host: Host) -> None:
    folder = host.file("/etc/coderack")
    assert (folder.user, folder.group, oct(folder.mode)) == ("root", "coderack", "0o750")
