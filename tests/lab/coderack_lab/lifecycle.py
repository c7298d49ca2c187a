"""Bringing the lab's cloud and network up, taking everything down again, and repairing what a killed run left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from coderack_lab import cgroups, contact, image, network
from coderack_lab import settings as s
from coderack_lab.errors import LabError
from coderack_lab.shell import CommandFailed, output

_LAB = s.RUN / "lab.json"


@contextlib.contextmanager
def locked(command: str, *, take_over: bool = False) -> Iterator[None]:
    """Hold the one lock of this host's lab while a command changes it.

    A holder that is about to die gets ten seconds. With `take_over` a living holder is stopped (that is what lab-down
    is for); otherwise LabError names it.
    """
    deadline = time.monotonic() + 10
    while True:
        handle = s.LOCK.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = s.LOCK.read_text().strip() or "unknown"
            handle.close()
            if take_over:
                take_over = False
                _stop_holder(holder)
                deadline = time.monotonic() + 45
            elif time.monotonic() > deadline:
                raise LabError(
                    f"another lab command is at work (process and command: {holder}); wanted: none. "
                    "Wait for it, or `make lab-down` stops it and takes the lab down."
                ) from None
            time.sleep(0.3)
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle.fileno()).st_ino == s.LOCK.stat().st_ino:
                break
        handle.close()  # the file was removed by a lab-down between open and lock: once more
    handle.truncate(0)
    handle.write(f"{os.getpid()} {command}")
    handle.flush()
    try:
        yield
    finally:
        handle.truncate(0)
        handle.close()


def _stop_holder(holder: str) -> None:
    pid = holder.split(maxsplit=1)[0]
    with contextlib.suppress(OSError):  # gone, or not a number: then it is no process of ours either
        if b"coderack_lab" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGTERM)


def read_lab() -> dict[str, str]:
    """Which clone drives the lab and how far it got (`phase`: up | provisioning | configuring | ready)."""
    try:
        return dict(json.loads(_LAB.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def set_phase(phase: str) -> None:
    partial = _LAB.with_suffix(".partial")
    partial.write_text(json.dumps({"root": str(s.ROOT), "phase": phase}))
    partial.rename(_LAB)


def is_up() -> bool:
    """Whether cloud and network of this host's lab live (whichever clone drives it)."""
    pid = contact.read_status().get("pid")
    return isinstance(pid, int) and contact.is_alive(pid) and network.is_up()


def up() -> str:
    """Bring network and cloud up, or keep them when they are sound. Returns what was done.

    Raises LabError when another clone's lab is up.
    """
    lab = read_lab()
    if lab and is_up() and lab["root"] != str(s.ROOT):
        raise LabError(
            f"this host's lab is up and driven from {lab['root']}; wanted: no lab, or this clone's. "
            "Run `make lab-down` (here or there) first."
        )
    if lab and is_up() and lab["phase"] in {"up", "ready"}:
        return "kept"
    repaired = bool(lab)  # an earlier lab of which something is missing
    down()
    s.RUN.mkdir(parents=True, exist_ok=True)
    s.LOGS.mkdir(parents=True, exist_ok=True)
    _make_key()
    network.up()
    mirrors = image.mirrors_of(image.tree() / "etc/apt")
    if mirrors:
        network.check_way_out(mirrors[0])
    _start_supervisor()
    set_phase("up")
    return "repaired and started" if repaired else "started"


def _make_key() -> None:
    if not s.SSH_KEY.exists():
        s.SSH_KEY.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        output(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "coderack-lab", "-f", str(s.SSH_KEY)])
    s.KNOWN_HOSTS.unlink(missing_ok=True)


def _start_supervisor(patience: float = 40.0) -> None:
    log = s.LOGS / "supervisor.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "coderack_lab.supervisor"],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, cwd=s.ROOT,
            preexec_fn=cgroups.entrance("supervisor"),  # noqa: PLW1509  lab-down finds it from its first instruction on
            env={**os.environ, "PYTHONPATH": str(s.ROOT / "tests/lab"), "AWS_EC2_METADATA_DISABLED": "true"},
        )  # fmt: skip
    deadline = time.monotonic() + patience
    while not contact.read_status():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise LabError(f"the lab's cloud did not come up (wanted within {patience:.0f} s); log {log}:\n{tail}")
        time.sleep(0.2)


def down() -> None:
    """Take down whatever of the lab there is, in order where its parts still answer, by force where not. Idempotent."""
    cgroups.kill("work")
    cgroups.kill("build")
    _stop_supervisor()
    # A killed supervisor's nodes were told to power off by the kernel; who is still there gets a short while.
    cgroups.kill("nodes", patience=8.0)
    cgroups.kill()
    cgroups.remove()
    network.down()
    shutil.rmtree(s.STATE, ignore_errors=True)
    _remove_clone_state(Path(read_lab().get("root", str(s.ROOT))))
    shutil.rmtree(s.RUN, ignore_errors=True)
    _clear_nspawn()


