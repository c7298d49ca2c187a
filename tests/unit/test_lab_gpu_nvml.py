"""The simulated NVML through the real nvidia-ml-py: faults by key, waits, counters, changes while it runs."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coderack_lab import gpu
from coderack_lab.errors import BadInput
from coderack_lab.gpu.profiles import LINK_SPEED_MBPS, LINKS
from coderack_lab.gpu.state import State

from .nvml_calls import Node, Request, ask, start

SPEED, LINK_STATE, RECOVERY, REMAP_PENDING, RECOVERY_ACTION, SHUTDOWN_TLIMIT = 164, 165, 162, 144, 230, 193


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.close()


# ---- healthy profiles ----


@pytest.mark.parametrize(
    ("name", "model", "numbers", "speeds"),
    [
        ("h100-sxm-8", "NVIDIA H100 80GB HBM3", (0x233010DE, 81559), [LINK_SPEED_MBPS] * 18),
        ("h200-sxm-8", "NVIDIA H200", (0x233510DE, 143771), [LINK_SPEED_MBPS] * 18),
        # azurehpc-health-checks #162: 12 of 18 by design
        (
            "h100-pcie-8",
            "NVIDIA H100 PCIe",
            (0x233110DE, 81559),
            [0 if i in (4, 5, 10, 11, 16, 17) else 26562 for i in range(18)],
        ),
    ],
)
def test_a_profile_is_eight_gpus_of_one_model(
    node: Node, name: str, model: str, numbers: tuple[int, int], speeds: list[int]
) -> None:
    state = gpu.profile(name)
    requests: list[Request] = [("nvmlDeviceGetName", []), ("nvmlDeviceGetPciInfo", []), ("nvmlDeviceGetUUID", [])]
    requests += [("nvmlDeviceGetMemoryInfo", []), ("fields", [[SPEED, link] for link in range(LINKS)])]
    uuids, buses = set(), set()
    for slot in range(8):
        seen = node.values(state, *requests, slot=slot)
        assert seen[0] == model
        assert (seen[1]["pciDeviceId"], seen[3]["total"] >> 20) == numbers
        assert [item["ull"] for item in seen[4]] == speeds
        uuids.add(seen[2])
        buses.add(seen[1]["busId"])
    assert len(uuids) == len(buses) == node.value(state, "nvmlDeviceGetCount") == 8


def test_links_of_every_gpu_spread_over_four_switches_in_the_same_pattern(node: Node) -> None:
    # nccl #1453: 4, 5, 4, 5 links to the switches.
    state = gpu.profile("h100-sxm-8")
    ports: set[tuple[str, int]] = set()
    for slot in range(8):
        remotes = node.values(state, *[("nvmlDeviceGetNvLinkRemotePciInfo", [n]) for n in range(LINKS)], slot=slot)
        buses = [remote["busId"] for remote in remotes]
        assert sorted(buses.count(bus) for bus in set(buses)) == [4, 4, 5, 5]
        numbers = node.value(state, "fields", *[[146, n] for n in range(LINKS)], slot=slot)
        ports |= {(bus, item["ull"]) for bus, item in zip(buses, numbers, strict=True)}
    assert len(ports) == 8 * LINKS  # no two links end in the same port of a switch


def test_fabric_of_a_switched_node_is_completed_and_of_a_vm_not_supported(node: Node) -> None:
    assert node.value(gpu.profile("h100-sxm-8"), "fabric", "c_nvmlGpuFabricInfo_v3_t") == {
        "version": 0x3000028,
        "clusterUuid": "0" * 32,
        "status": 0,
        "cliqueId": 0,
        "state": 3,
        "healthMask": 0,
        "healthSummary": 0,
    }
    assert node.value(gpu.profile("h200-vm-1"), "fabric", "c_nvmlGpuFabricInfo_v2_t")["state"] == 0


def test_a_link_beyond_the_last_is_no_argument_and_one_that_is_not_there_not_supported(node: Node) -> None:
    calls: list[Request] = [("nvmlDeviceGetNvLinkState", [17]), ("nvmlDeviceGetNvLinkState", [18])]
    calls.append(("fields", [[SPEED, 17], [SPEED, 18]]))
    up, beyond, items = node.values(gpu.profile("h100-sxm-8"), *calls)
    assert (up, beyond, [item["ret"] for item in items]) == (1, "NVMLError_InvalidArgument:2", [0, 2])
    none, beyond, items = node.values(gpu.profile("h200-vm-1"), *calls)
    assert (none, beyond) == ("NVMLError_NotSupported:3", "NVMLError_InvalidArgument:2")
    assert [item["ret"] for item in items] == [3, 2]


# ---- faults by key ----


def test_one_link_down_shows_in_the_call_and_in_the_field_of_that_link_only(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.3.link.5.state", 0).set("gpu.3.link.5.speed_mbps", 0)
    states = node.values(state, *[("nvmlDeviceGetNvLinkState", [n]) for n in range(LINKS)], slot=3)
    assert states == [0 if n == 5 else 1 for n in range(LINKS)]
    assert node.field(state, LINK_STATE, 5, slot=3) == (0, 1, 0)
    assert node.field(state, SPEED, 5, slot=3) == (0, 1, 0)
    assert node.field(state, SPEED, 5, slot=2) == (0, 1, LINK_SPEED_MBPS)


def test_an_item_fails_alone_in_its_batch(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.0.link.7.recovery", gpu.error("UNKNOWN"))
    items = node.value(state, "fields", *[[RECOVERY, n] for n in range(LINKS)])
    assert [item["ret"] for item in items] == [999 if n == 7 else 0 for n in range(LINKS)]


@pytest.mark.parametrize(
    ("key", "new", "asked", "seen"),
    [
        ("gpu.0.remapped.pending", 1, ("nvmlDeviceGetRemappedRows", []), [0, 0, 1, 0]),
        ("gpu.0.remapped.failure", 1, ("nvmlDeviceGetRemappedRows", []), [0, 0, 0, 1]),
        ("gpu.0.ecc.pending", 0, ("nvmlDeviceGetEccMode", []), [1, 0]),
        ("gpu.0.ecc.total.uncorrected.volatile", 3, ("nvmlDeviceGetTotalEccErrors", [1, 0]), 3),
        ("gpu.0.mig.mode", 1, ("nvmlDeviceGetMigMode", []), [1, 0]),
        ("gpu.0.pcie.gen", 3, ("nvmlDeviceGetCurrPcieLinkGeneration", []), 3),
        ("gpu.0.pcie.width", 8, ("nvmlDeviceGetCurrPcieLinkWidth", []), 8),
        ("gpu.0.clocks.reasons", "0x40", ("nvmlDeviceGetCurrentClocksEventReasons", []), 0x40),
        ("gpu.0.clocks.application.sm", 1200, ("nvmlDeviceGetApplicationsClock", [1]), 1200),
        ("gpu.0.temperature.margin", -3, ("nvmlDeviceGetMarginTemperature", []), -3),
        ("gpu.0.repair.channel_pending", 1, ("nvmlDeviceGetRepairStatus", []), [1, 0]),
        ("gpu.0.p2p.6.2", 5, ("nvmlDeviceGetP2PStatus", [6, 2]), 5),
        ("gpu.0.persistence_mode", 0, ("nvmlDeviceGetPersistenceMode", []), 0),
        ("gpu.0.power.enforced_limit", 500000, ("nvmlDeviceGetEnforcedPowerLimit", []), 500000),
        ("gpu.0.vbios_version", "96.00.00.00.00", ("nvmlDeviceGetVbiosVersion", []), "96.00.00.00.00"),
        (
            "gpu.0.inforom.valid",
            "error CORRUPTED_INFOROM",
            ("nvmlDeviceValidateInforom", []),
            "NVMLError_CorruptedInforom:14",
        ),
        ("gpu.0.temperature.gpu", "error GPU_IS_LOST", ("nvmlDeviceGetTemperature", [0]), "NVMLError_GpuIsLost:15"),
        ("gpu.*.link.*.replay", 9, ("nvmlDeviceGetNvLinkErrorCounter", [4, 0]), 9),
        ("system.driver_version", "575.57.08", ("nvmlSystemGetDriverVersion", []), "575.57.08"),
    ],
)
def test_a_key_changes_its_call(node: Node, key: str, new: str | int, asked: Request, seen: Any) -> None:
    assert node.values(gpu.profile("h100-sxm-8").set(key, new), asked) == [seen]


@pytest.mark.parametrize(
    ("key", "new", "number", "seen"),
    [
        ("gpu.0.remapped.pending", 1, REMAP_PENDING, (0, 3, 1)),
        ("gpu.0.recovery_action", 2, RECOVERY_ACTION, (0, 1, 2)),
        ("gpu.0.tlimit.shutdown", -8, SHUTDOWN_TLIMIT, (0, 5, 0xFFFFFFF8)),  # signed, as captured
        ("gpu.0.field.230", "error NOT_SUPPORTED", RECOVERY_ACTION, (3, 1, 0)),
        ("gpu.0.field.274", 7, 274, (0, 0, 0x401C000000000000)),  # a field without a type is a double
    ],
)
def test_a_key_changes_its_field(node: Node, key: str, new: str | int, number: int, seen: tuple[int, int, int]) -> None:
    assert node.field(gpu.profile("h100-sxm-8").set(key, new), number) == seen


def test_a_field_that_the_driver_does_not_know_is_no_argument(node: Node) -> None:
    assert node.field(gpu.profile("h100-sxm-8").unset("gpu.*.field.230"), RECOVERY_ACTION) == (2, 1, 0)


def test_sram_status_carries_buckets_and_threshold(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.1.sram.threshold_exceeded", 1).set("gpu.1.sram.bucket.l2", 5)
    status = node.value(state, "sram", slot=1)
    assert (status["bThresholdExceeded"], status["aggregateUncBucketL2"], status["aggregateUncBucketSm"]) == (1, 5, 0)


def test_fabric_in_progress_and_a_health_mask(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.2.fabric.state", 2).set("gpu.2.fabric.health_mask", "0x81")
    state.set("gpu.2.fabric.cluster_uuid", "0123456789abcdef" * 2)
    info = node.value(state, "fabric", "c_nvmlGpuFabricInfo_v3_t", slot=2)
    assert (info["state"], info["healthMask"], info["clusterUuid"]) == (2, 0x81, "0123456789abcdef" * 2)


def test_running_processes_are_listed(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.0.processes", "4711:1048576 4712:2097152")
    found = node.value(state, "nvmlDeviceGetComputeRunningProcesses")
    assert [(each["pid"], each["usedGpuMemory"]) for each in found] == [(4711, 1048576), (4712, 2097152)]
    assert node.value(state, "nvmlDeviceGetComputeRunningProcesses", slot=1) == []


# ---- whole calls and lost GPUs ----


def test_a_lost_gpu_fails_in_every_call_and_its_neighbours_do_not(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.5.call.*.error", "GPU_IS_LOST")
    assert node.value(state, "nvmlDeviceGetHandleByIndex", 5) == "NVMLError_GpuIsLost:15"
    assert node.value(state, "nvmlDeviceGetPowerUsage", slot=5) == "NVMLError_GpuIsLost:15"
    assert node.value(state, "nvmlDeviceGetPowerUsage", slot=4) == 79021
    assert node.value(state, "nvmlDeviceGetCount") == 8


def test_a_gpu_that_is_gone_moves_the_others_up(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").remove_gpu(3)
    assert node.value(state, "nvmlDeviceGetCount") == 7
    assert node.value(state, "nvmlDeviceGetUUID", slot=3) == state.get("gpu.4.uuid")
    assert node.value(state, "nvmlDeviceGetIndex", slot=3) == 3
    assert node.value(state, "nvmlDeviceGetHandleByUUID", state.get("gpu.3.uuid")) == "NVMLError_NotFound:6"
    assert node.value(gpu.profile("none"), "nvmlDeviceGetCount") == 0


def test_a_handle_is_found_by_bus_id_as_programs_write_it(node: Node) -> None:
    state = gpu.profile("h100-sxm-8")
    for name in ("00000000:61:00.0", "0000:61:00.0"):
        assert node.value(state, "nvmlDeviceGetHandleByPciBusId", name) is None
    assert node.value(state, "nvmlDeviceGetHandleByPciBusId", "0000:62:00.0") == "NVMLError_NotFound:6"


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("DRIVER_NOT_LOADED", "NVMLError_DriverNotLoaded:9"),
        ("LIB_RM_VERSION_MISMATCH", "NVMLError_LibRmVersionMismatch:18"),
        ("999", "NVMLError_Unknown:999"),
    ],
)
def test_nvml_refuses_to_start(tmp_path: Path, code: str, seen: str) -> None:
    state = gpu.profile("h100-sxm-8").set("call.nvmlInitWithFlags.error", code)
    answers = ask(gpu.simulated(state, tmp_path), [("nvmlInit", []), ("nvmlDeviceGetCount", [])])
    assert [answer["error"] for answer in answers] == [seen, "NVMLError_Uninitialized:1"]


def test_a_node_without_the_library(tmp_path: Path) -> None:
    answers = ask(gpu.without_library(tmp_path), [("nvmlInit", []), ("nvmlDeviceGetCount", [])])
    assert [answer["error"] for answer in answers] == ["NVMLError_LibraryNotFound:12", "NVMLError_Uninitialized:1"]


def test_a_call_that_an_older_driver_lacks(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("call.nvmlDeviceGetGpuFabricInfoV.absent", True)
    assert node.value(state, "fabric", "c_nvmlGpuFabricInfo_v2_t") == "NVMLError_FunctionNotFound:13"
    # Not exported at all: nvidia-ml-py finds no symbol and says the same.
    assert node.value(state, "nvmlDeviceGetFanSpeed") == "NVMLError_FunctionNotFound:13"


def test_error_texts_are_nvmls(node: Node) -> None:
    texts = node.values(gpu.profile("none"), ("nvmlErrorString", [15]), ("nvmlErrorString", [18]))
    assert texts == ["GPU is lost", "Driver/library version mismatch"]


# ---- time ----


def test_a_counter_rises_with_time_from_where_the_state_was_made(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.0.link.3.recovery", gpu.rising(100, 1000))
    state.set("epoch", f"{time.time() - 60:.3f}")
    code, _, count = node.field(state, RECOVERY, 3)
    assert code == 0
    assert 60_100 <= count < 600_000
    assert node.value(state, "nvmlDeviceGetNvLinkErrorCounter", 3, 1) >= count


def test_a_slow_call_takes_its_time_and_then_answers(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.0.call.nvmlDeviceGetPowerUsage.sleep", 0.4)
    begin = time.monotonic()
    assert node.value(state, "nvmlDeviceGetPowerUsage") == 79021
    assert time.monotonic() - begin >= 0.4


def test_costs_are_spent_per_call_and_per_field(node: Node) -> None:
    state = gpu.with_real_costs(gpu.profile("h100-sxm-8"), link_field_us=10_000)
    state.set("gpu.0.call.nvmlDeviceGetPowerUsage.cost_us", 50_000)
    begin = time.monotonic()
    node.values(state, ("nvmlDeviceGetPowerUsage", []), ("fields", [[SPEED, n] for n in range(LINKS)]))
    assert time.monotonic() - begin >= 0.050 + LINKS * 0.010


def wait_until_blocked(process: subprocess.Popen[str]) -> None:
    """Until the process blocks every signal: it has arrived in the call that does not return."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        status = Path(f"/proc/{process.pid}/status").read_text()
        blocked = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:"))
        if blocked & 1 << (signal.SIGTERM - 1):
            return
        time.sleep(0.02)
    pytest.fail("the call that never returns was not reached")


