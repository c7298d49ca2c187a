"""`coderack nccl gate` as a user meets it."""

import json
from pathlib import Path

import pytest

from .nccl_outputs import efa_log, node, nvls_log, pair
from .program import coderack, run

NODE = ("nccl", "gate", "--ranks", "8")


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.log"
    path.write_text(node())
    return str(path)


def test_a_good_run_is_one_line_and_0(good: str) -> None:
    code, out, err = run(*NODE, "--floor", "440", good)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == (
        "all_reduce over 8 GPUs on gpu-a: 480.0 GB/s at 17179869184 bytes (floor 440), NCCL 2.27.7"
    )


def test_a_lost_nvls_is_named(tmp_path: Path) -> None:
    (tmp_path / "slow.log").write_text(node(370))
    code, out, _ = run(*NODE, "--floor", "440", str(tmp_path / "slow.log"))
    assert code == 1
    assert "NVLS lost" in out


def test_no_floor_is_3(good: str) -> None:
    code, out, _ = run(*NODE, good)
    assert code == 3
    assert "no-floor" in out


def test_json_says_what_was_expected_and_seen(good: str) -> None:
    code, out, _ = run(*NODE, "--floor", "500", "--json", good)
    report = json.loads(out)
    assert code == 1
    assert (report["schema"], report["verdict"]) == ("coderack.nccl/1", "does_not_hold")
    assert report["busbw_gb_s"] == 480.0
    assert report["expectation"]["floor"] == 500
    assert [finding["id"] for finding in report["findings"]] == ["slow"]
    assert report["nccl"]["algorithms"] == {"17179869184": ["NVLS"]}
    assert len(report["devices"]) == 8


def test_json_stays_json_where_a_rate_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "nan.log").write_text(node(480).replace("480.00", "nan"))
    code, out, _ = run(*NODE, "--floor", "440", "--json", str(tmp_path / "nan.log"))
    assert code == 1
    assert json.loads(out, parse_constant=pytest.fail)["busbw_gb_s"] is None


def test_the_logs_of_two_nodes_are_read_as_one(tmp_path: Path) -> None:
    first, second = tmp_path / "gpu-a.log", tmp_path / "gpu-b.log"
    whole = pair(efa_log())
    of_b = [line for line in whole.splitlines() if line.startswith("gpu-b:")]
    first.write_text("\n".join(line for line in whole.splitlines() if line not in of_b))
    second.write_text("\n".join(of_b))
    options = ("nccl", "gate", "--ranks", "16", "--nodes", "2", "--network", "efa", "--efa-devices", "32")
    assert run(*options, "--floor", "430", str(first), str(second))[0] == 0
    code, out, _ = run(*options, "--floor", "430", str(first))
    assert code == 3
    assert "nvls-unknown" in out


def test_stdin_of_a_pipe_is_read() -> None:
    done = coderack(*NODE, "--floor", "440", "-", stdin=node())
    assert (done.returncode, done.stderr) == (0, "")


def test_other_peoples_text_cannot_steer_the_terminal() -> None:
    output = node(
        480,
        log=nvls_log()[:-1]
        + "\n"
        + "gpu\x1b[31m-a:1:2 [0] NCCL INFO NVLS multicast support is not available on dev 9\n",
    )
    done = coderack(*NODE, "--floor", "440", "-", stdin=output)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--network", "roce"), "--network is 'roce'"),
        (("--nodes", "3"), "the same number of ranks"),
        (("--nodes", "2"), "wanted infiniband or efa"),
        (("--min-size", "lots"), "--min-size is 'lots'"),
        (("--min-size", "0G"), "--min-size is '0G'"),
    ],
)
def test_input_that_makes_no_sense_is_2(options: tuple[str, ...], message: str, good: str) -> None:
    code, _, err = run(*NODE, *options, good)
    assert code == 2
    assert message in err


def test_a_missing_file_is_2() -> None:
    code, _, err = run(*NODE, "/nowhere/all_reduce.log")
    assert code == 2
    assert "/nowhere/all_reduce.log cannot be read" in err
