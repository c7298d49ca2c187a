#!/usr/bin/env python3
"""Make local NVMe disks the store's one file system: at boot, since an instance store is empty after a stop and start.

Disks are found by id, never by the kernel's names, which change. Disks that carry nothing become a RAID0 (one alone: no
RAID) with a file system of our label; disks that carry our array get it assembled, and nothing on it is touched. What
carries any other signature, is partitioned, mounted, or held by anything else, is refused, and nothing is changed.

Exit codes: 0 the store's device is ready, 1 refused, 2 bad usage, 3 could not find out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INSTANCE_STORE = "nvme-Amazon_EC2_NVMe_Instance_Storage_"
ARRAY = "coderack-store"
LABEL = "coderack"
PATHS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
_PARTITION = re.compile(r"-part\d+$")
_CHUNK_KB = 512


class Refused(Exception):
    """The disks are not what they should be: exit code 1."""


class NotKnown(Exception):
    """A program is missing or failed: exit code 3."""


@dataclass(frozen=True)
class Signature:
    """One mark that libblkid knows, as `wipefs` lists it."""

    kind: str
    uuid: str
    label: str


@dataclass(frozen=True)
class Disk:
    """A disk: its name by id, the device behind it, what it carries, which devices are built on it."""

    id: str
    device: Path
    signatures: tuple[Signature, ...]
    holders: tuple[str, ...]

    @property
    def blank(self) -> bool:
        return not self.signatures


@dataclass(frozen=True)
class Plan:
    """Commands that are still to run, in order, and the device that is to carry the file system."""

    commands: tuple[tuple[str, ...], ...]
    device: Path
    # Whether the device has to be looked at once more after them: what an array carries is seen only when it runs.
    look_again: bool


@dataclass(frozen=True)
class Host:
    """Where this machine's devices are seen; folders of a test's own otherwise."""

    dev: Path
    sys: Path
    proc: Path

    @property
    def real(self) -> bool:
        return self.dev == Path("/dev")


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    host = Host(options.dev, options.sys, options.proc)
    try:
        ready = settle(host, options)
    except Refused as problem:
        print(f"store: refused, nothing was changed: {problem}", file=sys.stderr)
        return 1
    except (NotKnown, OSError) as problem:
        print(f"store: {problem}", file=sys.stderr)
        return 3
    print(ready)
    return 0


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--instance-store", action="store_true", help="all EC2 instance store disks")
    which.add_argument("--device", action="append", metavar="ID", help="a name in /dev/disk/by-id; repeatable")
    parser.add_argument("--count", type=int, required=True, help="how many disks there have to be")
    parser.add_argument("--filesystem", choices=("xfs", "ext4"), default="xfs")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--dev", type=Path, default=Path("/dev"))
    parser.add_argument("--sys", type=Path, default=Path("/sys"))
    parser.add_argument("--proc", type=Path, default=Path("/proc"))
    options = parser.parse_args(words)
    if options.count < 1:
        parser.error(f"--count is {options.count}; wanted: at least 1")
    for name in options.device or ():
        if "/" in name or not name:
            parser.error(f"--device is {name!r}; wanted: a name as in /dev/disk/by-id, without the folder")
    return options


def settle(host: Host, options: argparse.Namespace) -> str:
    """Bring the store's device about; returns a line that says what it is."""
    names = instance_store(host) if options.instance_store else list(options.device)
    disks = look(host, names)
    if len(disks) != options.count:
        seen = ", ".join(disk.id for disk in disks) or "none"
        raise Refused(
            f"{len(disks)} disks are there ({seen}), wanted {options.count}; a disk that is missing would make a "
            "smaller store. Correct model_store_device_count, or have the machine replaced"
        )
    plan = planned(host, disks, options.filesystem)
    carry_out(plan.commands, options.dry_run)
    if plan.look_again and options.dry_run:
        return f"store: would assemble {plan.device} and look at its file system"
    if plan.look_again:
        last = on_array(signatures(plan.device), plan.device, options.filesystem)
        carry_out(last, options.dry_run)
    if not options.dry_run and host.real:
        # The mount unit waits for the link by label, which udev makes.
        run(("udevadm", "settle", "--timeout=60"))
    would = "would be made of" if options.dry_run and plan.commands else "is"
    return f"store: {plan.device} {would} {len(disks)} disk{'s' if len(disks) > 1 else ''} with {options.filesystem}"


