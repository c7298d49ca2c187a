"""Stand-ins for NVIDIA's packages: a small signed apt repository with two versions of all that the roles install.

Names, dependencies, units and what the programs say of themselves are as in NVIDIA's CUDA repository for Debian 12; the
programs are in ../stand_ins. A node sees the repository as a folder. Production code knows it as a repository address
and a key, both inventory variables.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

from coderack_lab import cache, gpu
from coderack_lab import settings as s
from coderack_lab.shell import output

ON_NODE = "/srv/nvidia-apt"
KEY = s.BUILD / "nvidia-apt.asc"
DRIVERS = ("580.95.05", "580.126.09")
DCGM = {"4.5.2": "4.8.1", "4.5.3": "4.8.2"}  # DCGM version -> version of its exporter
KERNELS = ("6.1.0-40", "6.1.0-41")

_PROGRAMS = Path(__file__).resolve().parents[1] / "stand_ins"
_LIB = "usr/lib/x86_64-linux-gnu"
_UNITS = "usr/lib/systemd/system"
_LOAD = "nvidia-stand-in-module.service"


@dataclass(frozen=True)
class Package:
    """One binary package. Files: path without the leading slash -> text, bytes, or `-> target` for a symbolic link."""

    name: str
    version: str
    depends: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version.partition(':')[2] or self.version}_amd64.deb"


@functools.cache  # a machine that reboots finds what it was started with, whatever was edited since
def recipe() -> str:
    sources = sorted((*_PROGRAMS.iterdir(), *gpu.library.SOURCES.glob("*.[ch]"), Path(__file__)))
    return cache.recipe_hash(*(file.read_text() for file in sources))


def path() -> Path:
    return cache.entry("nvidia", recipe())


def repository() -> Path:
    return path() / "repository"


def build() -> Path:
    """Return the repository, made when it is not cached, and put its key where the lab's inventory names it."""

    def make(partial: Path) -> None:
        folder = partial / "repository"
        folder.mkdir()
        for package in packages(partial):
            _write(package, partial / "tree", folder)
        _index(folder)
        _sign(folder, partial / "gnupg")

    cache.build(path(), make)
    KEY.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(repository() / "key.asc", KEY)
    return repository()


def packages(scratch: Path) -> list[Package]:
    """Every package in every version. Compiles into `scratch`."""
    library = gpu.build_library(scratch / "nvml").read_bytes()
    state = gpu.profile("h100-sxm-8").unset("epoch").text().replace(gpu.profiles.DRIVER, "@LOADED@")
    node: dict[str, str | bytes] = {
        "usr/share/nvidia-stand-in/state": state,
        "usr/share/nvidia-stand-in/pci.tar": _pci_functions(scratch),
    }
    nscq = _empty_library(scratch)
    found = [made for version in DRIVERS for made in _driver(version, library, nscq, _module(version, scratch), node)]
    found += [made for versions in DCGM.items() for made in _dcgm(*versions)]
    # The nodes of the lab have no kernel of their own; whether a kernel is held is tried on this one.
    found += [Package("linux-image-stand-in-amd64", f"{version}-1") for version in KERNELS]
    return found


def _pci_functions(scratch: Path) -> bytes:
    """The PCI functions of a p5.48xlarge, as a tar that can be unpacked anywhere."""
    tree = scratch / "sys"
    gpu.fake_sysfs(tree, "efa")
    packed = scratch / "pci.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(tree, arcname=".")
    return packed.read_bytes()


def _driver(
    version: str, library: bytes, empty: bytes, module: bytes, node: Mapping[str, str | bytes]
) -> list[Package]:
    full = f"{version}-1"

    def program(name: str) -> str:
        return _program(name, version)

    def daemon(unit: str, command: str, description: str) -> dict[str, str | bytes]:
        text = _unit(description, f"/usr/bin/{command}", kind="forking")
        return {f"usr/bin/{command}": program(command), f"{_UNITS}/{unit}.service": text}

    nvml, nscq = f"{_LIB}/libnvidia-ml.so", f"{_LIB}/libnvidia-nscq.so"
    load = _unit("NVIDIA kernel module (stand-in)", "/usr/libexec/nvidia-stand-in/load-module", kind="oneshot")
    return [
        Package("nvidia-open", full, f"nvidia-driver-cuda (= {full}), nvidia-kernel-open-dkms (= {full})"),
        # As it was until 590: the metapackage's lower bounds are what lets a part run ahead of the rest.
        Package("nvidia-driver-cuda", full, f"libnvidia-ml1 (>= {version})"),
        Package(
            "nvidia-kernel-open-dkms",
            full,
            "kmod",
            {
                f"usr/src/nvidia-{version}/nvidia.ko": module,
                "usr/libexec/nvidia-stand-in/load-module": program("load-module"),
                **node,
                f"{_UNITS}/{_LOAD}": load,
                f"{_UNITS}/multi-user.target.wants/{_LOAD}": f"-> ../{_LOAD}",
            },
            {"postinst": program("install-module"), "postrm": program("remove-module")},
        ),
        Package(
            "libnvidia-ml1",
            full,
            files={f"{nvml}.{version}": library, f"{nvml}.1": f"-> libnvidia-ml.so.{version}"},
            scripts={"triggers": "activate-noawait ldconfig\n"},
        ),
        Package(
            "nvidia-persistenced",
            full,
            files=daemon("nvidia-persistenced", "nvidia-persistenced", "NVIDIA Persistence Daemon"),
        ),
        Package(
            "nvidia-fabricmanager",
            full,
            files=daemon("nvidia-fabricmanager", "nv-fabricmanager", "NVIDIA fabric manager service"),
        ),
        Package(
            "libnvidia-nscq", full, files={f"{nscq}.{version}": empty, f"{nscq}.2": f"-> libnvidia-nscq.so.{version}"}
        ),
    ]  # fmt: skip