def test_a_call_that_never_returns_ignores_sigterm_until_the_state_is_repaired(tmp_path: Path) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.0.call.nvmlDeviceGetPowerUsage.sleep", "forever")
    environment = gpu.simulated(state, tmp_path)
    process = start(environment, [("nvmlDeviceGetName", []), ("nvmlDeviceGetPowerUsage", [])])
    try:
        wait_until_blocked(process)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        state.unset("gpu.0.call.nvmlDeviceGetPowerUsage.sleep").write(tmp_path / "state")
        assert process.wait(timeout=20) == -signal.SIGTERM  # the signal that waited is delivered now
    finally:
        process.kill()
        process.communicate()


def test_a_hung_call_ends_when_the_state_is_taken_away(tmp_path: Path) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.*.call.nvmlDeviceGetPowerUsage.sleep", "forever")
    process = start(gpu.simulated(state, tmp_path), [("nvmlDeviceGetPowerUsage", [])])
    try:
        wait_until_blocked(process)
        (tmp_path / "state").unlink()
        out, err = process.communicate(timeout=20)
        assert '"value": 79021' in out, err
    finally:
        process.kill()
        process.communicate()


def test_a_changed_state_is_seen_by_a_library_that_is_loaded(tmp_path: Path) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.0.call.nvmlDeviceGetTemperature.sleep", "forever")
    process = start(
        gpu.simulated(state, tmp_path), [("nvmlDeviceGetTemperature", [0]), ("nvmlDeviceGetPowerUsage", [])]
    )
    try:
        wait_until_blocked(process)
        changed = state.copy().unset("gpu.0.call.nvmlDeviceGetTemperature.sleep")
        changed.set("gpu.0.power.usage", 650_000).set("gpu.0.temperature.gpu", 71).write(tmp_path / "state")
        out, err = process.communicate(timeout=20)
        assert '"value": 71' in out, err
        assert '"value": 650000' in out
    finally:
        process.kill()
        process.communicate()


