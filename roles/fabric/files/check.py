"""Look at the RDMA devices of a node and at what GPU Direct needs. Reads `Wanted` as JSON from standard input.

Prints JSON: {"software": …, "devices": …, "problems": […]}; every problem says what was seen, what is wanted and the
next step. Changes nothing. sysfs and procfs come as paths, so that a container or a test can have them elsewhere.
Bits of PCI's access control: PCI Express base specification; which of them redirect: the kernel's drivers/pci/p2pdma.c.
"""

import dataclasses
import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ACS_CAPABILITY = 0x000D
_ACS_REDIRECTS = 0x04 | 0x08 | 0x20  # request redirect, completion redirect, egress control
_BRIDGE, _GPU = "0x0604", "0x0302"
_OLDEST_DMABUF_KERNEL = (5, 12)  # dma-buf in the kernel's RDMA core


@dataclasses.dataclass(frozen=True)
class Wanted:
    kind: str  # infiniband, efa or none
    devices: list[str]  # RDMA devices by name; empty: as many as count says
    count: int  # how many devices where no names are given; 0 for any
    rate: int  # Gb/s of an InfiniBand port
    gpu_direct: str  # dmabuf, peermem or none
    access_control: bool  # whether PCI redirection and a translating IOMMU are faults
    huge_pages: int  # at least so many, on EFA
    plugin: str  # folder that has to hold NCCL's plugin, on EFA
    installer: str  # where the EFA installer writes what it installed
    packages: list[str]  # Debian packages that have to be there
    sysfs: str
    proc: str


def main() -> None:
    wanted = Wanted(**json.load(sys.stdin))
    checks = {"infiniband": _infiniband, "efa": _efa, "none": _none}
    result = {
        "software": {"missing": _missing(wanted.packages), "efa": _efa_version(wanted)},
        "devices": _devices(Path(wanted.sysfs)),
        "problems": list(checks[wanted.kind](wanted)),
    }
    print(json.dumps(result))


def _none(wanted: Wanted) -> Iterator[str]:
    yield from ()


def _infiniband(wanted: Wanted) -> Iterator[str]:
    sysfs, there = Path(wanted.sysfs), _devices(Path(wanted.sysfs))
    for name in wanted.devices:
        if name not in there:
            yield (
                f"there is no RDMA device {name}; seen: {', '.join(there) or 'none'}. lspci -d 15b3: shows whether "
                "the card is on the bus, journalctl -k -g mlx5 why the driver did not take it. Where rdma-core has "
                "renamed devices (ibp…), write those names into terraform.tfvars."
            )
            continue
        yield from _port(name, there[name], wanted.rate)
    yield from _gpu_direct(wanted)
    if wanted.access_control and not _guest(wanted):
        yield from _access_control(sysfs)


def _port(name: str, port: dict[str, str], rate: int) -> Iterator[str]:
    """A port that is down reads 10 Gb/s too (nccl #1935), so its state is judged first, and alone."""
    if port["link_layer"] != "InfiniBand":
        yield (
            f"{name} is an {port['link_layer']} port; wanted an InfiniBand port. Take it out of the fabric's devices "
            "in terraform.tfvars, or set the card's LINK_TYPE_P1 to IB with mlxconfig."
        )
    elif port["phys_state"] != "LinkUp":
        yield f"{name} is {port['state']}/{port['phys_state']}; wanted ACTIVE/LinkUp. Check cable and switch port."
    elif port["state"] != "ACTIVE":
        yield (
            f"{name} has a link but is {port['state']}; wanted ACTIVE. The subnet manager has not brought it up: "
            "sminfo, and the switch's opensm."
        )
    elif _gigabits(port["rate"]) < rate:
        yield f"{name} runs at {port['rate']}; wanted {rate} Gb/s. Reseat the cable; look at the switch port."


def _efa(wanted: Wanted) -> Iterator[str]:
    sysfs, proc = Path(wanted.sysfs), Path(wanted.proc)
    there = [name for name, port in _devices(sysfs).items() if port["driver"] == "efa"]
    missing = [name for name in wanted.devices if name not in there]
    if missing:
        yield f"there is no EFA device {', '.join(missing)}; seen: {len(there)} ({', '.join(there) or 'none'})."
    if wanted.count and len(there) != wanted.count:
        yield (
            f"{len(there)} EFA devices; wanted {wanted.count} (fabric_efa_devices). lspci -d 1d0f: shows what the "
            "instance has: interfaces are fixed at launch (efa_layout of the stack); lsmod | grep efa shows the "
            "driver."
        )
    if there and not list((sysfs / "class/infiniband_verbs").glob("uverbs*")):
        yield "there is no uverbs device, so libfabric cannot open EFA; wanted module ib_uverbs: modprobe ib_uverbs."
    pages = _number(proc / "meminfo", r"HugePages_Total:\s+(\d+)")
    if pages is None or pages < wanted.huge_pages:
        yield (
            f"{pages} huge pages of 2 MiB; wanted at least {wanted.huge_pages}. The installer's efa-config reserves "
            "them at boot; set fabric_efa_hugepages to reserve them here, and reboot where memory is too fragmented."
        )
    if wanted.plugin and not list(Path(wanted.plugin).rglob("libnccl-net*.so*")):
        yield (
            f"there is no libnccl-net*.so below {wanted.plugin}, so NCCL would fall back to sockets silently; wanted "
            "aws-ofi-nccl, which the EFA installer brings from version 1.39 on."
        )
    yield from _gpu_direct(wanted)


