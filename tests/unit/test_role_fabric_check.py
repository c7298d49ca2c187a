"""What role fabric sees of a node, on the lab's trees of healthy nodes and on the same with one thing broken."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coderack_lab.gpu.procfs import fake_proc
from coderack_lab.gpu.sysfs import COMPUTE_HCAS, Sysfs, fake_sysfs

from .data import REPOSITORY

CHECK = REPOSITORY / "roles/fabric/files/check.py"


@dataclass
class Node:
    """A node whose sysfs and procfs are folders."""

    folder: Path
    kind: str
    tree: Sysfs

    @property
    def plugin(self) -> Path:
        return self.folder / "ofi-nccl"

    def check(self, **changes: Any) -> dict[str, Any]:
        wanted = {
            "kind": self.kind,
            "devices": list(COMPUTE_HCAS) if self.kind == "infiniband" else [],
            "count": 32,
            "rate": 400,
            "gpu_direct": "dmabuf",
            "access_control": True,
            "huge_pages": 1,
            "plugin": str(self.plugin),
            "installer": str(self.folder / "efa_installed_packages"),
            "packages": [],
            "sysfs": str(self.folder / "sys"),
            "proc": str(self.folder / "proc"),
        }
        done = subprocess.run(
            [sys.executable, str(CHECK)], input=json.dumps(wanted | changes), capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout))

    def problems(self, **changes: Any) -> list[str]:
        return list(self.check(**changes)["problems"])


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Node]:
    def node(kind: str) -> Node:
        tree = fake_sysfs(tmp_path / "sys", kind)
        fake_proc(tmp_path / "proc", kind)
        made = Node(tmp_path, kind, tree)
        (made.plugin / "lib").mkdir(parents=True)
        (made.plugin / "lib/libnccl-net-ofi.so").touch()
        (tmp_path / "efa_installed_packages").write_text("# EFA installer version: 1.41.0\n")
        return made

    return node


@pytest.fixture
def infiniband(make: Callable[[str], Node]) -> Node:
    return make("infiniband")


@pytest.fixture
def efa(make: Callable[[str], Node]) -> Node:
    return make("efa")


def only(problems: list[str]) -> str:
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize("kind", ["infiniband", "efa", "none"])
def test_a_healthy_node_has_no_problems(make: Callable[[str], Node], kind: str) -> None:
    assert make(kind).problems() == []


def test_devices_are_reported_with_rate_and_firmware(infiniband: Node) -> None:
    seen = infiniband.check()["devices"]["mlx5_0"]
    assert (seen["rate"], seen["firmware"], seen["driver"]) == ("400 Gb/sec (4X NDR)", "28.41.1000", "mlx5_core")


def test_a_missing_hca_is_named_with_those_that_are_there(infiniband: Node) -> None:
    infiniband.tree.remove_device("mlx5_5")
    problem = only(infiniband.problems())
    assert "no RDMA device mlx5_5" in problem
    assert "mlx5_4, mlx5_6" in problem


# nccl #1935: a port that is down shows 10 Gb/s, which is not its fault.
def test_a_port_that_is_down_is_not_taken_for_a_slow_one(infiniband: Node) -> None:
    infiniband.tree.port("mlx5_9").down()
    assert only(infiniband.problems()) == (
        "mlx5_9 is DOWN/Disabled; wanted ACTIVE/LinkUp. Check cable and switch port."
    )


@pytest.mark.parametrize(
    ("file", "value", "words"),
    [
        ("state", "2: INIT", "subnet manager"),
        ("rate", "200 Gb/sec (2X NDR)", "runs at 200 Gb/sec (2X NDR); wanted 400"),
        ("rate", "", "wanted 400"),
        ("link_layer", "Ethernet", "is an Ethernet port"),
    ],
)
def test_a_port_that_is_not_right_is_named(infiniband: Node, file: str, value: str, words: str) -> None:
    infiniband.tree.port("mlx5_1").set(file, value)
    problem = only(infiniband.problems())
    assert problem.startswith("mlx5_1 ")
    assert words in problem


# gpud's public tree: mlx5_bond_0 (BlueField) and an Ethernet port stand beside the eight.
def test_devices_that_are_not_the_fabrics_are_not_judged(infiniband: Node) -> None:
    infiniband.tree.port("mlx5_bond_0").down()
    infiniband.tree.port("mlx5_2").down()
    assert infiniband.problems() == []


# 0x1d: what a switch port shows when nobody turned it off.
def test_redirecting_bridges_are_found_by_their_control_word(infiniband: Node) -> None:
    infiniband.tree.bridges[2].set_acs(0x1D)
    problem = only(infiniband.problems())
    assert "redirects on 1 bridges" in problem
    assert infiniband.tree.bridges[2].address in problem


def test_source_validation_alone_redirects_nothing(infiniband: Node) -> None:
    infiniband.tree.bridges[2].set_acs(0x01)
    assert infiniband.problems() == []


def test_a_configuration_that_cannot_be_read_is_unknown_not_fine(infiniband: Node) -> None:
    folder = infiniband.tree.bridges[0].folder
    (folder / "config").write_bytes((folder / "config").read_bytes()[:64])
    assert "ACS is unknown" in only(infiniband.problems())


def test_a_translating_iommu_is_named(infiniband: Node) -> None:
    group = (infiniband.tree.gpus[0].folder / "iommu_group").resolve()
    (group / "type").write_text("DMA-FQ\n")
    problem = only(infiniband.problems())
    assert "translates (DMA-FQ) for 1 GPUs" in problem
    assert "iommu=pt" in problem


def test_in_a_virtual_machine_access_control_is_the_hosts_business(infiniband: Node) -> None:
    infiniband.tree.bridges[0].set_acs(0x1D)
    (infiniband.folder / "proc/cpuinfo").write_text("flags\t\t: fpu vme hypervisor lahf_lm\n")
    assert infiniband.problems() == []


def test_an_old_kernel_has_no_dma_buf(infiniband: Node) -> None:
    (infiniband.folder / "proc/sys/kernel/osrelease").write_text("5.4.0-190-generic\n")
    assert "kernel 5.4.0-190-generic; DMA-BUF wants 5.12" in only(infiniband.problems())


@pytest.mark.parametrize(
    ("text", "words"),
    [("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n", "not the open module"), (None, "not loaded")],
)
def test_dma_buf_needs_the_open_driver(infiniband: Node, text: str | None, words: str) -> None:
    version = infiniband.folder / "proc/driver/nvidia/version"
    version.unlink()
    if text is not None:
        version.write_text(text)
    assert words in only(infiniband.problems())
    assert infiniband.problems(gpu_direct="none") == []


# nccl #1676: 180 to 10 GB/s after an upgrade of the system.
def test_peermem_is_looked_for_where_it_is_chosen(infiniband: Node) -> None:
    assert infiniband.problems(gpu_direct="peermem") == []
    module = infiniband.folder / "sys/module/nvidia_peermem"
    (module / "version").unlink()
    module.rmdir()
    assert "nvidia_peermem is not loaded" in only(infiniband.problems(gpu_direct="peermem"))


# aws-ofi-nccl 1.14 to 1.20 do without DMA-BUF on the EFA of p4 and p5 (PR #861, #1243).
def test_on_efa_amazons_own_module_serves_as_well(efa: Node) -> None:
    (efa.folder / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05")
    assert "not the open module" in only(efa.problems())
    assert "efa_nv_peermem is not loaded" in only(efa.problems(gpu_direct="peermem"))
    (efa.folder / "sys/module/efa_nv_peermem").mkdir(parents=True)
    assert efa.problems() == []
    assert efa.problems(gpu_direct="peermem") == []


def test_a_missing_efa_device_is_counted(efa: Node) -> None:
    efa.tree.remove_device(next(iter(efa.tree.nics)))
    assert "31 EFA devices; wanted 32" in only(efa.problems())


def test_an_efa_node_without_devices_is_no_healthy_one(make: Callable[[str], Node]) -> None:
    node = make("none")
    node.kind = "efa"
    assert "0 EFA devices; wanted 32" in node.problems()[0]


def test_huge_pages_are_counted(efa: Node) -> None:
    (efa.folder / "proc/meminfo").write_text("HugePages_Total:       0\n")
    assert "0 huge pages" in only(efa.problems())
    (efa.folder / "proc/meminfo").unlink()
    assert "None huge pages" in only(efa.problems())


def test_a_missing_plugin_is_the_silent_fallback_to_sockets(efa: Node) -> None:
    (efa.plugin / "lib/libnccl-net-ofi.so").unlink()
    assert "fall back to sockets" in only(efa.problems())


def test_the_installed_software_is_reported(efa: Node) -> None:
    software = efa.check(packages=["base-files", "no-such-package-of-coderack"])["software"]
    assert software == {"missing": ["no-such-package-of-coderack"], "efa": "1.41.0"}
