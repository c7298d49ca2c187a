"""The kernel log since a position: Xids, SXids and other lines that mean something, as answers of one probe.

Records are those of /dev/kmsg: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT`. A regular file with such lines works too.
"""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from coderack.health.processes import Step
from coderack.health.readings import Answer, bus_id

MAX_EVENTS = 2000  # of one pass; more are counted, not kept
_MAX_RECORDS = 200_000

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+),?\s*(.*)", re.DOTALL)
# Further lines of one SXid give its data and severity and must not be counted as events.
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), (?!Data\b|Severity\b)(.*)", re.DOTALL)
_OFF_BUS = re.compile(r"fallen off the bus", re.IGNORECASE)
_BUS_ID = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_NVIDIA_GPU = re.compile(r"NVRM: The NVIDIA GPU (\S+)")
# name of the event -> what the line must hold. Sources beside their meaning, in `xid.py`.
_LINES = {
    "nvlink-rx-detect": re.compile(r"knvlinkUpdatePostRxDetectLinkMask"),
    "gpu-init-failed": re.compile(r"NVRM: .*RmInitAdapter failed|NVRM: .*rm_init_adapter failed"),
    "hca-slot-power": re.compile(r"mlx5_core .*[Ii]nsufficient power"),
    "hca-temperature": re.compile(r"mlx5_core .*(?:[Hh]igh temperature|temperature warning)"),
    "hca-health": re.compile(r"mlx5_core .*(?:health compromised|Fatal error.*detected|assert_var)", re.IGNORECASE),
    "hca-command-timeout": re.compile(r"mlx5_core .*(?:timeout\. Will cause a leak|command .*timed? ?out)"),
    "pcie-fatal": re.compile(r"PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)"),
}
_TASK = re.compile(r"task (\S+?):\d+ blocked for more than")


def read(source: Path, after: int, step: Step) -> dict[str, Answer]:
    """Events with a sequence number above `after`.

    Keys: `last` (highest sequence number), `first`, `gap` (records lost before we came), `event.N.KIND` fields.
    """
    step(f"kernel log {source}")
    answers: dict[str, Answer] = {}
    try:
        records = list(_records(source))
    except OSError as error:
        return {"last": Answer(error=os.strerror(error.errno or 0))}
    if records and records[-1][0] < after:
        after = -1  # the numbers began anew: another boot, or another feed
    pending = ""
    events = 0
    for sequence, microseconds, message in records:
        if sequence <= after or not _interesting(message):
            continue
        if match := _NVIDIA_GPU.search(message):
            pending = match.group(1)
        for kind, code, device, text, fatal in _events(message, pending):
            if events < MAX_EVENTS:
                answers |= _event(events, kind, code, device, text, fatal, microseconds)
            events += 1
    answers["events"] = Answer(events)
    answers["last"] = Answer(records[-1][0] if records else after)
    answers["gap"] = Answer(max(0, records[0][0] - after - 1) if records and after >= 0 else 0)
    return answers


def _event(
    number: int, kind: str, code: str, device: str, text: str, fatal: bool | None, microseconds: int
) -> dict[str, Answer]:
    key = f"event.{number}"
    fields: dict[str, int | str] = {
        "kind": kind,
        "code": code,
        "device": device,
        "text": text[:300],
        "microseconds": microseconds,
    }
    if fatal is not None:
        fields["fatal"] = int(fatal)
    return {f"{key}.{name}": Answer(value) for name, value in fields.items()}


def _interesting(message: str) -> bool:
    return any(word in message for word in ("NVRM", "SXid", "mlx5_core", "PCIe Bus Error", "knvlink", "blocked for"))


def _events(message: str, pending: str) -> Iterator[tuple[str, str, str, str, bool | None]]:
    if match := _XID.search(message):
        yield "xid", match.group(2), bus_id(match.group(1)), match.group(3).strip(), None
        return
    if match := _SXID.search(message):
        text = match.group(3).strip()
        word = text.split(",", 1)[0].strip().lower()
        fatal = {"fatal": True, "non-fatal": False}.get(word)
        yield "sxid", match.group(2), bus_id(match.group(1)), text, fatal
        return
    if _OFF_BUS.search(message):
        found = _BUS_ID.search(message)
        device = found.group(0) if found else pending
        yield "log", "gpu-off-bus", bus_id(device) if device else "", message, None
        return
    for name, pattern in _LINES.items():
        if pattern.search(message):
            found = _BUS_ID.search(message)
            yield "log", name, bus_id(found.group(0)) if found else "", message, None
            return
    if (match := _TASK.search(message)) and re.match(r"nv|vllm|VLLM|ray|python|pt_", match.group(1)):
        yield "log", "task-blocked", "", message, None


def _records(source: Path) -> Iterator[tuple[int, int, str]]:
    for raw in _raw(source):
        head, separator, rest = raw.partition(";")
        fields = head.split(",")
        if not separator or len(fields) < 3:
            continue
        try:
            priority, sequence, microseconds = int(fields[0]), int(fields[1]), int(fields[2])
        except ValueError:
            continue
        # Facility 0 is the kernel. A user may write any other, and must not be able to drain a node.
        yield sequence, microseconds, rest.split("\n", 1)[0].replace("\\x0a", "\n") if priority < 8 else ""


def _raw(source: Path) -> Iterator[str]:
    handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if source.is_file():
            with open(handle, encoding="utf-8", errors="replace", closefd=False) as file:
                yield from (line.rstrip("\n") for line in file if not line.startswith(" "))
            return
        for _ in range(_MAX_RECORDS):
            try:
                data = os.read(handle, 8192)
            except BlockingIOError:
                return
            except OSError as error:
                # The kernel overwrote what we were about to read; the next read goes on with what is there.
                if error.errno == errno.EPIPE:
                    continue
                raise
            if not data:
                return
            yield data.decode("utf-8", errors="replace")
    finally:
        os.close(handle)