def instance_store(host: Host) -> list[str]:
    folder = host.dev / "disk/by-id"
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if name.startswith(INSTANCE_STORE) and not _PARTITION.search(name)]


def look(host: Host, names: Sequence[str]) -> list[Disk]:
    """The disks behind the names, each once. Raises Refused for what is none, or is used by somebody else."""
    found: dict[Path, Disk] = {}
    for name in names:
        device = (host.dev / "disk/by-id" / name).resolve()
        if not device.exists():
            raise Refused(f"{name} is not there; wanted: a disk in {host.dev}/disk/by-id. Is it attached?")
        if host.real and not stat.S_ISBLK(device.stat().st_mode):
            raise Refused(f"{name} leads to {device}, which is no block device")
        if device in found:
            continue
        # Before anything reads the disk: a mounted one is somebody's, whatever it carries.
        refuse_used(host, name, device)
        found[device] = Disk(name, device, signatures(device), holders(host, device))
    return list(found.values())


def refuse_used(host: Host, name: str, device: Path) -> None:
    block = host.sys / "class/block" / device.name
    if not block.is_dir():
        raise NotKnown(f"{name}: {block} is not there, so nobody can say whether {device} is in use")
    if (block / "partition").exists():
        raise Refused(f"{name} is a partition; wanted: a whole disk")
    if parts := sorted(entry.parent.name for entry in block.glob("*/partition")):
        raise Refused(f"{name} has partitions ({', '.join(parts)}); they are somebody's. If not: wipefs --all {device}")
    if (block / "ro").is_file() and (block / "ro").read_text().strip() == "1":
        raise Refused(f"{name} is read-only; wanted: a disk to write to")
    swaps = (host.proc / "swaps").read_text().split() if (host.proc / "swaps").is_file() else []
    if str(device) in swaps:
        raise Refused(f"{name} is used for swapping")


def mounted_at(host: Host, device: Path) -> list[str]:
    number = (host.sys / "class/block" / device.name / "dev").read_text().strip()
    lines = (host.proc / "self/mountinfo").read_text().splitlines()
    return [fields[4] for line in lines if len(fields := line.split()) > 4 and fields[2] == number]


