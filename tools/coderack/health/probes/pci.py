"""What is on the PCI bus, without any driver: GPUs, NVSwitches, whether they answer, and access control.

Keys: `gpu.BUS.device_id`, `.alive`, `.driver`; `switch.BUS.alive`; `bridge.BUS.acs`; `path.BUS`.
"""

import struct
from pathlib import Path

from coderack.health.probes import files
from coderack.health.processes import Step
from coderack.health.readings import Answer

_NVIDIA = 0x10DE
_GPU_CLASSES = (0x0302, 0x0300)  # 3D controller; display controller on cards with an output
_SWITCH_CLASS = 0x0680  # other bridge: NVSwitch
_BRIDGE_CLASS = 0x0604
_ACS_CAPABILITY = 0x000D
# P2P request redirect, P2P completion redirect: with these on, GPU and NIC reach each other through the root complex.
_ACS_REDIRECT = 0x0004 | 0x0008


def read(sysfs: Path, step: Step) -> dict[str, Answer]:
    step("PCI functions")
    root = sysfs / "bus/pci/devices"
    found = files.names(root)
    if not found:
        return {"bus": Answer(error="ABSENT")}
    answers: dict[str, Answer] = {"bus": Answer(len(found))}
    for name in found:
        answers |= _function(root / name, name)
    return answers


def _function(path: Path, name: str) -> dict[str, Answer]:
    kind = files.number(path / "class", 16).value
    kind = kind >> 8 if isinstance(kind, int) else 0
    if kind == _BRIDGE_CLASS:
        acs = _acs(path / "config")
        return {f"bridge.{name}.acs": acs} if acs is not None else {}
    if files.number(path / "vendor", 16).value != _NVIDIA:
        return {}
    if kind in _GPU_CLASSES:
        return {
            f"gpu.{name}.device_id": files.text(path / "device"),
            f"gpu.{name}.alive": _alive(path / "config"),
            f"gpu.{name}.driver": driver_of(path / "driver"),
            f"path.{name}": place_of(path),
        }
    if kind == _SWITCH_CLASS:
        return {f"switch.{name}.alive": _alive(path / "config")}
    return {}


def driver_of(path: Path) -> Answer:
    try:
        return Answer(path.readlink().name)
    except OSError:
        return Answer(error="ABSENT")


def place_of(path: Path) -> Answer:
    """The chain of bridges above a function, from the root down: `pci0000:15/0000:15:01.0/0000:16:00.0`."""
    try:
        parts = path.resolve().parts
    except OSError:
        return Answer(error="ABSENT")
    roots = [index for index, part in enumerate(parts) if part.startswith("pci")]
    return Answer("/".join(parts[roots[-1] :])) if roots else Answer(error="NO_TOPOLOGY")


def _alive(config: Path) -> Answer:
    """Whether the device answers: one that fell off the bus reads as all ones."""
    try:
        with config.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        return Answer(error=f"ERRNO_{error.errno}")
    return Answer(int(head != b"\xff\xff\xff\xff")) if len(head) == 4 else Answer(error="EMPTY")


def _acs(config: Path) -> Answer | None:
    """ACS control register of a bridge; None when it has none. Below 256 bytes is what anybody but root gets."""
    try:
        with config.open("rb") as file:
            data = file.read(4096)
    except OSError as error:
        return Answer(error=f"ERRNO_{error.errno}")
    if len(data) <= 256:
        return Answer(error="NO_PERMISSION") if len(data) == 64 else None
    offset, seen = 256, 0
    while 256 <= offset <= len(data) - 8 and seen < 64:
        header = struct.unpack_from("<I", data, offset)[0]
        if header & 0xFFFF == _ACS_CAPABILITY:
            control = struct.unpack_from("<H", data, offset + 6)[0]
            return Answer(int(bool(control & _ACS_REDIRECT)))
        offset, seen = header >> 20, seen + 1
    return None
