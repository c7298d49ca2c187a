"""What role nvidia_driver promises, looked at on a node that was set up with 580.95.05 while 580.126.09 is on offer."""

from __future__ import annotations

import pytest
from testinfra.host import Host

WANTED, NEWER = "580.95.05", "580.126.09"
PACKAGES = [
    "nvidia-open",
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "libnvidia-ml1",
    "libnvidia-nscq",
    "nvidia-fabricmanager",
    "nvidia-persistenced",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_part_has_the_one_version_though_dependencies_would_allow_another(host: Host, package: str) -> None:
    assert host.package(package).version == f"{WANTED}-1"


def test_the_newer_version_is_on_offer_and_apt_would_never_take_it(host: Host) -> None:
    policy = host.check_output("apt-cache policy nvidia-open")
    assert f"Candidate: {WANTED}-1" in policy
    assert f"{NEWER}-1 -1" in policy


@pytest.mark.parametrize("package", [*PACKAGES, "linux-image-stand-in-amd64"])
def test_driver_and_kernel_are_held(host: Host, package: str) -> None:
    assert package in host.check_output("apt-mark showhold").split()


def test_the_wanted_module_is_loaded(host: Host) -> None:
    assert f"  {WANTED}  " in host.file("/proc/driver/nvidia/version").content_string


NVML = """
import ctypes
nvml, count, version = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint(), ctypes.create_string_buffer(80)
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
print(nvml.nvmlSystemGetDriverVersion(version, 80), count.value, version.value.decode())
"""


def test_programs_find_eight_gpus_and_the_same_version_through_nvml(host: Host) -> None:
    assert host.check_output("python3 -c %s", NVML).split() == ["0", "0", "0", "8", WANTED]


@pytest.mark.parametrize("unit", ["nvidia-fabricmanager", "nvidia-persistenced"])
def test_its_daemons_run_and_come_back_after_a_boot(host: Host, unit: str) -> None:
    assert host.service(unit).is_running
    assert host.service(unit).is_enabled


def test_what_uses_the_gpus_was_stopped_before_and_runs_again(host: Host) -> None:
    assert "stopped" in host.file("/var/tmp/vllm-stops").content_string
    assert host.service("vllm").is_running


def test_an_upgrade_of_the_whole_system_does_not_move_it(host: Host) -> None:
    host.check_output("DEBIAN_FRONTEND=noninteractive apt-get -qy dist-upgrade")
    assert host.package("nvidia-fabricmanager").version == f"{WANTED}-1"
    assert host.package("linux-image-stand-in-amd64").version.startswith("6.1.0-40")


def unattended_upgrade(host: Host, *options: str) -> str:
    """Run it with the repository among what it may upgrade from, and return what it says."""
    host.check_output("echo 'Unattended-Upgrade::Origins-Pattern { \"origin=NVIDIA\"; };' > /run/allow.conf")
    return host.check_output(f"APT_CONFIG=/run/allow.conf unattended-upgrade --debug {' '.join(options)} 2>&1")


def test_unattended_upgrades_see_the_newer_version_and_do_not_move_it(host: Host) -> None:
    seen = unattended_upgrade(host)
    assert "Package nvidia-open has a higher version available" in seen
    assert "linux-image-stand-in-amd64 package has been blacklisted" in seen
    assert host.package("nvidia-open").version == f"{WANTED}-1"
    assert host.package("linux-image-stand-in-amd64").version.startswith("6.1.0-40")


def test_they_would_have_moved_it_without_pin_hold_and_blacklist(host: Host) -> None:
    aside = {"10-coderack-nvidia": "/etc/apt/preferences.d", "60coderack-nvidia": "/etc/apt/apt.conf.d"}
    held = " ".join(host.check_output("apt-mark showhold").split())
    host.check_output(f"apt-mark unhold {held}")
    for name, folder in aside.items():
        host.check_output(f"mv {folder}/{name} /run/{name}")
    try:
        seen = unattended_upgrade(host, "--dry-run")
    finally:
        for name, folder in aside.items():
            host.check_output(f"mv /run/{name} {folder}/{name}")
        host.check_output(f"apt-mark hold {held}")
    would = next(line for line in seen.splitlines() if line.startswith("Packages that will be upgraded:")).split()
    assert {"nvidia-open", "nvidia-fabricmanager", "linux-image-stand-in-amd64"} <= set(would)
