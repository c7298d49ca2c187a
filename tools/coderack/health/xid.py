"""What the NVIDIA driver's kernel log messages mean: Xid (GPU), SXid (NVSwitch) and lines without a number.

Actions are those of NVIDIA's Xid catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) and
of the Fabric Manager User Guide (appendix on NVSwitch SXid errors), unless the entry says otherwise. A number that is
not here is reported as unknown with its line, never dropped; and what the driver itself asks for (Xid 154, NVML field
230) beats these tables.
"""

import re
from dataclasses import dataclass

from coderack.health.findings import Action, Severity

_CATALOGUE = "NVIDIA Xid catalogue"
_GUIDE = "NVIDIA Fabric Manager User Guide, SXid errors"

HOUR = 3600.0
DAY = 24 * HOUR
UNTIL_REBOOT = float("inf")


@dataclass(frozen=True, slots=True)
class Meaning:
    """`keep`: seconds for which one such event stays a finding; `repeated`: how many make it a hardware matter."""

    name: str
    severity: Severity
    action: Action
    impact: str
    remedy: str
    source: str
    keep: float
    repeated: int = 0


_DEAD = "the engine on this GPU dies or hangs, and with it its whole parallel group"
_RISK = "serving works now; the next error of this kind may stop it"
_NO = "none"

_RESTART = "vLLM restarts by itself; look at its log for the cause. Two or more on one GPU and not on others: drain it"
_RESET = "drain the node, stop vLLM, `nvidia-smi --gpu-reset -i INDEX`, run `coderack health node` again"
_FABRIC = "drain the node and restart it: the whole fabric, all GPUs and NVSwitches, must be reset together"
_REBOOT = "drain the node and restart it; if it returns, have the GPU or the instance replaced"
_REPLACE = "drain the node and open a case with the vendor: the part must be replaced"


def _app(name: str, source: str = _CATALOGUE) -> Meaning:
    """Software's fault, most likely: nothing to do on the hardware for a single event (NVSentinel #911)."""
    return Meaning(name, Severity.WARNING, Action.WATCH, _DEAD, _RESTART, source, HOUR, repeated=3)


def _reset(name: str, source: str = _CATALOGUE) -> Meaning:
    return Meaning(name, Severity.CRITICAL, Action.RESET, _DEAD, _RESET, source, UNTIL_REBOOT)


def _reboot(name: str, source: str = _CATALOGUE) -> Meaning:
    return Meaning(name, Severity.CRITICAL, Action.REBOOT, _DEAD, _REBOOT, source, UNTIL_REBOOT)


def _drain(name: str, remedy: str, source: str = _CATALOGUE) -> Meaning:
    return Meaning(name, Severity.CRITICAL, Action.DRAIN, _DEAD, remedy, source, UNTIL_REBOOT)


def _watch(name: str, remedy: str, source: str = _CATALOGUE, impact: str = _RISK) -> Meaning:
    return Meaning(name, Severity.WARNING, Action.WATCH, impact, remedy, source, DAY)


def _note(name: str, remedy: str, source: str = _CATALOGUE) -> Meaning:
    return Meaning(name, Severity.INFO, Action.NONE, _NO, remedy, source, HOUR)


_NVLINK5 = "belongs to NVLink 5 (Blackwell) and is unexpected on Hopper; drain, then find out why the driver says it"

