"""The fake sysfs, procfs and kernel log read as those of the real machines that they are made after."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from coderack_lab import gpu
from coderack_lab.errors import BadInput
from coderack_lab.gpu.sysfs import COMPUTE_HCAS, KINDS


def text(path: Path) -> str:
    return path.read_text().strip()


def functions(root: Path, vendor: str, class_code: str) -> list[Path]:
    return [
        folder
        for folder in sorted((root / "bus/pci/devices").iterdir())
        if (text(folder / "vendor"), text(folder / "class")) == (vendor, class_code)
    ]


def switch_above(folder: Path) -> Path:
    """Downstream port, then the switch's upstream port."""
    return folder.resolve().parent.parent


@pytest.mark.parametrize(
    ("kind", "gpus", "switches", "rdma"),
    [("infiniband", 8, 4, 10), ("efa", 8, 4, 32), ("pcie", 8, 0, 0), ("vm", 1, 0, 0), ("none", 0, 0, 0)],
)
def test_the_bus_has_the_functions_of_the_node(tmp_path: Path, kind: str, gpus: int, switches: int, rdma: int) -> None:
    tree = gpu.fake_sysfs(tmp_path, kind)
    assert len(functions(tmp_path, "0x10de", "0x030200")) == len(tree.gpus) == gpus
    assert len(functions(tmp_path, "0x10de", "0x068000")) == len(tree.switches) == switches
    assert len(list((tmp_path / "class/infiniband").glob("*"))) == len(tree.nics) == rdma


@pytest.mark.parametrize(
    ("kind", "profile"), [("infiniband", "h100-sxm-8"), ("pcie", "h100-pcie-8"), ("vm", "h200-vm-1")]
)
def test_nvml_and_the_bus_name_the_same_gpus(tmp_path: Path, kind: str, profile: str) -> None:
    state = gpu.profile(profile)
    gpu.fake_sysfs(tmp_path, kind)
    for slot in state.slots():
        bus_id = state.get(f"gpu.{slot}.pci.bus_id") or ""
        device = int(state.get(f"gpu.{slot}.pci.device_id") or "", 16)
        assert text(tmp_path / "bus/pci/devices" / bus_id[4:].lower() / "device") == f"0x{device >> 16:04x}"


def test_compute_ports_are_ndr_and_the_others_are_not_to_be_judged_like_them(tmp_path: Path) -> None:
    # gpud's sys-class-infiniband-h100.0; the bond and the storage port are Ethernet.
    gpu.fake_sysfs(tmp_path, "infiniband")
    rdma = tmp_path / "class/infiniband"
    layers = {device.name: text(device / "ports/1/link_layer") for device in rdma.iterdir()}
    assert {name for name, layer in layers.items() if layer == "InfiniBand"} == set(COMPUTE_HCAS)
    for name in COMPUTE_HCAS:
        port = rdma / name / "ports/1"
        assert [text(port / file) for file in ("state", "phys_state", "rate")] == [
            "4: ACTIVE",
            "5: LinkUp",
            "400 Gb/sec (4X NDR)",
        ]
        assert text(port / "counters/excessive_buffer_overrun_errors") == "15"  # its ceiling, on a healthy port
    assert text(rdma / "mlx5_bond_0/ports/1/rate") == "200 Gb/sec (2X NDR)"
    assert text(rdma / "mlx5_bond_0/hca_type") == "MT41692"


@pytest.mark.parametrize("kind", ["infiniband", "efa"])
def test_every_gpu_has_its_compute_nics_below_the_same_pcie_switch(tmp_path: Path, kind: str) -> None:
    tree = gpu.fake_sysfs(tmp_path, kind)
    compute = [nic for name, nic in tree.nics.items() if kind == "efa" or name in COMPUTE_HCAS]
    for function in tree.gpus:
        beside = [nic for nic in compute if switch_above(nic.folder) == switch_above(function.folder)]
        assert len(beside) == (4 if kind == "efa" else 1)


def test_efa_ports_have_no_link_layer_no_firmware_and_only_hardware_counters(tmp_path: Path) -> None:
    gpu.fake_sysfs(tmp_path, "efa")  # rdma-core PR #884
    for device in (tmp_path / "class/infiniband").iterdir():
        assert device.name.startswith("rdmap")
        assert (text(device / "ports/1/link_layer"), text(device / "fw_ver")) == ("Unknown", "0.0.0.0")
        assert text(device / "ports/1/hw_counters/retrans_timeout_events") == "0"
        assert not (device / "ports/1/counters").exists()


def test_a_port_down_reads_as_a_real_one(tmp_path: Path) -> None:
    tree = gpu.fake_sysfs(tmp_path, "infiniband")  # nccl #1935
    tree.port("mlx5_4").down()
    port = tmp_path / "class/infiniband/mlx5_4/ports/1"
    assert [text(port / name) for name in ("state", "phys_state", "rate", "lid")] == [
        "1: DOWN",
        "3: Disabled",
        "10 Gb/sec (4X SDR)",
        "0xffff",
    ]


def test_a_removed_nic_is_gone_from_the_bus_and_from_the_rdma_devices(tmp_path: Path) -> None:
    tree = gpu.fake_sysfs(tmp_path, "infiniband")
    tree.remove(tree.nics["mlx5_0"])
    assert not (tmp_path / "class/infiniband/mlx5_0").exists()
    assert len(functions(tmp_path, "0x15b3", "0x020700")) == 7