def _dcgm(version: str, exporter: str) -> list[Package]:
    full = f"1:{version}-1"
    core = f"datacenter-gpu-manager-4-core (= {full})"
    return [
        Package(
            "datacenter-gpu-manager-4-core",
            full,
            files={
                "usr/bin/nv-hostengine": _program("nv-hostengine", version),
                f"{_UNITS}/nvidia-dcgm.service": _unit("NVIDIA DCGM service", "/usr/bin/nv-hostengine"),
            },
        ),
        Package("datacenter-gpu-manager-4-cuda13", full, core),
        Package("datacenter-gpu-manager-4-proprietary", full, core),
        Package(
            "datacenter-gpu-manager-exporter",
            f"{exporter}-1",
            "datacenter-gpu-manager-4-core",
            {
                "usr/bin/dcgm-exporter": _program("dcgm-exporter", f"{version}-{exporter}"),
                "etc/dcgm-exporter/default-counters.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n",
                f"{_UNITS}/nvidia-dcgm-exporter.service": _unit(
                    "NVIDIA DCGM-exporter service",
                    "/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv",
                    after="nvidia-dcgm.service",
                ),
            },
        ),
    ]


def _program(name: str, version: str) -> str:
    return (_PROGRAMS / name).read_text().replace("@VERSION@", version)


def _unit(description: str, command: str, *, kind: str = "simple", after: str = _LOAD) -> str:
    remain = "RemainAfterExit=yes\n" if kind == "oneshot" else ""
    order = "" if kind == "oneshot" else f"After={after}\n"
    return (
        f"[Unit]\nDescription={description}\n{order}\n[Service]\nType={kind}\nExecStart={command}\n{remain}"
        "\n[Install]\nWantedBy=multi-user.target\n"
    )


def _module(version: str, scratch: Path) -> bytes:
    target = scratch / f"nvidia-{version}.o"
    output(["gcc", "-c", f'-DVERSION="{version}"', str(_PROGRAMS / "module.c"), "-o", str(target)])
    return target.read_bytes()


def _empty_library(scratch: Path) -> bytes:
    target = scratch / "empty.so"
    output(["gcc", "-shared", "-nostdlib", "-x", "c", os.devnull, "-o", str(target)])
    return target.read_bytes()


def _write(package: Package, tree: Path, into: Path) -> None:
    """Build the .deb through a scratch `tree`."""
    control = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": "amd64",
        "Maintainer": "The Coderack authors <nobody@example.net>",
        "Description": f"stand-in for {package.name}",
    }
    if package.depends:
        control["Depends"] = package.depends
    debian = tree / "DEBIAN"
    debian.mkdir(parents=True)
    (debian / "control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()))
    for name, text in package.scripts.items():
        (debian / name).write_text(text)
        (debian / name).chmod(0o755)
    for name, content in package.files.items():
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif content.startswith("-> "):
            file.symlink_to(content.removeprefix("-> "))
            continue
        else:
            file.write_text(content)
        file.chmod(0o755 if isinstance(content, str) and content.startswith("#!") else 0o644)
    for folder in [tree, *(entry for entry in tree.rglob("*") if entry.is_dir() and not entry.is_symlink())]:
        folder.chmod(0o755)
    output(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(into / package.file_name)])
    shutil.rmtree(tree)


def _index(folder: Path) -> None:
    """Write Packages and Release of a flat repository."""
    entries = []
    for deb in sorted(folder.glob("*.deb")):
        control = output(["dpkg-deb", "--field", str(deb)]).strip()
        content = deb.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        entries.append(f"{control}\nFilename: ./{deb.name}\nSize: {len(content)}\nSHA256: {digest}\n")
    index = "\n".join(entries).encode()
    (folder / "Packages").write_bytes(index)
    (folder / "Release").write_text(
        f"Origin: NVIDIA\nLabel: NVIDIA CUDA\nSuite: stable\nDate: {formatdate(usegmt=True)}\n"
        f"SHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    )


def _sign(folder: Path, home: Path) -> None:
    """Sign with a key that is thrown away; its public half stays beside the packages as key.asc."""
    home.mkdir(mode=0o700)
    # gpg's agent listens on a socket below its home, and a socket's path has at most 108 bytes.
    short = Path(f"/run/coderack-lab-gnupg-{os.getpid()}")
    short.symlink_to(home)
    gpg = ["gpg", "--homedir", str(short), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    try:
        output([*gpg, "--quick-generate-key", "Coderack lab <nobody@example.net>", "ed25519", "sign", "never"])
        output([*gpg, "--clearsign", "--output", str(folder / "InRelease"), str(folder / "Release")])
        (folder / "key.asc").write_text(output([*gpg, "--armor", "--export"]))
    finally:
        subprocess.run(["gpgconf", "--homedir", str(short), "--kill", "all"], check=False, capture_output=True)
        short.unlink()
        shutil.rmtree(home)
