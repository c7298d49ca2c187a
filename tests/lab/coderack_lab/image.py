"""The nodes' base image: one Debian tree, made once, the lower layer of every node's disk."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from coderack_lab import cache
from coderack_lab import settings as s
from coderack_lab.container import run_in
from coderack_lab.shell import run

# What a cloud image of Debian carries, and no more: roles must install what they need.
_PACKAGES = (
    "systemd,systemd-sysv,dbus,libpam-systemd,openssh-server,python3,python3-apt,iproute2,iputils-ping,ca-certificates,"
    "curl,procps,sudo,less,netbase"
)

# Snippets of the host's apt configuration that call programs a node lacks.
_FOREIGN_SNIPPETS = re.compile(
    r"appstream|packagekit|postgresql|docker-clean|autoremove|unattended|listchanges|needrestart"
)

_SETUP = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -qy dist-upgrade
apt-get clean
useradd --create-home --shell /bin/bash --uid {s.USER_ID} --groups sudo {s.USER}
printf '%s ALL=(ALL) NOPASSWD:ALL\\n' {s.USER} > /etc/sudoers.d/90-cloud-user
chmod 0440 /etc/sudoers.d/90-cloud-user
rm -f /etc/ssh/ssh_host_*
cat > /etc/systemd/system/ssh-hostkeys.service <<'UNIT'
[Unit]
Description=Make this machine's SSH host keys
Before=ssh.service
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -A
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable ssh-hostkeys.service ssh.service systemd-networkd.service
systemctl mask systemd-networkd-wait-online.service console-getty.service
touch /etc/default/locale
: > /etc/machine-id
rm -f /var/lib/dbus/machine-id /etc/hostname
"""


def recipe() -> str:
    return cache.recipe_hash(s.SUITE, _PACKAGES, _SETUP)


def path() -> Path:
    return cache.entry("base", recipe())


def tree() -> Path:
    return path() / "tree"


def build(log: Path) -> Path:
    """Return the base tree, made by debootstrap from the host's own mirror when it is not cached."""

    def make(partial: Path) -> None:
        root = partial / "tree"
        debs = s.CACHE / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        # debootstrap mounts /proc in the tree; a mount namespace of its own means that a kill leaves no mount behind.
        run(
            ["unshare", "--mount", "--propagation", "private", "--", "debootstrap", "--variant=minbase",
             f"--cache-dir={debs}", f"--include={_PACKAGES}", s.SUITE, str(root), *_mirror()],
            log=log, env={"DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        _copy_apt_configuration(root)
        run_in(root, ["bash", "-c", _SETUP], log=log, writable=True)

    cache.build(path(), make)
    return tree()


def _host_is_debian() -> bool:
    return "ID=debian" in Path("/etc/os-release").read_text().splitlines()


def _mirror() -> list[str]:
    """The host's own Debian mirror, or debootstrap's default where the host is no Debian."""
    if not _host_is_debian():
        return []
    uris = mirrors_of(Path("/etc/apt"))
    return [uris[0]] if uris else []


def mirrors_of(etc_apt: Path) -> list[str]:
    """Addresses of the main archive in apt's sources, both formats, security archives left out."""
    found: list[str] = []
    for file in sorted(
        [etc_apt / "sources.list", *etc_apt.glob("sources.list.d/*.list"), *etc_apt.glob("sources.list.d/*.sources")]
    ):
        if not file.exists():
            continue
        for line in file.read_text().splitlines():
            if file.suffix == ".sources":
                hit = re.match(r"URIs:\s*(\S+)", line)
            else:
                hit = re.match(r"deb\s+(?:\[[^\]]*\]\s+)?(\S+)", line)
            if hit and re.search(r"/debian/?$", hit[1]):
                found.append(hit[1])
    return found


def _copy_apt_configuration(root: Path) -> None:
    """Give the tree the host's apt sources (suite names adjusted), apt settings and certificate store.

    Only on Debian hosts: elsewhere the sources that debootstrap wrote stay, and the nodes need no more than that.
    """
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")
    if not _host_is_debian():
        return
    host_suite = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for file in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if file.suffix not in {".list", ".sources"} or not file.exists():
            continue
        text = file.read_text()
        if not re.search(r"/debian(-security)?/?(\s|$)", text):
            continue  # a third party's archive has no place on a node
        if host_suite:
            text = re.sub(rf"\b{host_suite[1]}\b", s.SUITE, text)
        target = root / file.relative_to("/")
        target.write_text(text)
    for snippet in Path("/etc/apt/apt.conf.d").glob("*"):
        if not _FOREIGN_SNIPPETS.search(snippet.name):
            shutil.copy(snippet, root / snippet.relative_to("/"))
