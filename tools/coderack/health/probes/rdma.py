"""InfiniBand and EFA devices from sysfs.

Keys: `DEVICE.firmware`, `.board`, `.driver`, `.pcie.width`, `.pcie.width.max`, `.path`, and per port
`DEVICE.port.N.state`, `.phys`, `.rate`, `.layer`, `.counter.NAME`.
"""

from pathlib import Path

from coderack.health.probes import files
from coderack.health.probes.pci import driver_of, place_of
from coderack.health.processes import Step
from coderack.health.readings import Answer

COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
# EFA's own; those that the EKS node monitoring agent judges.
HARDWARE_COUNTERS = (
    "rx_drops",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
)


def read(sysfs: Path, step: Step) -> dict[str, Answer]:
    """All RDMA devices; `devices` counts them, 0 when there is no RDMA at all."""
    root = sysfs / "class/infiniband"
    found = files.names(root)
    answers: dict[str, Answer] = {
        "devices": Answer(len(found)),
        "verbs": Answer(len(files.names(sysfs / "class/infiniband_verbs"))),
    }
    for name in found:
        step(f"RDMA device {name}")
        answers |= _device(root / name, name)
    return answers


def _device(path: Path, name: str) -> dict[str, Answer]:
    pci = path / "device"
    answers = {
        f"{name}.firmware": files.text(path / "fw_ver"),
        f"{name}.board": files.text(path / "board_id"),
        f"{name}.type": files.text(path / "hca_type"),
        f"{name}.driver": driver_of(pci / "driver"),
        f"{name}.pcie.width": files.number(pci / "current_link_width"),
        f"{name}.pcie.width.max": files.number(pci / "max_link_width"),
        f"{name}.path": place_of(pci),
    }
    for port in files.names(path / "ports"):
        answers |= _port(path / "ports" / port, f"{name}.port.{port}")
    return answers


def _port(path: Path, key: str) -> dict[str, Answer]:
    answers = {
        f"{key}.state": files.text(path / "state"),
        f"{key}.phys": files.text(path / "phys_state"),
        f"{key}.rate": files.text(path / "rate"),
        f"{key}.layer": files.text(path / "link_layer"),
    }
    for directory, names in (("counters", COUNTERS), ("hw_counters", HARDWARE_COUNTERS)):
        there = set(files.names(path / directory))
        for name in names:
            if name in there:
                answers[f"{key}.counter.{name}"] = files.number(path / directory / name)
    return answers
