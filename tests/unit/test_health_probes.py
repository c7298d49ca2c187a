"""Probes by themselves, profiles, and the processes that probes run in."""

import os
import time
from pathlib import Path

import pytest

from coderack.health import expectations, processes
from coderack.health.probes import kernel_log, pci, services
from coderack.health.readings import ANSWERED, CRASHED, HUNG, Answer, bus_id
from coderack.spec.checked import SpecError

from .health import Simulated, load_library


@pytest.fixture(scope="module", autouse=True)
def _library(tmp_path_factory: pytest.TempPathFactory) -> None:
    load_library(tmp_path_factory.mktemp("nvml"))


def _no_step(_: str) -> None:
    pass


def test_access_control_that_only_root_may_read_is_unknown_and_not_off(tmp_path: Path) -> None:
    node = Simulated(tmp_path)
    for bridge in node.sysfs.bridges:
        config = bridge.folder / "config"
        # What the kernel gives to anybody but root.
        config.write_bytes(config.read_bytes()[:64])
    found = node.look().report.findings
    assert [(one.id, one.severity.value) for one in found] == [("acs-unknown", "unknown")]


def test_a_virtual_machines_access_control_is_not_judged(tmp_path: Path) -> None:
    node = Simulated(tmp_path, settings=["host.platform=vm"])
    node.sysfs.bridges[1].set_acs(0x1D)
    assert node.look().report.findings == ()


@pytest.mark.parametrize("spelling", ["00000000:1B:00.0", "0000:1b:00.0", "PCI:0000:1b:00", "1b:00.0", "0000:1b:00"])
def test_a_bus_id_is_the_same_in_every_spelling(spelling: str) -> None:
    assert bus_id(spelling) == "0000:1b:00.0"


def test_a_device_that_reads_as_all_ones_is_not_alive(tmp_path: Path) -> None:
    node = Simulated(tmp_path)
    node.sysfs.gpus[0].stop_answering()
    answers = pci.read(tmp_path / "sys", _no_step)
    assert answers[f"gpu.{node.sysfs.gpus[0].address}.alive"] == Answer(0)
    assert answers[f"gpu.{node.sysfs.gpus[1].address}.alive"] == Answer(1)


def test_kernel_log_of_another_boot_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("3,5,1000000,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n")
    assert kernel_log.read(log, 900, _no_step)["events"] == Answer(1)


def test_a_storm_of_lines_is_counted_and_not_kept_whole(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("".join(f"3,{n},{n},-;NVRM: Xid (PCI:0000:1b:00): 31, pid=1\n" for n in range(5000)))
    answers = kernel_log.read(log, -1, _no_step)
    assert answers["events"] == Answer(5000)
    assert len(answers) < kernel_log.MAX_EVENTS * 6


def test_a_program_that_does_not_end_is_left_behind() -> None:
    begun = time.monotonic()
    outputs = services.run_all({"hangs": ("/bin/sleep", "60"), "says": ("/bin/echo", "yes")}, 0.5)
    assert time.monotonic() - begun < 30
    assert (outputs["hangs"].error, outputs["says"].text) == ("TIMEOUT", "yes\n")


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("580.159.04-1", "580.159.04"),
        ("580.159.04-0ubuntu0.24.04.1", "580.159.04"),
        ("1:580.159.04+dfsg-2", "580.159.04"),
    ],
)
def test_the_upstream_version_of_a_package(version: str, upstream: str) -> None:
    assert services.upstream(version) == upstream


def _hangs(step: processes.Step) -> dict[str, Answer]:
    step("before the call")
    time.sleep(60)
    return {}


def _dies(step: processes.Step) -> dict[str, Answer]:
    step("before the crash")
    os.abort()


def test_a_probe_that_answers_hangs_or_dies_ends_as_such() -> None:
    ran, hung = processes.run(
        {"good": lambda _: {"a": Answer(1), "b": Answer(error="X")}, "hangs": _hangs, "dies": _dies},
        time.monotonic() + 3,
        {},
        0,
    )
    assert {name: probe.outcome for name, probe in ran.items()} == {"good": ANSWERED, "hangs": HUNG, "dies": CRASHED}
    assert (ran["good"]["a"], ran["good"]["b"]) == (Answer(1), Answer(error="X"))
    assert (ran["dies"].at, ran["dies"].detail) == ("before the crash", "killed by SIGABRT")
    assert (ran["hangs"].at, set(hung)) == ("before the call", {"hangs"})
    os.kill(hung["hangs"].pid, 9)
    os.waitpid(hung["hangs"].pid, 0)
    assert not hung["hangs"].lives()


def test_every_profile_of_the_package_is_valid() -> None:
    assert [expectations.load(name).name for name in expectations.names()] == expectations.names()


def test_a_file_builds_on_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "health.yml"
    file.write_text("profile: h100-sxm\ngpus: {count: 4}\nnetwork: {kind: efa, count: 32}\n")
    profile = expectations.load(str(file), ["limits.boot_grace_seconds=60"])
    assert (profile.gpus.count, profile.gpus.model, profile.network.count) == (4, "NVIDIA H100 80GB HBM3", 32)
    assert profile.limits.boot_grace_seconds == 60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gpus.cuont=4"], "gpus.cuont is not a known key"),
        (["gpus.count=many"], "gpus.count"),
        (["gpus"], "wanted KEY=VALUE"),
        (["nvlink.links=12"], "wanted nvlink.links = 12"),
        (["network.kind=infiniband", "network.devices=[mlx5_0]", "network.count=8"], "1 devices are listed"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(settings: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message.replace(".", r"\.")):
        expectations.load("h100-sxm", settings)