XIDS: dict[int, Meaning] = {
    8: _app("GPU stopped processing"),
    11: _app("invalid or corrupted push buffer stream"),
    12: _app("driver error handling GPU exception"),
    13: _app("graphics engine exception"),
    31: _app("GPU memory page fault"),
    32: _app("push buffer error"),
    43: _note("a channel was reset because of the application", "the application died of its own fault; see its log"),
    45: _note("channels were torn down", "follows another error or the end of a process: look for an earlier Xid"),
    46: _reset("GPU stopped processing"),
    48: Meaning(
        "uncorrectable (double bit) memory error",
        Severity.CRITICAL,
        Action.RESET,
        _DEAD,
        f"{_RESET}; with Xid 64 or a failed row remapping have it replaced",
        _CATALOGUE,
        UNTIL_REBOOT,
    ),
    54: Meaning(
        "auxiliary power is not connected",
        Severity.CRITICAL,
        Action.REPLACE,
        _DEAD,
        "drain the node and have the GPU's power connection checked",
        _CATALOGUE,
        UNTIL_REBOOT,
    ),
    61: _reset("internal micro-controller breakpoint or warning"),
    62: _reset("internal micro-controller halt"),
    63: Meaning(
        "a memory row was marked for remapping",
        Severity.WARNING,
        Action.WATCH,
        _RISK,
        "nothing now: it is remapped by the next GPU reset; do that at the next drain",
        _CATALOGUE,
        DAY,
    ),
    64: Meaning(
        "row remapping failed",
        Severity.CRITICAL,
        Action.REPLACE,
        _DEAD,
        f"{_REPLACE}, when `row-remap-failed` is reported too; otherwise reset once",
        _CATALOGUE,
        UNTIL_REBOOT,
    ),
    68: _app("video processor exception"),
    69: _app("graphics engine class error"),
    74: _drain("NVLink error", "see the registers in the line; reseat or replace if it returns after a restart"),
    79: _reboot("the GPU has fallen off the bus"),
    92: _watch("high rate of corrected memory errors", "watch the ECC counters; replace when rows are used up"),
    93: _note("InfoROM wear limit, non-fatal", "none"),
    94: Meaning(
        "contained uncorrectable memory error",
        Severity.WARNING,
        Action.RESET,
        "the process that was hit dies: that is vLLM, and with it its whole parallel group; others go on",
        "vLLM restarts by itself; reset the GPU at the next drain",
        _CATALOGUE,
        UNTIL_REBOOT,
    ),
    95: _reset("uncontained uncorrectable memory error"),
    109: _reset("context switch timeout"),
    110: _reset("security fault"),
    119: Meaning(
        "time-out of the GPU's system processor (GSP)",
        Severity.CRITICAL,
        Action.RESET,
        f"{_DEAD}; every NVML call becomes slow",
        f"{_RESET}; restart the node if it returns, then check the driver version",
        f"{_CATALOGUE}; open-gpu-kernel-modules #446, #1230",
        UNTIL_REBOOT,
    ),
    120: _reset("error of the GPU's system processor (GSP)"),
    121: _watch("chip-to-chip link error", "x86 HGX boards have no such link: check that this is the right platform"),
    122: _watch("SPI read or write failure", "have the GPU serviced if it is repeated"),
    123: _watch("PMU SPI failure", "have the GPU serviced if it is repeated"),
    124: _watch("SPI access failure", "have the GPU serviced if it is repeated"),
    125: _watch("InfoROM access failure", "have the GPU serviced if it is repeated"),
    136: _reset("NVLink training failed"),
    137: _app("NVLink privilege error, mostly a peer access by software"),
    140: _reset("unrecovered memory error"),
    143: _reset("GPU initialisation failed"),
    **{
        number: _drain(f"NVLink: {block} error", _NVLINK5, f"{_CATALOGUE}; gpud #1160, #1174")
        for number, block in zip(
            range(144, 151), ("SAW", "RLW", "TLW", "TREX", "NVLPW_CTRL", "NETIR", "MSE"), strict=True
        )
    },
    155: _reset("NVLink software-defined error"),
    156: _watch("a memory resource was retired", "reset at the next drain"),
    157: Meaning(
        "retiring a memory resource failed", Severity.WARNING, Action.REPLACE, _RISK, _REPLACE, _CATALOGUE, UNTIL_REBOOT
    ),
    158: _reset("fatal time-out"),
    167: _reboot("PCIe fatal time-out", f"{_CATALOGUE} names no action; restarting is ours"),
    171: _note("details of an uncorrectable DRAM error", "goes with Xid 48, which counts"),
    172: _note("details of an uncorrectable SRAM error", "goes with Xid 48, which counts"),
}