def holders(host: Host, device: Path) -> tuple[str, ...]:
    folder = host.sys / "class/block" / device.name / "holders"
    return tuple(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else ()


def signatures(device: Path) -> tuple[Signature, ...]:
    """All marks on the device, not only the strongest: a disk with two is nobody's to guess about."""
    said = run(("wipefs", "--no-act", "--json", str(device)))
    try:
        listed: list[dict[str, Any]] = json.loads(said)["signatures"] if said.strip() else []
        return tuple(Signature(str(s["type"]), str(s.get("uuid") or ""), str(s.get("label") or "")) for s in listed)
    except (ValueError, LookupError, TypeError) as error:
        raise NotKnown(f"wipefs lists {device} in a way that is not known here: {error}") from error


def planned(host: Host, disks: Sequence[Disk], filesystem: str) -> Plan:
    """What has to be done. Raises Refused."""
    for disk in disks:
        if not disk.blank and not is_ours(disk, len(disks), filesystem):
            carried = ", ".join(f"{one.kind} {one.label}".strip() for one in disk.signatures)
            raise Refused(
                f"{disk.id} ({disk.device}) carries {carried}, which is not ours; wanted: an empty disk. "
                f"If nobody needs it: wipefs --all {disk.device}"
            )
        strangers = [name for name in disk.holders if not name.startswith("md")]
        if strangers or (disk.holders and disk.blank):
            raise Refused(f"{disk.id} ({disk.device}) is held by {', '.join(disk.holders)}; wanted: a disk nobody uses")
        if (disk.blank or len(disks) > 1) and (where := mounted_at(host, disk.device)):
            raise Refused(f"{disk.id} ({disk.device}) is mounted at {', '.join(where)}")
    if len(disks) == 1:
        only = disks[0]
        return Plan(make_filesystem(only.device, filesystem) if only.blank else (), only.device, False)
    blank = [disk for disk in disks if disk.blank]
    if len(blank) == len(disks):
        array = host.dev / "md" / ARRAY
        return Plan((create(array, disks), *make_filesystem(array, filesystem)), array, False)
    if blank:
        ours = [disk for disk in disks if not disk.blank]
        raise Refused(
            f"{len(ours)} of {len(disks)} disks carry a part of our array, not {', '.join(disk.id for disk in blank)}: "
            "what was striped over them is lost. To begin anew: "
            f"mdadm --stop {host.dev}/md/{ARRAY}; wipefs --all {' '.join(str(disk.device) for disk in ours)}"
        )
    return assembled(host, disks, filesystem)


def assembled(host: Host, disks: Sequence[Disk], filesystem: str) -> Plan:
    identities = {disk.signatures[0].uuid for disk in disks}
    if len(identities) != 1:
        raise Refused(
            f"the disks carry parts of {len(identities)} arrays of ours, wanted one; they come from different machines"
        )
    active = {name for disk in disks for name in disk.holders}
    if not active:
        array = host.dev / "md" / ARRAY
        command = (
            "mdadm",
            "--assemble",
            str(array),
            f"--uuid={identities.pop()}",
            *(str(disk.device) for disk in disks),
        )
        return Plan((command,), array, True)
    if len(active) > 1 or any(not disk.holders for disk in disks):
        raise Refused(f"only some of the disks are in {', '.join(sorted(active))}; wanted: all, in one array")
    array = host.dev / active.pop()
    return Plan(on_array(signatures(array), array, filesystem), array, False)


def is_ours(disk: Disk, count: int, filesystem: str) -> bool:
    if len(disk.signatures) != 1:
        return False
    mark = disk.signatures[0]
    if count == 1:
        return mark.kind == filesystem and mark.label == LABEL
    return mark.kind == "linux_raid_member" and mark.label.split(":")[-1] == ARRAY and bool(mark.uuid)


def on_array(carried: tuple[Signature, ...], device: Path, filesystem: str) -> tuple[tuple[str, ...], ...]:
    """What the array still lacks: a file system, if somebody pulled the plug between its making and that."""
    if not carried:
        return make_filesystem(device, filesystem)
    if [(one.kind, one.label) for one in carried] == [(filesystem, LABEL)]:
        return ()
    seen = ", ".join(f"{one.kind} {one.label}".strip() for one in carried)
    raise Refused(
        f"{device} is our array and carries {seen}, wanted {filesystem} {LABEL}; correct model_store_filesystem"
    )


def create(array: Path, disks: Sequence[Disk]) -> tuple[str, ...]:
    return (
        "mdadm", "--create", str(array), "--run", "--metadata=1.2", "--level=0", f"--raid-devices={len(disks)}",
        # Of no host, so that it has the same name after the machine got a new one.
        f"--chunk={_CHUNK_KB}", f"--name={ARRAY}", "--homehost=any", *(str(disk.device) for disk in disks),
    )  # fmt: skip


def make_filesystem(device: Path, filesystem: str) -> tuple[tuple[str, ...], ...]:
    # Neither is told to overwrite: they look for signatures themselves, and refuse. Nothing is discarded, which takes
    # minutes on 30 TB and is of no use on disks that come empty.
    if filesystem == "xfs":
        return (("mkfs.xfs", "-q", "-K", "-L", LABEL, str(device)),)
    return (("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", "-L", LABEL, str(device)),)


def carry_out(commands: Sequence[tuple[str, ...]], dry_run: bool) -> None:
    for command in commands:
        print(f"{'would run' if dry_run else 'running'}: {' '.join(command)}")
        if not dry_run:
            run(command)


def run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{PATHS}", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
    except FileNotFoundError:
        raise NotKnown(f"{command[0]} is not installed; the role installs it (packages mdadm, xfsprogs)") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-500:]
        raise NotKnown(f"{' '.join(command)} ended with {done.returncode}: {said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
