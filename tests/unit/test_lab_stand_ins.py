"""The lab's apt repository of stand-in NVIDIA packages, and the role's pin on it, by this machine's own apt."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jinja2 import Environment

from coderack_lab import cache, gpu, stand_ins
from coderack_lab.settings import ROOT

PREFERENCES = ROOT / "roles/nvidia_driver/templates/preferences.j2"
OLDER, NEWER = stand_ins.DRIVERS

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("apt-get", "dpkg-deb", "gpg", "gcc"))),
    reason="NOT RUN: wanted apt-get, dpkg-deb, gpg and gcc, as on a Debian or Ubuntu host",
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "CACHE", tmp_path_factory.mktemp("cache"))
        patch.setattr(stand_ins, "KEY", tmp_path_factory.mktemp("key") / "nvidia-apt.asc")
        return stand_ins.build()


class Apt:
    """This machine's apt with an empty root of its own and the stand-ins as the only source."""

    def __init__(self, root: Path, repository: Path) -> None:
        for folder in ("lists/partial", "cache/archives/partial", "preferences.d"):
            (root / folder).mkdir(parents=True)
        (root / "status").write_text("Package: kmod\nStatus: install ok installed\nVersion: 30\nArchitecture: amd64\n")
        (root / "sources.list").write_text(f"deb [signed-by={repository}/key.asc] file:{repository} /\n")
        places = {
            "Dir::State::lists": "lists",
            "Dir::State::status": "status",
            "Dir::Cache": "cache",
            "Dir::Etc::sourcelist": "sources.list",
            "Dir::Etc::sourceparts": "none",
            "Dir::Etc::preferences": "preferences",
            "Dir::Etc::preferencesparts": "preferences.d",
        }
        settings = {key: str(root / place) for key, place in places.items()}
        settings |= {"APT::Architecture": "amd64", "APT::Sandbox::User": "root", "APT::Update::Error-Mode": "any"}
        self.root = root
        self.options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *self.options, *words], capture_output=True, text=True, check=False)

    def installs(self, *packages: str) -> set[str]:
        """What apt would install for these names, as name=version."""
        said = self.run("apt-get", "--simulate", "install", "--no-install-recommends", *packages).stdout
        return {f"{name}={version}" for name, version in re.findall(r"^Inst (\S+) \((\S+)", said, re.MULTILINE)}


@pytest.fixture
def apt(tmp_path: Path, repository: Path) -> Apt:
    made = Apt(tmp_path, repository)
    updated = made.run("apt-get", "update")
    assert updated.returncode == 0, updated.stderr
    return made


def pin(version: str) -> str:
    environment = Environment(trim_blocks=True)  # noqa: S701  apt's file, not a page
    environment.filters["regex_escape"] = re.escape
    template = environment.from_string(PREFERENCES.read_text())
    return template.render(nvidia_driver_hold=["nvidia-*", "libnvidia-*", "libcuda*"], nvidia_driver_version=version)


def test_a_tampered_package_list_is_refused(tmp_path: Path, repository: Path) -> None:
    copy = Path(shutil.copytree(repository, tmp_path / "copy"))
    (copy / "Packages").write_text((copy / "Packages").read_text().replace(OLDER, "580.95.06"))
    updated = Apt(tmp_path / "root", copy).run("apt-get", "update")
    assert updated.returncode != 0
    assert "Packages" in updated.stderr


def test_without_a_pin_an_exact_version_of_the_metapackage_still_mixes_versions(apt: Apt) -> None:
    found = apt.installs(
        f"nvidia-open={OLDER}-1", f"nvidia-driver-cuda={OLDER}-1", f"nvidia-kernel-open-dkms={OLDER}-1"
    )
    assert f"libnvidia-ml1={NEWER}-1" in found


@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_with_the_roles_pin_every_part_is_of_the_wanted_version(apt: Apt, version: str) -> None:
    (apt.root / "preferences").write_text(pin(version))
    driver = {
        name for name in apt.installs("nvidia-open", "nvidia-fabricmanager", "libnvidia-nscq") if "nvidia" in name
    }
    assert len(driver) == 6
    assert {name.split("=")[1] for name in driver} == {f"{version}-1"}


def test_the_pin_knows_no_version_that_only_begins_like_the_wanted_one(apt: Apt) -> None:
    (apt.root / "preferences").write_text(pin("580.95.0"))
    assert apt.installs("nvidia-open") == set()


def test_the_pin_leaves_other_packages_alone(apt: Apt) -> None:
    (apt.root / "preferences").write_text(pin(OLDER))
    assert apt.installs("datacenter-gpu-manager-exporter") >= {"datacenter-gpu-manager-exporter=4.8.2-1"}


def test_the_driver_brings_the_simulated_nvml_of_its_version(repository: Path, tmp_path: Path) -> None:
    package = repository / f"libnvidia-ml1_{NEWER}-1_amd64.deb"
    subprocess.run(["dpkg-deb", "-x", package, tmp_path], check=True)
    link = tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    assert link.readlink() == Path(f"libnvidia-ml.so.{NEWER}")
    assert link.read_bytes() == gpu.build_library().read_bytes()


def test_a_fabric_manager_refuses_a_driver_of_another_version(repository: Path, tmp_path: Path) -> None:
    """On a host without a driver, whose version is none."""
    subprocess.run(["dpkg-deb", "-x", repository / f"nvidia-fabricmanager_{OLDER}-1_amd64.deb", tmp_path], check=True)
    program = tmp_path / "usr/bin/nv-fabricmanager"
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"Fabric Manager version is : {OLDER}\n"
    started = subprocess.run([program], capture_output=True, text=True, check=False)
    assert started.returncode == 1
    assert f"fabric manager version {OLDER} is incompatible with driver version" in started.stderr