UNKNOWN_XID = Meaning(
    "not in our table",
    Severity.WARNING,
    Action.WATCH,
    "not known",
    "look the number up in NVIDIA's Xid catalogue, and add it to `xid.py`",
    _CATALOGUE,
    DAY,
)

# Text of Xid 154 and value of NVML field 230 -> action. Constants of nvidia-ml-py.
RECOVERY = {
    0: ("none", Action.NONE),
    1: ("GPU reset", Action.RESET),
    2: ("node reboot", Action.REBOOT),
    3: ("drain peer-to-peer work", Action.DRAIN),
    4: ("drain and reset", Action.RESET),
    5: ("recover the IMEX domain", Action.DRAIN),
    6: ("bus reset", Action.RESET),
    7: ("system reboot", Action.REBOOT),
}
_XID_154 = re.compile(r"recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]+)", re.IGNORECASE)


def recovery_of_154(text: str) -> int | None:
    match = _XID_154.search(text)
    return int(match.group(1), 16) if match else None


def _always_fatal(name: str) -> Meaning:
    return Meaning(name, Severity.CRITICAL, Action.REBOOT, _DEAD, _FABRIC, _GUIDE, UNTIL_REBOOT)


_SINGLE_BIT = _note("corrected single bit error in an NVSwitch, or its limit", "none; the hardware corrects it", _GUIDE)
SXIDS: dict[int, Meaning] = {
    **{
        number: _always_fatal("NVSwitch error that is always fatal to the whole fabric")
        for number in (10003, 12020, 22003, 22011, *range(23001, 23018))
    },
    **dict.fromkeys(
        (
            11012,
            11021,
            11022,
            11023,
            12021,
            12023,
            15008,
            15011,
            19049,
            19055,
            19057,
            19059,
            19062,
            19065,
            19068,
            19071,
            24001,
            24002,
            24003,
        ),
        _SINGLE_BIT,
    ),
    10004: _watch("NVSwitch is over its temperature limit", "check cooling", _GUIDE, "NVLink becomes slower"),
    10005: _note("NVSwitch is below its temperature limit again", "none", _GUIDE),
    11004: _drain("ingress access violation", "restart vLLM; if it returns, restart the node", _GUIDE),
    12028: _drain("egress access violation", "restart vLLM; if it returns, restart the node", _GUIDE),
    19084: _always_fatal("heartbeat time-out of an NVSwitch link"),
    20001: _watch(
        "NVLink training or replay on an NVSwitch port", "count them per link; check the link's counters", _GUIDE
    ),
    20009: _watch(
        "NVLink short error rate on an NVSwitch port", "count them per link; check the link's counters", _GUIDE
    ),
    20012: _watch("NVLink error on an NVSwitch port", "have the connection of this link checked", _GUIDE),
    20034: Meaning(
        "an NVLink went down (LTSSM fault)",
        Severity.CRITICAL,
        Action.REBOOT,
        _DEAD,
        f"find the GPU side by its Xid 74 or 79; {_FABRIC}",
        _GUIDE,
        UNTIL_REBOOT,
    ),
    22013: _note("NVSwitch minion message without consequence", "none", f"{_GUIDE}; nvtrust #124"),
}


def unknown_sxid(fatal: bool | None) -> Meaning:
    """The line's own word decides; without one it counts as a risk."""
    if fatal:
        return Meaning(
            "not in our table; the driver calls it fatal",
            Severity.CRITICAL,
            Action.REBOOT,
            _DEAD,
            _FABRIC,
            _GUIDE,
            UNTIL_REBOOT,
        )
    return Meaning(
        "not in our table",
        Severity.WARNING,
        Action.WATCH,
        "not known",
        "look the number up in the Fabric Manager User Guide, and add it to `xid.py`",
        _GUIDE,
        DAY,
    )


