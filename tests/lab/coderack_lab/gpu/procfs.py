"""A fake procfs of a GPU node: driver version, GPU list, modules, command line, boot id, memory."""

from __future__ import annotations

from pathlib import Path

from coderack_lab.errors import BadInput
from coderack_lab.gpu import profiles
from coderack_lab.gpu.sysfs import KINDS

BOOT_ID = "11111111-2222-4333-8444-555555555555"
_MODULES = {
    "infiniband": (
        "nvidia_uvm",
        "nvidia_drm",
        "nvidia_modeset",
        "nvidia",
        "nvidia_peermem",
        "mlx5_ib",
        "mlx5_core",
        "ib_uverbs",
    ),
    "efa": ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia", "efa", "ib_uverbs", "gdrdrv"),
    "pcie": ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"),
    "vm": ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"),
    "none": (),
}


def _addresses(kind: str) -> list[str]:
    if kind in ("infiniband", "efa", "pcie"):
        return [f"0000:{bus}:00.0" for bus in profiles.GPU_BUS_IDS]
    return ["0000:00:06.0"] if kind == "vm" else []


def fake_proc(into: Path, kind: str, *, driver: str = profiles.DRIVER, uptime: float = 864000.0) -> Path:
    """Make the tree of a healthy node of that kind below `into` and return `into`.

    `driver` is the loaded kernel module's version, in driver/nvidia/version; another than NVML's is a mismatch.
    Raises BadInput for an unknown kind.
    """
    if kind not in KINDS:
        raise BadInput(f"kind of node {kind!r}; wanted one of: {', '.join(KINDS)}")
    huge = 5128 if kind == "efa" else 0  # 2 MiB pages that the EFA installer reserves
    files = {
        "cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.8.0-1021 root=/dev/vda1 ro iommu=pt",
        "modules": "\n".join(f"{name} 1048576 0 - Live 0x0000000000000000" for name in _MODULES[kind]),
        "meminfo": f"MemTotal: 2113456789 kB\nHugePages_Total: {huge}\nHugePages_Free: {huge}\nHugepagesize: 2048 kB",
        "uptime": f"{uptime:.2f} {uptime * 100:.2f}",
        "version": "Linux version 6.8.0-1021-generic (builder@lab) #23 SMP",
        "sys/kernel/osrelease": "6.8.0-1021-generic",
        "sys/kernel/random/boot_id": BOOT_ID,
    }
    if kind != "none":
        module = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (builder@lab)"
        files["driver/nvidia/version"] = f"{module}\nGCC version:  gcc version 12.3.0"
    for minor, address in enumerate(_addresses(kind)):
        about = {"Model": "NVIDIA GPU", "Bus Location": address, "Device Minor": minor, "GPU Excluded": "No"}
        files[f"driver/nvidia/gpus/{address}/information"] = "\n".join(
            f"{key}: \t {value}" for key, value in about.items()
        )
    for name, text in files.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_text(f"{text}\n" if text else "")
    return into