def _gpu_direct(wanted: Wanted) -> Iterator[str]:
    sysfs, proc = Path(wanted.sysfs), Path(wanted.proc)
    module = "efa_nv_peermem" if wanted.kind == "efa" else "nvidia_peermem"
    loaded = (sysfs / "module" / module).is_dir()
    if wanted.gpu_direct == "peermem" and not loaded:
        yield (
            f"module {module} is not loaded; wanted with fabric_gpu_direct: peermem. modprobe {module} after the "
            "driver (nvidia_peermem fails on Ubuntu 24.04 with OFED 24.10: nccl #1939); or use dmabuf."
        )
    # aws-ofi-nccl 1.14 to 1.20 leave DMA-BUF alone on p4 and p5 and use Amazon's own module (PR #861, #1243).
    if wanted.gpu_direct != "dmabuf" or (wanted.kind == "efa" and loaded):
        return
    release = _text(proc / "sys/kernel/osrelease")
    kernel = re.match(r"(\d+)\.(\d+)", release)
    if kernel is None or (int(kernel[1]), int(kernel[2])) < _OLDEST_DMABUF_KERNEL:
        yield (
            f"kernel {release or 'unknown'}; DMA-BUF wants 5.12 or newer. Upgrade it, or set fabric_gpu_direct: "
            "peermem."
        )
    driver = _text(proc / "driver/nvidia/version")
    if "Open Kernel Module" not in driver:
        yield (
            f"the NVIDIA driver is {'not loaded' if not driver else 'not the open module'}; DMA-BUF wants the open "
            "kernel modules (role nvidia_driver). With the proprietary ones, set fabric_gpu_direct: peermem."
        )


def _access_control(sysfs: Path) -> Iterator[str]:
    bridges = sorted({bridge for path in _wired(sysfs) for bridge in _above(path)})
    controls = {bridge.name: _acs(bridge) for bridge in bridges}
    redirecting = [name for name, control in controls.items() if control is not None and control & _ACS_REDIRECTS]
    unreadable = [name for name, control in controls.items() if control is None]
    if redirecting:
        yield (
            f"PCI access control (ACS) redirects on {len(redirecting)} bridges above GPUs and HCAs "
            f"({_some(redirecting)}), so GPU and HCA talk through the CPU or hang (nccl #489, #1737); wanted off. "
            "Turn ACS off in the firmware, or at boot with setpci -s <bridge> ECAP_ACS+0x6.w=0000."
        )
    if unreadable:
        yield f"the PCI configuration of {_some(unreadable)} cannot be read whole, so ACS is unknown; run as root."
    kinds = {path.name: _text(path / "iommu_group/type") for path in _wired(sysfs) if (path / "iommu_group").exists()}
    translating = sorted(name for name, kind in kinds.items() if kind != "identity")
    if translating:
        yield (
            f"the IOMMU translates ({kinds[translating[0]] or 'type unknown'}) for {len(translating)} GPUs and HCAs "
            f"({_some(translating)}), which slows or breaks GPU Direct (nccl #489, #928); wanted none or "
            "pass-through. Boot with iommu=pt."
        )


def _wired(sysfs: Path) -> list[Path]:
    """The PCI functions of GPUs and of RDMA devices, as resolved folders whose parents are the bridges above."""
    functions = [path for path in (sysfs / "bus/pci/devices").glob("*") if _text(path / "class").startswith(_GPU)]
    functions += [path / "device" for path in (sysfs / "class/infiniband").glob("*") if (path / "device").exists()]
    return sorted({path.resolve() for path in functions})


def _above(function: Path) -> Iterator[Path]:
    for parent in function.parents:
        if _text(parent / "class").startswith(_BRIDGE):
            yield parent


def _acs(bridge: Path) -> int | None:
    """The bridge's ACS control word, 0 where it has none, None where it cannot be read."""
    try:
        space = (bridge / "config").read_bytes()
    except OSError:
        return None
    if len(space) < 4096:  # others than root read the first 64 bytes; a conventional bridge has 256
        return 0 if len(space) == 256 else None
    offset, seen = 0x100, set()
    while 0x100 <= offset <= 4096 - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", space, offset + 6)[0])
        offset = header >> 20
    return 0


def _devices(sysfs: Path) -> dict[str, dict[str, str]]:
    """Port 1 of each RDMA device."""
    found = {}
    for device in sorted((sysfs / "class/infiniband").glob("*")):
        port = device / "ports/1"
        driver = device / "device/driver"
        found[device.name] = {
            "link_layer": _text(port / "link_layer"),
            "state": _text(port / "state").partition(": ")[2],
            "phys_state": _text(port / "phys_state").partition(": ")[2],
            "rate": _text(port / "rate"),
            "firmware": _text(device / "fw_ver"),
            "driver": driver.resolve().name if driver.exists() else "",
        }
    return found


def _guest(wanted: Wanted) -> bool:
    """In a virtual machine ACS and the IOMMU are the host's business."""
    return re.search(r"^flags\s*:.*\bhypervisor\b", _text(Path(wanted.proc) / "cpuinfo"), re.MULTILINE) is not None


def _efa_version(wanted: Wanted) -> str:
    found = re.search(r"EFA installer version: (\S+)", _text(Path(wanted.installer)))
    return found[1] if found else ""


def _missing(packages: list[str]) -> list[str]:
    if not packages:
        return []
    shown = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n", *packages]
    done = subprocess.run(shown, capture_output=True, text=True, check=False)
    installed = {line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith("installed ")}
    return [package for package in packages if package.partition("=")[0] not in installed]


def _gigabits(rate: str) -> float:
    found = re.match(r"([\d.]+) Gb/sec", rate)
    return float(found[1]) if found else 0.0


def _number(path: Path, pattern: str) -> int | None:
    found = re.search(pattern, _text(path))
    return int(found[1]) if found else None


def _text(path: Path) -> str:
    """A file's text; empty where it is not there or refuses, which no check takes for the wanted value."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


if __name__ == "__main__":
    main()
