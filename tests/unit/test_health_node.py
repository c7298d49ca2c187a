"""One pass on a node that misbehaves itself: hangs, crashes, torn and full disks, clocks, missing libraries."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from coderack.health import metrics, state
from coderack.health.history import History
from coderack.health.judge import judge
from coderack.health.node import acknowledge, examine
from coderack.health.rules.common import Case

from .data import REPOSITORY
from .health import Simulated, library, load_library, short

pytestmark = pytest.mark.simulated_node


@pytest.fixture(scope="module", autouse=True)
def _library(tmp_path_factory: pytest.TempPathFactory) -> None:
    load_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Simulated]:
    simulated = Simulated(tmp_path)
    yield simulated
    # Probes that hang are left alone by design; a test ends those that it made.
    for hung in state.load(tmp_path / "health").history.hung.values():
        if hung.lives():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(hung.pid, signal.SIGKILL)
                os.waitpid(hung.pid, 0)


def _ids(node: Simulated, after: float = 60.0) -> list[str]:
    return [f"{one.id} {one.severity.value}" for one in node.look(after).report.findings]


def test_two_hung_gpus_of_eight_leave_six_judged_and_the_deadline_kept(node: Simulated) -> None:
    node.deadline = 5.0
    for slot in (2, 5):
        node.state.set(f"gpu.{slot}.call.nvmlDeviceGetRemappedRows.sleep", "forever")
    begun = time.monotonic()
    done = node.look()
    assert time.monotonic() - begun < 15, "the hung call ends only with this test"
    assert done.report.exit_code == 3
    assert [(one.id, one.subject.gpu) for one in done.report.findings] == [("probe-hung", 2), ("probe-hung", 5)]
    assert "at: memory errors" in done.report.findings[0].seen
    assert sum(1 for probe in done.readings.gpus if probe.complete) == 6


def test_a_fault_of_a_gpu_that_answers_is_found_beside_one_that_hangs(node: Simulated) -> None:
    node.deadline = 5.0
    node.state.set("gpu.2.call.nvmlDeviceGetName.sleep", "forever").set("gpu.4.link.7.state", 0)
    done = node.look()
    assert [(one.id, one.subject.gpu) for one in done.report.findings] == [("nvlink-down", 4), ("probe-hung", 2)]
    assert done.report.exit_code == 1


def test_a_hung_probe_is_not_started_again_while_it_lives_and_is_when_it_is_gone(node: Simulated) -> None:
    node.deadline = 5.0
    node.state.set("gpu.2.call.nvmlDeviceGetName.sleep", "forever")
    node.look()
    (first,) = state.load(node.root / "health").history.hung.values()
    node.deadline = 60.0
    begun = time.monotonic()
    again = node.look(after=60)
    assert time.monotonic() - begun < 30, "nothing is waited for that is known to hang"
    assert [one.id for one in again.report.findings] == ["probe-hung"]
    assert f"process {first.pid} hangs" in again.report.findings[0].seen
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    node.state.unset("gpu.2.call.nvmlDeviceGetName.sleep")
    assert _ids(node) == []


def test_a_call_that_takes_a_second_is_waited_for(node: Simulated) -> None:
    node.state.set("gpu.2.call.nvmlDeviceGetName.sleep", "1")
    assert _ids(node) == []


def test_a_hung_probe_says_when_it_last_answered(node: Simulated) -> None:
    node.look()
    node.deadline = 5.0
    node.state.set("gpu.2.call.nvmlDeviceGetName.sleep", "forever")
    (finding,) = node.look(after=60).report.findings
    assert "an answer (last " in finding.wanted


def test_a_hung_probe_does_not_hold_the_callers_pipe(node: Simulated) -> None:
    node.state.set("gpu.2.call.nvmlDeviceGetName.sleep", "forever")
    begun = time.monotonic()
    done = _cli(node, "node", "--json", "--deadline", "5")
    assert time.monotonic() - begun < 60
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (3, "unknown")


def test_a_torn_record_costs_itself_only_and_is_reported_once(node: Simulated) -> None:
    node.look()
    node.state.set("gpu.3.link.5.recovery", 1)
    node.look(after=60)
    path = node.root / "health" / state.FILE
    lines = path.read_bytes().splitlines(keepends=True)
    middle = len(lines) // 2
    path.write_bytes(
        b"".join([*lines[:middle], lines[middle][: len(lines[middle]) // 2] + b"\n", *lines[middle + 1 :]])
    )
    found = node.look(after=60).report.findings
    assert "history-damaged" in [one.id for one in found]
    assert "history-damaged" not in [one.id for one in node.look(after=60).report.findings]


def test_a_record_torn_at_the_end_does_not_spoil_the_next_one(node: Simulated) -> None:
    node.look()
    path = node.root / "health" / state.FILE
    with path.open("ab") as file:
        file.write(b'deadbeef {"k":"run"')
    assert _ids(node) == ["history-damaged warning"]
    node.state.set("gpu.3.link.5.recovery", 3)
    assert _ids(node) == ["nvlink-recovery critical"], "the increase since the pass before is known"


@pytest.mark.parametrize("body", [b"5", b"null", b'["base"]', b"[" * 100_000])
def test_a_record_in_full_that_is_none_of_ours_is_damage_and_not_the_end(body: bytes, tmp_path: Path) -> None:
    (tmp_path / state.FILE).write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    assert state.load(tmp_path).damaged == 1


def test_a_history_that_is_no_history_is_reported_and_replaced(node: Simulated) -> None:
    (node.root / "health").mkdir()
    (node.root / "health" / state.FILE).write_bytes(os.urandom(4096))
    assert _ids(node) == ["history-damaged warning"]
    assert _ids(node) == []


def test_a_full_disk_is_a_finding_and_the_node_is_judged_all_the_same(node: Simulated) -> None:
    # A file limit makes write fail as a full disk does, also for root.
    node.state.set("gpu.3.link.5.state", 0)
    script = (
        "import resource, signal, runpy, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); sys.argv[0] = 'coderack';"
        "runpy.run_module('coderack.cli.main', run_name='__main__')"
    )
    done = _cli(node, "node", "--json", script=script)
    found = {one["id"] for one in json.loads(done.stdout)["findings"]}
    assert found == {"nvlink-down", "history-not-kept"}
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_clock_set_back_is_reported_and_changes_no_rate(node: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    node.look()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 7200)
    node.state.set("gpu.3.link.5.recovery", 3)
    found = node.look(after=60).report.findings
    assert [one.id for one in found] == ["nvlink-recovery", "clock-jumped"]
    assert "3 recoveries in 60 s" in found[0].seen


def test_a_missing_library_is_one_clear_finding(node: Simulated) -> None:
    done = _cli(node, "node", "--json", library_path="/nonexistent")
    assert [one["id"] for one in json.loads(done.stdout)["findings"]] == ["nvml-library-missing"]
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)


def test_a_missing_binding_is_one_clear_finding(node: Simulated) -> None:
    script = (
        "import sys, runpy; sys.modules['pynvml'] = None; sys.argv[0] = 'coderack';"
        "runpy.run_module('coderack.cli.main', run_name='__main__')"
    )
    done = _cli(node, "node", "--json", script=script)
    assert [one["id"] for one in json.loads(done.stdout)["findings"]] == ["nvml-binding-missing"]
    assert done.returncode == 3


def test_a_second_pass_at_the_same_time_judges_and_remembers_nothing(node: Simulated) -> None:
    node.look()
    before = (node.root / "health" / state.FILE).read_bytes()
    with state.locked(node.root / "health"):
        assert _ids(node) == ["probe-busy info"]
    assert (node.root / "health" / state.FILE).read_bytes() == before


def test_old_kernel_log_lines_are_not_counted_again(node: Simulated) -> None:
    node.log.xid(63, "Row Remapper: New row (0x1) marked for remapping", "0000:61:00")
    first = node.look()
    second = node.look(after=60)
    assert [one.id for one in first.report.findings] == ["xid-63"]
    assert "once" in second.report.findings[0].seen
    node.log.xid(63, "Row Remapper: New row (0x2) marked for remapping", "0000:61:00")
    assert "2 times" in node.look(after=60).report.findings[0].seen


def test_a_boot_ends_the_events_of_the_one_before(node: Simulated) -> None:
    node.log.xid(79, "GPU has fallen off the bus.", "0000:61:00")
    assert _ids(node) == ["xid-79 critical"]
    node.reboot()
    assert _ids(node) == []


def test_an_acknowledged_event_is_gone_and_a_new_one_is_not(node: Simulated) -> None:
    node.log.xid(79, "GPU has fallen off the bus.", "0000:61:00")
    node.look()
    assert acknowledge(node.where(), "xid-79") == 1
    assert _ids(node) == []
    node.log.xid(79, "GPU has fallen off the bus.", "0000:61:00")
    assert _ids(node) == ["xid-79 critical"]


def test_an_applications_xid_is_over_after_an_hour(node: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    node.log.xid(31, "pid=1, MMU Fault", "0000:61:00")
    assert _ids(node) == ["xid-31 warning"]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3700)
    assert _ids(node, after=3700) == []


def test_a_link_that_stays_down_is_believed_by_the_second_pass(node: Simulated) -> None:
    node.look()
    node.state.set("gpu.3.link.5.state", 0)
    assert _ids(node) == ["nvlink-down unknown"]
    assert _ids(node) == ["nvlink-down critical"]
    node.state.set("gpu.3.link.5.state", 1)
    assert _ids(node) == [], "a state clears itself"


def test_counters_begin_anew_after_a_driver_reload(node: Simulated) -> None:
    node.state.set("gpu.3.link.5.recovery", 400)
    node.look()
    node.state.set("gpu.3.link.5.recovery", 0)
    assert _ids(node) == []
    node.state.set("gpu.3.link.5.recovery", 1)
    assert _ids(node) == ["nvlink-recovery warning"]


def test_recoveries_on_three_days_predict_a_failure(node: Simulated) -> None:
    done = node.look()
    key = f"{done.readings.gpus[3].text('uuid')}/link5/recovery"
    done.history.days = {day: {key: 5.0} for day in ("2026-11-27", "2026-11-28", "2026-11-29")}
    (found,) = judge(Case(done.readings, node.where().profile, done.history))
    assert (found.id, found.subject.link, found.action.value) == ("nvlink-recovery-trend", 5, "replace")


def test_errors_in_most_of_thirty_passes_are_a_flapping_link(node: Simulated) -> None:
    # One replay every four minutes stays under every rate limit.
    for number in range(18):
        node.state.set("gpu.3.link.5.replay", number)
        done = node.look(after=240 if number else 0)
    assert [one.id for one in done.report.findings] == ["nvlink-flapping"], short(done.report.findings)


def test_rows_remapped_on_two_days_are_a_dying_memory_also_over_a_boot(
    node: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    for day in range(3):
        monkeypatch.setattr(time, "time", lambda day=day: real() + day * 86400)
        node.state.set("gpu.3.remapped.uncorrected", day)
        node.reboot(f"99999999-2222-4333-8444-55555555555{day}")
        done = node.look()
    assert [one.id for one in done.report.findings] == ["memory-dying"], short(done.report.findings)


def test_the_history_file_stays_small_and_says_the_same_when_rewritten(
    node: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_BYTES", 120_000)
    node.log.xid(63, "Row Remapper", "0000:61:00")
    for number in range(25):
        node.state.set("gpu.3.link.5.replay", number)
        done = node.look(after=60)
    kept = state.load(node.root / "health")
    assert (node.root / "health" / state.FILE).stat().st_size <= 130_000
    assert kept.damaged == 0
    assert kept.history == done.history


def test_metrics_are_a_whole_file_with_every_link_and_finding(node: Simulated) -> None:
    node.state.set("gpu.3.link.5.state", 0)
    text = metrics.render(node.look())
    uuid = "GPU-00000003-aaaa-bbbb-cccc-000000000003"
    assert 'coderack_gpu_health_verdict{verdict="unhealthy"} 1' in text
    assert f'coderack_gpu_nvlink_up{{gpu="3",uuid="{uuid}"}} 17' in text
    assert f'coderack_gpu_nvlink_recovery_total{{gpu="3",uuid="{uuid}",link="17"}} 0' in text
    assert 'coderack_gpu_health_finding{id="nvlink-down",severity="critical",action="reset",gpu="3"' in text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    typed = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == typed


def test_the_gate_closes_on_a_broken_node_and_its_last_line_says_why(node: Simulated) -> None:
    node.state.set("gpu.3.fabric.state", 2)
    done = _cli(node, "gate")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("gate CLOSED: h100-sxm: fabric-not-ready: GPU 3 (GPU-00000003-")
    assert last.endswith("next: coderack health explain fabric-not-ready")


def test_the_gate_opens_with_warnings_unless_it_is_strict(node: Simulated) -> None:
    node.state.set("gpu.3.remapped.pending", 1)
    assert _cli(node, "gate").returncode == 0
    assert _cli(node, "gate", "--strict").returncode == 1


def test_the_gate_waits_for_a_fabric_that_is_being_made(node: Simulated) -> None:
    node.uptime(60)
    node.state.set("gpu.*.fabric.state", 2)
    node.write()
    with _start(node, "gate", "--wait", "30", "--every", "1") as gate:
        time.sleep(2.5)
        assert gate.poll() is None
        node.state.set("gpu.*.fabric.state", 3).write(node.root / "state")
        assert gate.wait(15) == 0


def test_the_table_names_severity_finding_gpu_and_action(node: Simulated) -> None:
    node.state.set("gpu.3.link.5.state", 0)
    done = _cli(node, "node")
    assert done.returncode == 1
    assert all(
        word in done.stdout for word in ("critical", "nvlink-down", "GPU 3 (GPU-00000003", "reset", "0000:61:00.0")
    )


def test_the_json_report_has_its_schema_and_the_findings_fields(node: Simulated) -> None:
    node.state.set("gpu.3.link.5.state", 0)
    report = json.loads(_cli(node, "node", "--json").stdout)
    assert report["schema"] == "coderack.health-node/1"
    (finding,) = report["findings"]
    assert set(finding) == {
        "id",
        "severity",
        "subject",
        "seen",
        "wanted",
        "impact",
        "action",
        "remedy",
        "source",
        "runbook",
    }
    assert finding["subject"]["gpu"] == 3
    assert finding["subject"]["bus_id"] == "0000:61:00.0"


def test_metrics_are_written_beside_the_report(node: Simulated) -> None:
    target = node.root / "coderack_gpu.prom"
    assert _cli(node, "node", "--textfile", str(target)).returncode == 0
    assert "coderack_gpu_health_last_pass_timestamp_seconds" in target.read_text()
    assert list(node.root.glob(".coderack_gpu.prom*")) == []


def test_watch_shows_so_many_passes_and_ends_with_the_verdict(node: Simulated) -> None:
    done = _cli(node, "watch", "--passes", "2", "--every", "1")
    assert (done.returncode, done.stdout.count("healthy by profile h100-sxm")) == (0, 2)


def test_without_a_profile_the_operator_is_told_what_to_give(node: Simulated) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coderack.cli.main", "health", "node", "--profile", "h100"],
        env={"PYTHONPATH": str(REPOSITORY / "tools"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "neither a file nor one of h100-pcie, h100-sxm, h200-sxm, h200-vm, none" in done.stderr


def test_one_h200_without_nvlink_judged_as_hgx_h100_fails_for_the_right_reasons(tmp_path: Path) -> None:
    node = Simulated(tmp_path, "h200-vm")
    node.judged_as = "h100-sxm"
    found = {one.id for one in node.look().report.findings}
    assert {
        "gpu-missing",
        "gpu-model",
        "gpu-memory-size",
        "nvlink-absent",
        "fabric-unsupported",
        "nvswitch-missing",
    } <= found
    assert not {"probe-hung", "probe-crashed"} & found


def test_the_history_of_nothing_has_no_records() -> None:
    assert History().records() == []


def test_a_pass_with_everything_missing_raises_nothing(tmp_path: Path) -> None:
    node = Simulated(tmp_path)
    where = node.where(sysfs=tmp_path / "no", proc=tmp_path / "no", kmsg=tmp_path / "no")
    node.programs.joinpath("state").touch()
    assert examine(where).report.exit_code in (1, 3)


def _environment(node: Simulated, library_path: str | None) -> dict[str, str]:
    return {
        "PYTHONPATH": str(REPOSITORY / "tools"),
        "PATH": str(node.programs),
        "LC_ALL": "C.UTF-8",
        "LD_LIBRARY_PATH": library_path or str(library().parent),
        "CODERACK_LAB_NVML_STATE": str(node.root / "state"),
    }


def _command(node: Simulated, words: tuple[str, ...], script: str | None = None) -> list[str]:
    program = ["-c", script] if script else ["-m", "coderack.cli.main"]
    arguments = node.arguments()
    return [sys.executable, *program, "health", words[0], *arguments, *words[1:]]


def _cli(
    node: Simulated, *words: str, library_path: str | None = None, script: str | None = None
) -> subprocess.CompletedProcess[str]:
    node.write()
    return subprocess.run(
        _command(node, words, script),
        env=_environment(node, library_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _start(node: Simulated, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(_command(node, words), env=_environment(node, None), stdout=subprocess.DEVNULL, text=True)