def test_a_driver_that_did_not_bind_leaves_the_function_on_the_bus(tmp_path: Path) -> None:
    tree = gpu.fake_sysfs(tmp_path, "infiniband")
    tree.remove_device("mlx5_0")
    assert not (tmp_path / "class/infiniband/mlx5_0").exists()
    assert len(list((tmp_path / "class/infiniband_verbs").iterdir())) == 9
    assert not (tree.nics["mlx5_0"].folder / "driver").exists()
    assert len(functions(tmp_path, "0x15b3", "0x020700")) == 8


def test_acs_control_of_a_bridge_lies_where_pci_express_has_it(tmp_path: Path) -> None:
    tree = gpu.fake_sysfs(tmp_path, "infiniband")
    bridge = tree.bridges[0]
    bridge.set_acs(0x1D)
    header, _, control = struct.unpack_from("<IHH", (bridge.folder / "config").read_bytes(), 0x100)
    assert (header & 0xFFFF, control) == (0x000D, 0x1D)
    others = [struct.unpack_from("<H", (each.folder / "config").read_bytes(), 0x106)[0] for each in tree.bridges[1:]]
    assert set(others) == {0}


def test_a_gpu_off_the_bus_reads_all_ones(tmp_path: Path) -> None:
    tree = gpu.fake_sysfs(tmp_path, "infiniband")
    tree.gpus[2].stop_answering()
    config = (tmp_path / "bus/pci/devices" / tree.gpus[2].address / "config").read_bytes()
    assert set(config) == {0xFF}


def test_iommu_groups_do_not_translate_and_a_guest_has_none(tmp_path: Path) -> None:
    tree = gpu.fake_sysfs(tmp_path / "metal", "infiniband")
    assert text(tree.gpus[0].folder / "iommu_group" / "type") == "identity"
    gpu.fake_sysfs(tmp_path / "guest", "efa")
    assert not list((tmp_path / "guest/kernel/iommu_groups").iterdir())


@pytest.mark.parametrize(
    ("kind", "drivers"),
    [
        ("infiniband", {"nvidia", "nvidia-nvswitch", "mlx5_core", "pcieport"}),
        ("efa", {"nvidia", "nvidia-nvswitch", "efa", "ena", "pcieport"}),
        ("vm", {"nvidia", "virtio-pci"}),
    ],
)
def test_every_function_is_bound_to_its_driver(tmp_path: Path, kind: str, drivers: set[str]) -> None:
    gpu.fake_sysfs(tmp_path, kind)
    bound = {(folder / "driver").readlink().name for folder in (tmp_path / "bus/pci/devices").iterdir()}
    assert bound == drivers


@pytest.mark.parametrize("kind", list(KINDS))
def test_procfs_names_the_driver_wherever_there_is_a_gpu(tmp_path: Path, kind: str) -> None:
    tree = gpu.fake_sysfs(tmp_path / "sys", kind)
    proc = gpu.fake_proc(tmp_path / "proc", kind, driver="575.57.08")
    version = proc / "driver/nvidia/version"
    assert ("575.57.08" in version.read_text()) if version.exists() else kind == "none"
    listed = {folder.name for folder in (proc / "driver/nvidia/gpus").glob("*")}
    assert listed == {function.address for function in tree.gpus}
    assert ("nvidia_peermem" in (proc / "modules").read_text()) == (kind == "infiniband")


@pytest.mark.parametrize("make", [gpu.fake_sysfs, gpu.fake_proc])
def test_an_unknown_kind_of_node_is_refused(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with pytest.raises(BadInput, match="infiniband, efa"):
        make(tmp_path, "roce")


# ---- kernel log ----


def test_records_have_the_form_of_dev_kmsg(tmp_path: Path) -> None:
    log = gpu.KernelLog(tmp_path / "kmsg")
    log.add("NVRM: loading NVIDIA UNIX Open Kernel Module", level=6, seconds=4.5)
    log.xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    log.sxid(20034, "Fatal, Link 33 LTSSM Fault Up", seconds=100)
    assert log.file.read_text().splitlines() == [
        "6,0,4500000,-;NVRM: loading NVIDIA UNIX Open Kernel Module",
        "3,1,5500000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "3,2,100000000,-;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 33 LTSSM Fault Up",
    ]


def test_a_record_stays_one_line_and_tags_follow_it(tmp_path: Path) -> None:
    log = gpu.KernelLog(tmp_path / "kmsg").add("two\nlines \\ and é", DEVICE="+pci:0000:1b:00.0")
    assert log.file.read_text().splitlines() == [
        "4,0,1000000,-;two\\x0alines \\x5c and \\xc3\\xa9",
        " DEVICE=+pci:0000:1b:00.0",
    ]


def test_overwritten_torn_and_rebooted_logs(tmp_path: Path) -> None:
    log = gpu.KernelLog(tmp_path / "kmsg").add("first").skip(40).add("a record that is cut in the middle")
    assert log.file.read_text().splitlines()[1].startswith("4,41,")
    assert not log.tear().file.read_text().endswith("\n")
    log.reboot().add("first of the next boot")
    assert log.file.read_text() == "4,0,1000000,-;first of the next boot\n"