def _clear_nspawn() -> None:
    """Remove what nspawn keeps per machine (which folders depends on its version), and the folders if now empty."""
    top = Path("/run/systemd/nspawn")
    for stray in top.glob("*/lab-*"):
        if stray.is_mount():
            output(["umount", str(stray)])
        with contextlib.suppress(OSError):
            stray.rmdir()
    for folder in [*top.glob("*"), top]:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _stop_supervisor() -> None:
    pid = contact.read_status().get("pid")
    if isinstance(pid, int) and contact.is_alive(pid):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 45
        while contact.is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.2)
    cgroups.kill("supervisor", patience=1.0)


def _remove_clone_state(root: Path) -> None:
    """What in a clone describes a lab that is gone: Terraform's state, inventory, pinned keys, secrets. Logs stay."""
    build = root / ".build" / "lab"
    for path in (build / "terraform", build / "ssh", root / "inventories/lab/secrets"):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("hosts.yml", "known_hosts", "reservation.auto.tfvars.json"):
        (root / "inventories/lab" / name).unlink(missing_ok=True)


def leftovers() -> list[str]:
    """Everything of the lab that exists on this host right now, in words."""
    found = network.leftovers()
    found += [f"process {pid} in the lab's namespace" for pid in sorted(network.holders())]
    found += [f"process {pid}" for pid in sorted(cgroups.processes())]
    found += [f"cgroup {folder}" for folder in cgroups.leftovers()]
    found += [
        f"mount {line.split()[1]}"
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if "coderack-lab" in line or ("/nspawn/" in line.split()[1] and "/lab-" in line.split()[1])
    ]
    found += [str(path) for path in (s.RUN, s.STATE) if path.exists()]
    return found


def wait_for_nodes(instances: Collection[str] = (), patience: float = 90.0) -> None:
    """Wait until every running node, those of `instances` among them, answers over SSH and has finished booting.

    Raises LabError naming the nodes that do not, with the state each one reports.
    """
    deadline = time.monotonic() + patience
    seen: dict[str, str] = {"(none)": "no instance is running"}
    while time.monotonic() < deadline:
        nodes = contact.read_status().get("nodes")
        if isinstance(nodes, list) and nodes:
            seen = {n["name"]: n["state"] if n["state"] != "running" else boot_state(n["address"]) for n in nodes}
            seen |= dict.fromkeys(set(instances) - {n["instance_id"] for n in nodes}, "not started yet")
            if set(seen.values()) <= {"running", "stopped"}:
                return
        time.sleep(0.5)
    told = ", ".join(f"{name}: {state}" for name, state in sorted(seen.items()) if state != "running")
    raise LabError(
        f"not every node came up in {patience:.0f} s ({told}); wanted: systemd reports `running`. Consoles: {s.LOGS}"
    )


def wait_for_node(name: str, patience: float = 60.0) -> None:
    """Wait until one node has booted. Raises LabError with the state it stayed in."""
    deadline, seen = time.monotonic() + patience, "not there"
    while time.monotonic() < deadline:
        nodes = contact.read_status().get("nodes")
        node = next((n for n in nodes if n["name"] == name), None) if isinstance(nodes, list) else None
        if node is not None:
            seen = boot_state(node["address"]) if node["state"] == "running" else node["state"]
            if seen == "running":
                return
        time.sleep(0.3)
    raise LabError(
        f"{name} did not come up in {patience:.0f} s: {seen}; wanted: systemd reports `running`. Console: {s.LOGS}"
    )


def wait_for_state(name: str, state: str, patience: float = 45.0) -> None:
    """Wait until the supervisor has a node in this state. Raises LabError with the state it stayed in."""
    deadline, seen = time.monotonic() + patience, "not there"
    while time.monotonic() < deadline:
        nodes = contact.read_status().get("nodes")
        seen = next((n["state"] for n in nodes if n["name"] == name), seen) if isinstance(nodes, list) else seen
        if seen == state:
            return
        time.sleep(0.3)
    raise LabError(f"{name} is {seen} after {patience:.0f} s; wanted: {state}. See {s.LOGS / 'supervisor.log'}")


def wait_for_no_node(name: str, patience: float = 45.0) -> None:
    """Wait until a node is gone. Raises LabError when it stays."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        nodes = contact.read_status().get("nodes")
        if not isinstance(nodes, list) or name not in {n["name"] for n in nodes}:
            return
        time.sleep(0.3)
    raise LabError(f"{name} is still there after {patience:.0f} s; wanted: gone. See {s.LOGS / 'supervisor.log'}")


def boot_state(address: str) -> str:
    """What systemd on the node says of itself over SSH, or `unreachable`."""
    command = ["ssh", *contact.ssh_options(), f"{s.USER}@{address}", "systemctl is-system-running; true"]
    try:
        return output(command, timeout=20).strip()
    except CommandFailed:
        return "unreachable"
