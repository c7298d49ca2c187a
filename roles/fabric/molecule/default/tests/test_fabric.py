"""What role fabric leaves on a node with InfiniBand."""

from __future__ import annotations

import pytest
from testinfra.host import Host


@pytest.mark.parametrize("package", ["rdma-core", "ibverbs-providers", "ibverbs-utils", "infiniband-diags"])
def test_the_infiniband_software_is_installed(host: Host, package: str) -> None:
    assert host.package(package).is_installed


def test_the_tools_of_the_runbook_are_there(host: Host) -> None:
    assert host.run("command -v ibv_devices ibstat").rc == 0


def test_modules_are_loaded_at_boot_without_peermem(host: Host) -> None:
    modules = host.file("/etc/modules-load.d/coderack-fabric.conf").content_string.split("\n")
    assert [line for line in modules if line and not line.startswith("#")] == ["mlx5_ib", "ib_uverbs", "ib_umad"]


@pytest.mark.parametrize(
    "path", ["/etc/sysctl.d/91-coderack-fabric.conf", "/etc/apt/sources.list.d/coderack-doca.sources"]
)
def test_nothing_of_another_network_is_there(host: Host, path: str) -> None:
    assert not host.file(path).exists
