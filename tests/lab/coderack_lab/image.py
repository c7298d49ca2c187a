"""The nodes' base image: one Debian tree, made once, the lower layer of every node's disk."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from coderack_lab import cache, cgroups
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
apt-get -q -o APT::Update::Error-Mode=any update
apt-cache show python3-venv >/dev/null
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
            log=log, env={"DEBIAN_FRONTEND": "noninteractive"}, cgroup=cgroups.entrance("build"),
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
    for file in _source_files(etc_apt):
        for line in file.read_text().splitlines():
            if file.suffix == ".sources":
                hit = re.match(r"URIs:\s*(\S+)", line)
            else:
                hit = re.match(r"deb\s+(?:\[[^\]]*\]\s+)?(\S+)", line)
            if hit and re.search(r"^https?://.*/debian(/|$)", hit[1]):
                found.append(hit[1])
    return found


def node_sources(etc_apt: Path, os_release: str) -> dict[str, str]:
    """The host's sources of Debian's own archives, made to fit a node: path below /etc/apt -> text.

    Suite names become the nodes'. `Signed-By` goes where it names Debian's own keyring, whose file has another ending
    in later suites; apt then uses the keys of the node's own keyring package. Empty where the host names its mirror in
    another way (a mirror list, for one): what debootstrap wrote stays then.
    """
    suite = re.search(r"^VERSION_CODENAME=(\w+)", os_release, re.MULTILINE)
    found = {}
    for file in _source_files(etc_apt):
        text = file.read_text()
        if not re.search(r"https?://\S*/debian(-security)?(/\S*)?(\s|$)", text):
            continue  # a third party's archive has no place on a node
        if suite:
            text = re.sub(rf"\b{suite[1]}\b", s.SUITE, text)
        text = re.sub(r"^Signed-By:\s*/usr/share/keyrings/debian-archive-\S+\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"signed-by=/usr/share/keyrings/debian-archive-[^\s\]]+", "", text)
        found[str(file.relative_to(etc_apt))] = text.replace("[ ]", "").replace("[]", "")
    return found


def _source_files(etc_apt: Path) -> list[Path]:
    files = [
        etc_apt / "sources.list",
        *etc_apt.glob("sources.list.d/*.list"),
        *etc_apt.glob("sources.list.d/*.sources"),
    ]
    return sorted(file for file in files if file.exists())


def _copy_apt_configuration(root: Path) -> None:
    """Give the tree the host's apt sources (suite names adjusted), apt settings and certificate store.

    Only on Debian hosts: elsewhere the sources that debootstrap wrote stay, and the nodes need no more than that.
    """
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")
    if not _host_is_debian():
        return
    sources = node_sources(Path("/etc/apt"), Path("/etc/os-release").read_text())
    if sources:
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for name, text in sources.items():
        (root / "etc/apt" / name).write_text(text)
    for snippet in Path("/etc/apt/apt.conf.d").glob("*"):
        if not _FOREIGN_SNIPPETS.search(snippet.name):
            shutil.copy(snippet, root / snippet.relative_to("/"))
