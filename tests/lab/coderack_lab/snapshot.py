"""A plain list of what a lab could leave on a host, to be taken before and after and compared."""

from __future__ import annotations

import json
import re
from pathlib import Path

from coderack_lab import cgroups
from coderack_lab import settings as s
from coderack_lab.shell import output

_FIRST, _KINDS = Path("/proc/1/ns"), ("mnt", "net", "pid")
_OURS = re.compile(r"coderack|nspawn|debootstrap|ansible|molecule|terraform|10\.77\.")


def take() -> list[str]:
    """Mounts, interfaces, routes, namespaces, cgroups, nft tables, folders and processes, sorted, without ids."""
    rows = [f"mount {line.split()[1]} {line.split()[2]}" for line in Path("/proc/self/mounts").read_text().splitlines()]
    rows += [f"interface {link['ifname']}" for link in json.loads(output(["ip", "-json", "link", "show"]) or "[]")]
    rows += [f"route {line.strip()}" for line in output(["ip", "route", "show"]).splitlines()]
    netns = Path("/run/netns")
    rows += [f"namespace {path.name}" for path in netns.glob("*")]
    for root in cgroups.hierarchies():
        rows += [f"cgroup {path}" for path in root.glob("*") if path.is_dir()]
    rows += [f"nft {line}" for line in output(["nft", "list", "tables"]).splitlines()]
    rows.append(f"ip_forward {Path('/proc/sys/net/ipv4/ip_forward').read_text().strip()}")
    rows += [f"folder {path}" for path in (s.RUN, s.STATE, s.LOCK, Path("/run/systemd/nspawn")) if path.exists()]
    rows += _processes()
    return sorted(rows)


def _processes() -> list[str]:
    """Processes a lab could have started: by name, or because they live in another namespace than the host's first."""
    spared, rows = cgroups.own_lineage(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            elsewhere = any((folder / "ns" / kind).readlink() != (_FIRST / kind).readlink() for kind in _KINDS)
        except OSError:
            continue
        if command and int(folder.name) not in spared and (elsewhere or _OURS.search(command)):
            rows.append(f"process {command[:120]}")
    return rows
