"""What an all-reduce test over NCCL printed: its table of bandwidths, and what NCCL's own log says about the way there.

Reads the output of nccl-tests' `all_reduce_perf` (versions with a `#wrong` column, which came in 2022) and of
`ansible/playbooks/files/all_reduce.py`, which prints the same. NCCL writes its log into the same stream when
NCCL_DEBUG=INFO; launchers put a tag in front of every line (`[1,0]<stdout>:`, `0: `). The forms of the log lines are
those of NCCL 2.18 to 2.30 and of aws-ofi-nccl 1.7 to 1.21 (their sources: init.cc, transport/, nccl_ofi_net.cpp).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# A launcher's tag; also in the middle of a row, since ranks write it in several pieces.
_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<std\w+>:?)?")
_SPEED = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)"
_WRONG = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?|N/A)"
_ROW = re.compile(
    r"(\d+)\s+\d+\s+(?:float|half|bfloat16|double|u?int\d+|f8\w*)\s+\w+\s+-?\d+"
    rf"\s+{_SPEED}\s+{_SPEED}\s+{_SPEED}\s+{_WRONG}\s+{_SPEED}\s+{_SPEED}\s+{_SPEED}\s+{_WRONG}\s*$"
)
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]*)\]\s*(.*)"
)
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_AVERAGE = re.compile(rf"Avg bus bandwidth\s*:\s*{_SPEED}")

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$")
_MULTICAST = re.compile(r"(\S+?):\d+:\d+ .*NVLS multicast support is (not )?available on dev (\d+)")
_CHANNELS = re.compile(r"(\d+) nvls channels")
_ALGORITHM = re.compile(r"(?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto")
_HCAS = re.compile(r"NET/IB : Using (\[.+)")
_HCA = re.compile(r"\[\d+\]([^\s:\[\]]+):\d+(?::\d*)*/(\w+)")
_CHANNEL = re.compile(r"\[(?:send|receive)\] via NET/(.+?)/\d+(?:\(\d+\))?(\S*)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,]+)")
_NICS = re.compile(r"NET/OFI Selected [Pp]rovider is .*\(found (\d+) nics\)")
_OVERRIDE = re.compile(r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?\s*$")
_WARNING = re.compile(r"NCCL WARN (.+?)\s*$")

# Before version 2.27 the log has the number (NCCL, nccl_common.h).
_ALGORITHMS = {"0": "TREE", "1": "RING", "2": "COLLNET_DIRECT", "3": "COLLNET_CHAIN", "4": "NVLS", "5": "NVLS_TREE"}


@dataclass(frozen=True)
class Row:
    """One size of the table. Bandwidths in GB/s; `wrong` is the number of wrong elements, None where nobody looked."""

    size: int
    out_of_place: float
    in_place: float
    wrong: int | None

    @property
    def busbw(self) -> float:
        """The slower of the two ways; a serving engine takes either."""
        return min(self.out_of_place, self.in_place)


@dataclass(frozen=True)
class Device:
    """The GPU of one rank."""

    rank: int
    host: str
    index: int
    bus_id: str
    model: str


@dataclass(frozen=True)
class Log:
    """What NCCL said. Everything is empty where NCCL_DEBUG was not INFO."""

    version: str | None
    networks: frozenset[str]  # as "Using network" names them: IB, AWS Libfabric, Socket, ...
    multicast: Mapping[tuple[str, int], bool]  # (host, device) -> whether NVLS multicast is available
    nvls_channels: frozenset[int]
    algorithms: Mapping[int, frozenset[str]]  # bytes -> the algorithms that an all-reduce of this size took
    hcas: Mapping[str, str]  # InfiniBand device -> link layer, IB or RoCE
    channels: int  # connections between nodes ...
    direct_channels: int  # ... and how many of them are GPU Direct RDMA
    ofi_providers: frozenset[str]
    ofi_nics: frozenset[int]
    overrides: Mapping[str, str]  # NCCL_* that the environment set
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A whole output. `complete` is false where the closing lines are missing: it crashed, hung, or was cut off."""

    rows: tuple[Row, ...]
    devices: tuple[Device, ...]
    complete: bool
    out_of_bounds: int | None
    average: float | None
    log: Log
    last_lines: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({device.host for device in self.devices}))