# ---- the state file itself ----


def test_without_a_state_file_there_is_no_driver(tmp_path: Path) -> None:
    environment = gpu.simulated(gpu.profile("none"), tmp_path)
    (tmp_path / "state").unlink()
    assert ask(environment, [("nvmlInit", [])])[0]["error"] == "NVMLError_DriverNotLoaded:9"


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    environment = gpu.simulated(gpu.profile("none"), tmp_path)
    (tmp_path / "state").write_text("slots = 0\nthis is no reading\n")
    process = start(environment, [("nvmlInit", [])])
    out, err = process.communicate(timeout=20)
    assert "NVMLError_Unknown:999" in out
    assert 'line 2 is "this is no reading"; wanted: key = value' in err


def test_the_library_and_the_tests_side_agree_which_key_holds(node: Node) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.*.link.5.replay", 1).set("gpu.3.link.*.replay", 2)
    for slot, link in ((3, 5), (3, 4), (2, 5), (2, 4)):
        seen = node.value(state, "nvmlDeviceGetNvLinkErrorCounter", link, 0, slot=slot)
        assert str(seen) == state.get(f"gpu.{slot}.link.{link}.replay")


def test_a_state_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    state = gpu.profile("h100-sxm-8").set("gpu.3.name", "a = b, with # and spaces")
    assert State.read(state.write(tmp_path / "state")).text() == state.text()


@pytest.mark.parametrize(
    ("path", "new"), [("gpu 3.name", "x"), ("gpu..name", "x"), ("gpu.3.name", ""), ("gpu.3.name", "a\nb")]
)
def test_a_key_or_value_that_the_library_could_not_read_is_refused(path: str, new: str) -> None:
    with pytest.raises(BadInput):
        gpu.profile("none").set(path, new)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="h100-sxm-8"):
        gpu.profile("b200")
