"""One machine of the lab: Debian with its own systemd, sshd, address and disk, in an nspawn container.

The disk is an overlay: the base image below, the node's own changes above. The overlay is mounted in a mount namespace
of the node's own, so the host's mount table never shows it and nothing has to be unmounted when a node dies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from coderack_lab import cgroups, image, network, serving
from coderack_lab import settings as s
from coderack_lab.shell import die_with_parent

_REBOOT = 133  # what nspawn exits with under --keep-unit when the machine inside asked for a reboot

# A node sees a pure cgroup v2 tree, as on a real Debian 12; the BPF capability makes address and device filters of
# units work inside.
_BOOT = """
mount -t overlay coderack-lab -o "lowerdir=$LOWER,upperdir=$DISK/upper,workdir=$DISK/work" "$DISK/root"
exec nsenter --net="$NETNS" -- "$@"
"""


@dataclass(frozen=True)
class NodeSpec:
    """What a machine is: everything the cloud decides about it."""

    name: str
    address: str
    role: str
    public_key: str
    instance_id: str

    @property
    def disk(self) -> Path:
        return s.STATE / "nodes" / self.name


class Node:
    """A machine that was started, and can be stopped and looked at.

    `state`: running | stopped (powered off in an orderly way) | crashed (ended by itself with an error).
    """

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.state = "stopped"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boot on the disk the machine has, or on a new one."""
        spec = self.spec
        for part in ("upper", "work", "root"):
            (spec.disk / part).mkdir(parents=True, exist_ok=True)
        _write_identity(spec)
        enter, parent = cgroups.entrance(f"nodes/{spec.name}"), os.getpid()

        def in_child() -> None:
            die_with_parent(parent)  # nspawn takes SIGTERM as "power off"
            enter()

        with (s.LOGS / f"node-{spec.name}.console").open("ab") as console:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "slave", "--", "bash", "-euc", _BOOT, "boot", *_nspawn(spec)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                preexec_fn=in_child,  # noqa: PLW1509  prctl and writes only
                env={
                    **os.environ,
                    "LOWER": str(image.tree()),
                    "DISK": str(spec.disk),
                    "NETNS": str(s.NETNS_FILE),
                    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                },
            )
        self.state = "running"

    def poll(self) -> str:
        """Notice an end, start again after a reboot, and return the state."""
        if self._process is None or (code := self._process.poll()) is None:
            return self.state
        self._process = None
        _end(self.spec.name)
        if code == _REBOOT:
            self.start()
        else:
            self.state = "stopped" if code == 0 else "crashed"
        return self.state

    def ask_to_stop(self) -> None:
        """Begin an orderly power-off; `wait_stopped` sees it through."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def wait_stopped(self, patience: float = 30.0) -> None:
        if self._process is not None:
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        _end(self.spec.name)
        self.state = "stopped"

    def kill(self) -> None:
        """Pull the plug: SIGKILL to the machine's init, from where nspawn notices that it died."""
        if self._process is None:
            return
        pull_the_plug(self.spec.name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)

    def console(self) -> str:
        """What cloud-init writes to a machine's console at its first boot, once the machine has made its host keys."""
        folder = self.spec.disk / "upper/etc/ssh"
        # ssh-keygen -A makes this one last, each public key before its private one.
        if not (folder / "ssh_host_ed25519_key").exists():
            return ""
        keys = "".join(file.read_text() for file in sorted(folder.glob("ssh_host_*_key.pub")))
        return f"-----BEGIN SSH HOST KEY KEYS-----\n{keys}-----END SSH HOST KEY KEYS-----\n"

    def wipe(self) -> None:
        """Throw the machine's disk away."""
        shutil.rmtree(self.spec.disk, ignore_errors=True)


def _end(name: str) -> None:
    """After a stop: SIGKILL what init left (a killed nspawn leaves its children alive) and drop the cgroup."""
    cgroups.kill(f"nodes/{name}", patience=0.5)
    cgroups.remove(f"nodes/{name}")
    # nspawn leaves an empty folder for mounts it might have passed on.
    with contextlib.suppress(OSError):
        (Path("/run/systemd/nspawn/propagate") / s.machine(name)).rmdir()


def _nspawn(spec: NodeSpec) -> list[str]:
    binds = serving.node_binds() if spec.role == "gpu" else {}
    return [
        "systemd-nspawn", "--quiet", "--boot", "-D", str(spec.disk / "root"), "-M", s.machine(spec.name),
        f"--hostname={spec.name}", "--register=no", "--keep-unit", f"--network-bridge={s.BRIDGE}",
        "--resolv-conf=off", "--link-journal=no", "--timezone=off",
        "--system-call-filter=bpf", "--capability=CAP_BPF",
        *(f"--bind-ro={source}:{target}" for source, target in binds.items()),
    ]  # fmt: skip


def _write_identity(spec: NodeSpec) -> None:
    """Put into the node's disk what a cloud's first boot sets: name, address, resolver, the key pair's public key."""
    upper = spec.disk / "upper"
    files = {
        "etc/hostname": f"{spec.name}\n",
        "etc/resolv.conf": network.nameservers(),
        "etc/systemd/network/10-host0.network": (
            f"[Match]\nName=host0\n\n[Network]\nAddress={spec.address}/24\nGateway={s.ROUTER}\nLinkLocalAddressing=no\n"
        ),
    }
    for name, text in files.items():
        target = upper / name
        _make_folders(upper, target.parent)
        if not target.exists() and not target.is_symlink():
            target.write_text(text)
    home = upper / "home" / s.USER
    _make_folders(upper, home.parent)
    for folder in (home, home / ".ssh"):
        folder.mkdir(exist_ok=True)
        os.chown(folder, s.USER_ID, s.USER_ID)
    (home / ".ssh").chmod(0o700)
    keys = home / ".ssh" / "authorized_keys"
    keys.write_text(spec.public_key.strip() + "\n")
    os.chown(keys, s.USER_ID, s.USER_ID)


def _make_folders(upper: Path, folder: Path) -> None:
    """Like mkdir -p with mode 0755, whatever the umask: the upper layer's folders decide what the node sees."""
    for part in reversed([folder, *folder.parents]):
        if part.is_relative_to(upper) and not part.exists():
            part.mkdir()
            part.chmod(0o755)


def pull_the_plug(name: str) -> None:
    """SIGKILL everything inside a machine at once, its init included; nspawn itself stays to notice."""
    cgroups.kill(f"nodes/{name}/payload", patience=0)
