#!/usr/bin/env python3
"""What the lab needs of its host, checked before anything is touched.

Standard library only, and written so that an old Python can at least say that it is too old: it runs before any set-up.
Exit codes: 0 everything is there (or apt can install it), 1 something is missing, 2 bad usage.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator  # noqa: UP035  collections.abc's cannot be subscripted before Python 3.9

PACKAGES = {  # program -> Debian and Ubuntu package
    "curl": "curl",
    "debootstrap": "debootstrap",
    "gcc": "gcc",
    "git": "git",
    "ip": "iproute2",
    "jq": "jq",
    "nft": "nftables",
    "nsenter": "util-linux",
    "shellcheck": "shellcheck",
    "socat": "socat",
    "ssh": "openssh-client",
    "sysctl": "procps",
    "systemd-nspawn": "systemd-container",
    "unzip": "unzip",
}
FAST = ("gcc", "git", "shellcheck", "unzip")  # what lint and unit tests need of them
PORTS = {  # variable -> default, purpose
    "LAB_AWS_PORT": (5601, "the AWS emulator"),
    "LAB_GATEWAY_PORT": (18443, "the gateway"),
    "LAB_PROMETHEUS_PORT": (19090, "Prometheus"),
    "LAB_ALERTMANAGER_PORT": (19093, "Alertmanager"),
}
SYSTEM_MIN = {"debian": 12.0, "ubuntu": 22.04}
TERRAFORM_MIN = (1, 11)
PYTHON_MIN = (3, 11)
DISK_COLD_GB, DISK_WARM_GB, MEMORY_GB = 15, 5, 8
CACHE = Path(os.environ.get("CODERACK_LAB_CACHE", "/var/cache/coderack-lab"))
VENV_READY = Path(__file__).resolve().parents[3] / ".build" / "venv" / "ready"
C_HEADERS = Path("/usr/include/stdio.h")  # gcc only recommends libc6-dev
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LAB_NETWORK = ipaddress.ip_network("10.77.0.0/16")
LAB_STATUS = Path("/run/coderack-lab/status.json")

Problems = Iterator[str]


def read(path: str) -> str:
    """Text of a file, empty when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def output(*command: str, timeout: float = 30) -> str | None:
    """Standard output of a program, or None when it fails, hangs or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def host_system() -> tuple[str, float]:
    """Name and version of the host's distribution, such as ("debian", 12.0); version 0 when it has none."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read("/etc/os-release"), re.MULTILINE))
    try:
        return release.get("ID", "unknown"), float(release.get("VERSION_ID", "0"))
    except ValueError:
        return release.get("ID", "unknown"), 0.0


def check_root() -> Problems:
    if os.geteuid() != 0:
        yield f"not root (user id {os.geteuid()}); wanted: root, since the lab boots machines. Run it with sudo."


def check_system() -> Problems:
    name, version = host_system()
    if version < SYSTEM_MIN.get(name, float("inf")):
        yield f"host system is {name} {version:g}; wanted: Debian 12 or newer, or Ubuntu 22.04 or newer."
    if os.uname().machine != "x86_64":
        yield f"machine is {os.uname().machine}; wanted: x86_64 (the lab's vLLM build is for it)."
    if "overlay" not in read("/proc/filesystems") and output("modprobe", "overlay") is None:
        yield "the kernel has no overlay file system; wanted: overlayfs, for the nodes' disks."
    if "cgroup2" not in read("/proc/self/mounts"):
        yield "no cgroup v2 hierarchy is mounted; wanted: one, at /sys/fs/cgroup or /sys/fs/cgroup/unified."
    if output("unshare", "--net", "true") is None:
        yield "network namespaces cannot be made here (`unshare --net` fails); run on a host or VM that allows them."


def check_python() -> Problems:
    if sys.version_info < PYTHON_MIN:
        version = sys.version.split()[0]
        yield (
            f"Python is {version} ({sys.executable}); wanted: 3.11 or newer. Install one (Ubuntu 22.04: "
            "apt-get install python3.11 python3.11-venv) and run again with PYTHON=python3.11."
        )


def check_terraform() -> Problems:
    program = os.environ.get("TERRAFORM") or "terraform"
    if program == "none":
        return
    if shutil.which(program) is None:
        yield f"Terraform is not on PATH (looked for `{program}`); wanted: 1.11 or newer, from HashiCorp's site."
        return
    try:
        version = json.loads(output(program, "version", "-json") or "")["terraform_version"]
        number = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    except (ValueError, KeyError, TypeError):
        yield f"could not find out Terraform's version (`{program} version -json` gave none); reinstall it."
        return
    if number < TERRAFORM_MIN:
        yield f"Terraform is {version}; wanted: 1.11 or newer. Install it from HashiCorp's site."


def cached_kinds() -> set[str]:
    """Which whole entries the cache holds: of base, vllm, models."""
    names = [path.name for path in CACHE.iterdir()] if CACHE.is_dir() else []
    return {name.split("-")[0] for name in names if ".partial" not in name}


