"""Running one command in a tree, without booting it: to finish the base image and to build what the nodes are given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from coderack_lab import cgroups, network
from coderack_lab import settings as s
from coderack_lab.shell import run


def run_in(
    root: Path,
    command: Sequence[str],
    *,
    log: Path,
    writable: bool = False,
    binds: Mapping[Path, str] | None = None,
    read_only_binds: Mapping[Path, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run `command` in `root` with the host's network; unless `writable`, changes to the tree are thrown away."""
    s.RUN.mkdir(parents=True, exist_ok=True)
    resolv = s.RUN / "resolv.conf"
    resolv.write_text(network.nameservers())
    arguments = [
        "systemd-nspawn", "--quiet", "-D", str(root), "-M", "lab-build", "--register=no", "--keep-unit", "--pipe",
        "--resolv-conf=off", "--link-journal=no", "--timezone=off", f"--bind-ro={resolv}:/etc/resolv.conf",
        "--setenv=DEBIAN_FRONTEND=noninteractive",
    ]  # fmt: skip
    if not writable:
        arguments.append("--volatile=overlay")
    arguments += [f"--bind={source}:{target}" for source, target in (binds or {}).items()]
    arguments += [f"--bind-ro={source}:{target}" for source, target in (read_only_binds or {}).items()]
    arguments += [f"--setenv={name}={value}" for name, value in (env or {}).items()]
    run(
        # A mount namespace of its own: whatever nspawn mounts on the host side is gone with it, also after a kill.
        ["unshare", "--mount", "--propagation", "slave", "--", *arguments, *command],
        log=log,
        env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        cgroup=cgroups.entrance("build"),
    )


def pip_configuration() -> tuple[dict[Path, str], dict[str, str]]:
    """What pip needs inside a tree to see the same indexes as on the host: files to bind and variables to set.

    Configuration files may name local wheel folders and indexes; those are bound to the same place.
    """
    binds: dict[Path, str] = {}
    home = Path(os.environ.get("HOME", "/root"))
    files = [
        Path("/etc/pip.conf"),
        *Path("/etc/xdg/pip").glob("*"),
        home / ".pip/pip.conf",
        home / ".config/pip/pip.conf",
    ]
    variables = {k: v for k, v in os.environ.items() if k.startswith("PIP_") and k != "PIP_REQUIRE_VIRTUALENV"}
    words: list[str] = [word for value in variables.values() for word in value.split()]
    for file in files:
        if file.exists():
            text = file.read_text()
            words += text.replace("=", " ").split()
            binds[file] = str(file) if not file.is_relative_to(home) else f"/root/{file.relative_to(home)}"
    for word in words:
        local = Path(word.removeprefix("file://"))
        if word.startswith("file://"):
            local = local.parent  # the pages of an index link to files beside it
        if local.is_absolute() and local.exists() and local != Path("/"):
            binds.setdefault(local, str(local))
    return binds, variables
