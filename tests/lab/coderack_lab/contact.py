"""How the lab's commands, its supervisor and its nodes find each other: status file, requests, SSH options."""

from __future__ import annotations

import json
from pathlib import Path

from coderack_lab import settings as s
from coderack_lab.node import NodeSpec
from coderack_lab.shell import output

STATUS_FILE = s.RUN / "status.json"
_SCRATCH = s.RUN / "scratch"


def scratch_requests() -> dict[str, NodeSpec]:
    """Machines that a test asked for by a file, beside the cloud's instances (`scratch up`)."""
    wanted = {}
    for file in sorted(_SCRATCH.glob("*.json")):
        request = json.loads(file.read_text())
        wanted[request["name"]] = NodeSpec(**request)
    return wanted


def forget_host_key(address: str) -> None:
    """Drop a machine's SSH host key; it is learnt anew at the next contact."""
    if s.KNOWN_HOSTS.exists():
        output(["ssh-keygen", "-q", "-f", str(s.KNOWN_HOSTS), "-R", address])
        s.KNOWN_HOSTS.with_suffix(".old").unlink(missing_ok=True)


def ssh_options() -> list[str]:
    """How the lab's own commands reach a node: the lab's key, through the lab's namespace.

    They are there before anybody can pin a key (they find out that a node has booted), and reach machines of tests that
    have no console. So they learn a key at the first contact and forget it with the machine's disk, in a file of their
    own; what configures the nodes goes by inventories/lab/known_hosts.
    """
    return [
        "-F", "none", "-i", str(s.SSH_KEY), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
        "-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={s.KNOWN_HOSTS}",
        "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=10",
        "-o", f"ProxyCommand=nsenter --net={s.NETNS_FILE} socat - TCP:%h:%p",
    ]  # fmt: skip


def read_status() -> dict[str, object]:
    """What the supervisor wrote last; empty when there is none."""
    try:
        status = json.loads(STATUS_FILE.read_text())
    except FileNotFoundError:
        return {}
    return dict(status)


def is_alive(pid: int) -> bool:
    """Whether that process is still this supervisor (ids are used again)."""
    try:
        return b"coderack_lab.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def request_scratch(spec: NodeSpec) -> None:
    _SCRATCH.mkdir(parents=True, exist_ok=True)
    partial = _SCRATCH / f"{spec.name}.partial"
    partial.write_text(json.dumps(spec.__dict__))
    partial.rename(_SCRATCH / f"{spec.name}.json")


def withdraw_scratch(name: str) -> None:
    (_SCRATCH / f"{name}.json").unlink(missing_ok=True)