def check_room() -> Problems:
    wanted = DISK_WARM_GB if "vllm" in cached_kinds() else DISK_COLD_GB
    folder = next(path for path in (CACHE, *CACHE.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free / 1e9
    if free < wanted:
        yield (
            f"{free:.1f} GB free on the disk of {CACHE}; wanted: {wanted} GB. Free some, or set CODERACK_LAB_CACHE "
            "to a folder on a larger disk."
        )
    memory = {k: int(v) / 1e6 for k, v in re.findall(r"^(\w+):\s+(\d+) kB$", read("/proc/meminfo"), re.MULTILINE)}
    total, available = memory.get("MemTotal", 0.0), memory.get("MemAvailable", 0.0)
    if total < MEMORY_GB * 0.95:  # a machine sold as 8 GB shows a little less
        yield f"the machine has {total:.1f} GB of memory; wanted: {MEMORY_GB} GB."
    elif not LAB_STATUS.exists() and available < MEMORY_GB * 0.75:
        yield f"{available:.1f} GB of memory are available; wanted: {MEMORY_GB * 0.75:g} GB. Stop something."


def check_ports() -> Problems:
    if LAB_STATUS.exists():
        return  # the ports are the lab's own
    for variable, (default, purpose) in PORTS.items():
        value = os.environ.get(variable) or str(default)
        if not value.isdigit() or not 1 <= int(value) <= 65535:
            yield f"{variable} is {value!r}; wanted: a port number, 1 to 65535."
            continue
        port = int(value)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                yield (
                    f"port 127.0.0.1:{port} for {purpose} cannot be had ({error.strerror}); wanted: free. Stop who "
                    f"holds it, or choose another: {variable}=<port>."
                )


def check_network() -> Problems:
    """The nodes' addresses must not be somebody else's on this host."""
    if LAB_STATUS.exists():
        return
    for line in (output("ip", "-4", "route", "show") or "").splitlines():
        target = line.split()[0]
        if not target[0].isdigit():  # default, unreachable, …
            continue
        if ipaddress.ip_network(target, strict=False).overlaps(LAB_NETWORK):
            yield f"this host has a route to {target}; wanted: none that overlaps {LAB_NETWORK}, the lab's network."


def check_cache() -> Problems:
    """A cache entry under its final name without its stamp was cut short and cannot be trusted."""
    for entry in sorted(CACHE.iterdir()) if CACHE.is_dir() else ():
        whole = (entry / ".coderack-cache.json").is_file()
        if entry.name.split("-")[0] in {"base", "vllm", "models"} and ".partial" not in entry.name and not whole:
            yield f"half-built cache entry {entry} (no stamp); wanted: a whole one. `make lab-clean` removes the cache."


def check_mirrors() -> Problems:
    """Whether apt's archive and pip's index answer; asked only while something still has to be downloaded."""
    if VENV_READY.exists() and {"base", "vllm", "models"} <= cached_kinds():
        return
    patience = ["-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=0", "-o", "APT::Update::Error-Mode=any"]
    with tempfile.TemporaryDirectory() as folder:
        lists = ["-o", f"Dir::State::Lists={folder}"]
        if output("apt-get", "-q", *patience, *lists, "update", timeout=90) is None:
            yield (
                "apt's package mirror does not answer (`apt-get update` fails); wanted: the one named in /etc/apt. "
                "Check network and proxy."
            )
        pip = [sys.executable, "-m", "pip"]
        quick = ["-q", "--no-deps", "--no-cache-dir", "--retries", "0", "--timeout", "10", "-d", folder]
        # Debian's Python may come without pip; the environment made later brings its own.
        if output(*pip, "--version") and output(*pip, "download", *quick, "httpx-sse==0.4.3", timeout=60) is None:
            yield (
                "pip's package index does not answer (`pip download` fails); wanted: the one that `pip config list` "
                "names, or the default. Check network and proxy."
            )


def missing_packages(purpose: str) -> list[str]:
    programs = FAST if purpose == "fast" else tuple(PACKAGES)
    wanted = {PACKAGES[program] for program in programs if shutil.which(program) is None}
    if output(sys.executable, "-c", "import ensurepip, venv") is None:
        wanted.add(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")
    if not C_HEADERS.exists():
        wanted.add("libc6-dev")
    if purpose != "fast" and not KEYRING.exists():
        wanted.add("debian-archive-keyring")
    return sorted(wanted)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog="example: preflight.py --for demo"
    )
    parser.add_argument(
        "--for", dest="purpose", choices=["demo", "fast", "terraform"], default="demo", help="what is to run"
    )
    parser.add_argument(
        "--list-packages", action="store_true", help="print the Debian packages to install, nothing else"
    )
    options = parser.parse_args()
    if options.list_packages:
        print(" ".join(missing_packages(options.purpose)))
        return 0
    checks = [
        check_root,
        check_python,
        check_system,
        check_terraform,
        check_room,
        check_ports,
        check_network,
        check_cache,
    ]
    if options.purpose == "terraform":
        checks = [check_terraform]
    problems = [problem for check in checks for problem in check()]
    if not problems and options.purpose == "demo":
        problems = list(check_mirrors())
    for problem in problems:
        print(f"preflight: {problem}", file=sys.stderr)
    if problems:
        print("preflight: nothing was changed.", file=sys.stderr)
        return 1
    if options.purpose == "demo":
        missing = missing_packages(options.purpose)
        print("preflight: this host can run it" + (f"; apt will install: {' '.join(missing)}" if missing else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
