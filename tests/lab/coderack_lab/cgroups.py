"""The lab's own branch of the host's cgroup tree.

Two uses. Each node needs a cgroup of its own: without one, several systemd instances would manage the same tree and
fail in odd ways. And every process that a lab command starts is put into `work`, so that `lab-down` finds what a
killed command left, whatever it forked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coderack_lab.settings import CGROUP


def hierarchies() -> list[Path]:
    """Where the host mounts cgroup v2, and v1's `name=systemd` on hosts with both (hybrid)."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mountpoint, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(mountpoint))
    return found


def create(name: str) -> list[Path]:
    """Make cgroup `coderack-lab/<name>` in every hierarchy and return its folders."""
    folders = [root / CGROUP / name for root in hierarchies()]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def enter(folders: list[Path]) -> None:
    """Move the calling process into a cgroup (used between fork and exec as well)."""
    for folder in folders:
        (folder / "cgroup.procs").write_text(str(os.getpid()))


def entrance(name: str) -> Callable[[], None]:
    """Make a cgroup and return what a child calls between fork and exec to be in it from its first instruction."""
    folders = create(name)
    return lambda: enter(folders)


def _branches(name: str) -> Iterator[Path]:
    for root in hierarchies():
        top = root / CGROUP / name if name else root / CGROUP
        if top.is_dir():
            # Deepest first: a cgroup can only be removed when it has no children.
            yield from sorted((p for p in [top, *top.rglob("*")] if p.is_dir()), key=lambda p: -len(p.parts))


def processes(name: str = "") -> set[int]:
    """Ids of all processes below `coderack-lab/<name>`, or below the whole branch."""
    found: set[int] = set()
    for folder in _branches(name):
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
    return found


def own_lineage() -> set[int]:
    """This process and its ancestors, which a clean-up must never kill."""
    line, pid = set(), os.getpid()
    while pid > 1:
        line.add(pid)
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            break
        pid = int(next(row.split()[1] for row in status.splitlines() if row.startswith("PPid:")))
    return line


def kill(name: str = "", *, patience: float = 10.0) -> int:
    """End every process below a branch by id: SIGTERM, then SIGKILL after `patience` seconds. Returns how many."""
    spared = own_lineage()
    first = processes(name) - spared
    for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + wait
        for pid in processes(name) - spared:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while processes(name) - spared and time.monotonic() < deadline:
            time.sleep(0.1)
    return len(first)


def remove(name: str = "") -> None:
    """Remove a branch that holds no process any more."""
    for folder in _branches(name):
        with contextlib.suppress(OSError):
            folder.rmdir()


def leftovers() -> list[str]:
    return [str(folder) for folder in _branches("")]