LINES: dict[str, Meaning] = {
    "gpu-off-bus": _reboot("the GPU has fallen off the bus", "gpud #1209; NVSentinel syslog monitor"),
    "gpu-init-failed": _reboot("the driver could not start the GPU", "NVSentinel #155"),
    "nvlink-rx-detect": Meaning(
        "an NVLink was not detected after training",
        Severity.WARNING,
        Action.REBOOT,
        _RISK,
        "check `nvlink-*` findings; restart the node in a drain window",
        "gpud; NVSentinel #1748",
        UNTIL_REBOOT,
    ),
    "hca-slot-power": Meaning(
        "the slot gives a network card too little power",
        Severity.WARNING,
        Action.REPLACE,
        "the card may be slow or stop",
        "check the slot's power, then the card",
        "NVSentinel NIC monitor",
        UNTIL_REBOOT,
    ),
    "hca-temperature": _watch("a network card is too hot", "check cooling", "NVSentinel NIC monitor"),
    "hca-health": Meaning(
        "a network card reports that its health is compromised",
        Severity.CRITICAL,
        Action.REPLACE,
        "traffic between the nodes stops",
        "restart the node; if it returns, replace the card",
        "NVSentinel NIC monitor",
        UNTIL_REBOOT,
    ),
    "hca-command-timeout": Meaning(
        "a network card does not answer the driver",
        Severity.CRITICAL,
        Action.REBOOT,
        "traffic between the nodes stops",
        "restart the node; if it returns, replace the card",
        "NVSentinel NIC monitor",
        UNTIL_REBOOT,
    ),
    "pcie-fatal": Meaning(
        "fatal PCIe error",
        Severity.CRITICAL,
        Action.REBOOT,
        _DEAD,
        _REBOOT,
        "Linux AER",
        UNTIL_REBOOT,
    ),
    "task-blocked": Meaning(
        "a process that uses the GPU is stuck in the kernel",
        Severity.CRITICAL,
        Action.REBOOT,
        _DEAD,
        "such a process cannot be killed; drain the node and restart it",
        "gpud #117; NVSentinel #1576",
        UNTIL_REBOOT,
    ),
}

_REGISTERS = re.compile(r"\((0x[0-9a-fA-F]+(?:,? *0x[0-9a-fA-F]+)+)\)")


# Worst first.
_REGISTER_1 = (
    ((8, 9, 12, 16, 17, 24, 28), Severity.CRITICAL, Action.REPLACE, "hardware or seating"),
    ((21, 22), Severity.CRITICAL, Action.DRAIN, "marginal signal on the link"),
    ((4, 5), Severity.WARNING, Action.WATCH, "ECC; report it if repeated"),
)


def nvlink_registers(text: str) -> tuple[Severity, Action, str] | None:
    """What the registers of an Xid 74 say; None when the line has none.

    NVIDIA Xid catalogue, workflow of Xid 74; NVSentinel ADR 024. Bits that mean nothing alone: 0, 23, 30 of register 1.
    """
    match = _REGISTERS.search(text)
    if match is None:
        return None
    values = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", match.group(1))]
    first = values[0]
    if len(values) > 3 and values[3] & 1 << 18:
        return Severity.CRITICAL, Action.REBOOT, "register 4 bit 18: reset the whole fabric"
    for bits, severity, action, what in _REGISTER_1:
        if found := _bits(first, bits):
            return severity, action, f"register 1 bits {found}: {what}"
    if not any(values[1:]) and first and not first & ~(1 << 0 | 1 << 23 | 1 << 30):
        return Severity.INFO, Action.NONE, "register 1: only bits that mean nothing alone"
    return None


def _bits(value: int, bits: tuple[int, ...]) -> str:
    return ", ".join(str(bit) for bit in bits if value & 1 << bit)


def meaning(kind: str, code: str, fatal: bool | None = None) -> Meaning:
    if kind == "log":
        return LINES[code]
    number = int(code)
    if kind == "xid":
        return XIDS.get(number, UNKNOWN_XID)
    return SXIDS.get(number) or unknown_sxid(fatal)