def parse(text: str) -> Run:
    """Read everything of an output that is known; never fails, since output of a crashed test is input too."""
    lines = text.splitlines()
    bounds = _last(_BOUNDS, lines)
    average = _last(_AVERAGE, lines)
    return Run(
        rows=tuple(row for line in lines if (row := _row(line))),
        devices=_devices(lines),
        complete=bounds is not None and average is not None,
        out_of_bounds=int(bounds.group(1)) if bounds else None,
        average=float(average.group(1)) if average else None,
        log=_log(lines),
        last_lines=tuple(line.strip() for line in lines if line.strip())[-3:],
    )


def _row(line: str) -> Row | None:
    if "NCCL" in line:
        return None
    # A device of the log would look like a tag too, so only the table is rid of them.
    found = _ROW.search(_TAG.sub(" ", line))
    if found is None:
        return None
    size, _, _, out_of_place, out_wrong, _, _, in_place, in_wrong = found.groups()
    wrong = None if "N/A" in (out_wrong, in_wrong) else int(float(out_wrong) + float(in_wrong))
    return Row(int(size), float(out_of_place), float(in_place), wrong)


def _devices(lines: Iterable[str]) -> tuple[Device, ...]:
    found = {}
    for line in lines:
        if match := _DEVICE.search(line):
            rank, host, index, bus_id, model = match.groups()
            found[int(rank)] = Device(int(rank), host, int(index), bus_id, model.strip())
    return tuple(found[rank] for rank in sorted(found))


def _log(lines: Iterable[str]) -> Log:
    said = [line for line in lines if "NCCL" in line or "NET/" in line]
    channels = _all(_CHANNEL, said)
    algorithms: dict[int, set[str]] = {}
    for function, size, algorithm in _all(_ALGORITHM, said):
        if function in (None, "", "AllReduce"):
            algorithms.setdefault(int(size), set()).add(_ALGORITHMS.get(algorithm, algorithm.upper()))
    multicast: dict[tuple[str, int], bool] = {}
    for host, absent, device in _all(_MULTICAST, said):
        # One rank that has to do without is enough: a group can only do what all of its members can.
        here = (_TAG.sub("", host), int(device))
        multicast[here] = multicast.get(here, True) and not absent
    versions = _all(_VERSION, said)
    return Log(
        version=versions[0][0] if versions else None,
        networks=frozenset(name for (name,) in _all(_NETWORK, said)),
        multicast=multicast,
        nvls_channels=frozenset(int(count) for (count,) in _all(_CHANNELS, said)),
        algorithms={size: frozenset(names) for size, names in algorithms.items()},
        hcas={name: layer for (using,) in _all(_HCAS, said) for name, layer in _HCA.findall(using)},
        channels=len(channels),
        direct_channels=sum("/GDRDMA" in rest for _, rest in channels),
        ofi_providers=frozenset(name for (name,) in _all(_PROVIDER, said)),
        ofi_nics=frozenset(int(count) for (count,) in _all(_NICS, said)),
        overrides={name: value for name, value in _all(_OVERRIDE, said)},  # noqa: C416 - mypy wants pairs
        warnings=tuple(dict.fromkeys(text for (text,) in _all(_WARNING, said))),
    )


def _all(pattern: re.Pattern[str], lines: Iterable[str]) -> list[tuple[str, ...]]:
    return [tuple(match.groups()) for line in lines for match in pattern.finditer(line)]


def _last(pattern: re.Pattern[str], lines: Iterable[str]) -> re.Match[str] | None:
    found = None
    for line in lines:
        found = pattern.search(line) or found
    return found
