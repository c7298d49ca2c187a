import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from coderack.cli.main import app
from coderack.spec.hardware import GPUS

from .data import PROFILES, profile_data


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def written(folder: Path, name: str = "mine", **changes: Any) -> str:
    """A profile file with changed keys per part; its path."""
    data = profile_data("fused-16") | {"name": name}
    for part, values in changes.items():
        data[part] = data[part] | values
    path = folder / f"{name}.yml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


SEED = {"mode": "split", "nodes": 1, "data_parallel": 4}


def test_check_tells_that_a_profile_fits_and_what_each_gpu_holds() -> None:
    result = plan("check", "fused-16", "--profiles-dir", str(PROFILES))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].endswith("8 data parallel x 2 tensor parallel, expert parallel on: fits")
    assert "at least 25.6 GiB are left" in lines[1]
    for piece in ("experts", "27.25", "CUDA graphs", "KV cache", "126,976", "216,576 - 246,704 - 271,056", "8 rank(s)"):
        assert piece in result.stdout


def test_check_as_json_has_every_part_as_a_range_in_bytes() -> None:
    result = plan("check", "split-8", "--profiles-dir", str(PROFILES), "--json")
    body = json.loads(result.stdout)
    assert (body["schema"], body["verdict"], body["fits"]) == ("coderack.plan.check/1", "fits", True)
    parts = {part["key"]: part["size"] for part in body["memory"]["parts"]}
    assert parts["experts"]["low"] == parts["experts"]["high"] == pytest.approx(58.52e9, rel=0.001)
    assert parts["graphs"]["low"] < parts["graphs"]["expected"] < parts["graphs"]["high"]
    assert body["memory"]["kv"]["bytes_per_token"] == 31744
    assert body["nearest"] == []


def test_check_names_what_would_fit_and_its_costs(tmp_path: Path) -> None:
    result = plan("check", written(tmp_path, layout=SEED))
    assert result.exit_code == 1
    assert "does not fit" in result.stdout.splitlines()[0]
    assert "Fits: layout.data_parallel 2, layout.tensor_parallel 4." in result.stdout
    assert "Cost: requests beyond 45,056 tokens are refused." in result.stdout
    body = json.loads(plan("check", written(tmp_path, layout=SEED), "--json").stdout)
    assert [rung["name"] for rung in body["nearest"]] == ["shorter requests", "tensor_parallel 2 to 4"]
    assert len(body["nearest"][0]["costs"]) == 4


def test_check_refuses_tp6_with_its_reason(tmp_path: Path) -> None:
    result = plan("check", written(tmp_path, layout=SEED | {"data_parallel": 1, "tensor_parallel": 6}))
    assert result.exit_code == 1
    assert "8 key/value heads neither divide by it nor into it; wanted one of 1, 2, 4, 8" in result.stdout
    assert "Fits: layout.tensor_parallel 8." in result.stdout


def test_check_without_a_way_out_gives_advice() -> None:
    result = plan("check", "solo-8", "--profiles-dir", str(PROFILES), "--gpu", "l40s")
    assert result.exit_code == 1
    assert "shorten the prompts instead" in result.stdout


def test_fit_shows_the_ladder_and_its_first_rung_that_fits(tmp_path: Path) -> None:
    result = plan("fit", written(tmp_path, layout=SEED))
    assert result.exit_code == 0
    assert "First that fits: limits.max_model_len 45056" in result.stdout
    marked = [line for line in result.stdout.splitlines() if line.lstrip().startswith(">")]
    assert len(marked) == 1
    assert "shorter requests" in marked[0]


def test_fit_as_json_lists_the_rungs_in_order(tmp_path: Path) -> None:
    body = json.loads(plan("fit", written(tmp_path, layout=SEED), "--json").stdout)
    assert (body["schema"], body["fits"], body["advice"]) == ("coderack.plan.fit/1", True, None)
    assert body["rungs"][0]["name"] == "as it is"
    assert body["first"]["settings"] == {"limits.max_model_len": "45056"}


def test_fit_that_finds_nothing_ends_with_1_and_advice() -> None:
    result = plan("fit", "solo-8", "--profiles-dir", str(PROFILES), "--gpu", "l40s")
    assert result.exit_code == 1
    assert "No step fits: shorten the prompts" in result.stdout


def test_args_prints_a_line_per_node_for_the_shell() -> None:
    result = plan("args", "yarn-1m", "--profiles-dir", str(PROFILES), "--address", "10.0.0.1", "--address", "10.0.0.2")
    assert result.exit_code == 0
    head, other = (shlex.split(line) for line in result.stdout.splitlines())
    assert head[:2] == other[:2] == ["vllm", "serve"]
    assert head[head.index("--host") + 1] == "10.0.0.1"
    assert other[-3:] == ["--headless", "--data-parallel-start-rank", "1"]
    assert json.loads(head[head.index("--hf-overrides") + 1])["max_position_embeddings"] == 1048576


def test_args_of_one_node_as_json() -> None:
    result = plan(
        "args", "split-8", "--profiles-dir", str(PROFILES), "--address", "10.0.0.1", "--address", "10.0.0.2",
        "--node", "1", "--port", "9000", "--json",
    )  # fmt: skip
    body = json.loads(result.stdout)
    assert body["schema"] == "coderack.plan.args/1"
    (node,) = body["nodes"]
    assert (node["node"], node["address"]) == (1, "10.0.0.2")
    assert node["arguments"][node["arguments"].index("--port") + 1] == "9000"


BAD: dict[str, tuple[list[str], str]] = {
    "unknown profile": (["check", "nope"], "a name in"),
    "unknown GPU": (["check", "fused-16", "--gpu", "b300"], f"wanted one of {', '.join(GPUS)}"),
    "model that is not shipped": (["check", "lab-smollm2"], "give the one that lies beside the weights"),
    "config that is missing": (["check", "fused-16", "--model-config", "/nonexistent/config.json"], "cannot be read"),
    "no address": (["args", "fused-16"], "--address"),
    "too few addresses": (["args", "fused-16", "--address", "a"], "wanted one for each, the head first"),
    "no such node": (["args", "solo-8", "--address", "a", "--node", "1"], "--node is 1, wanted 0 to 0"),
    "an address that is none": (["args", "solo-8", "--address", "a b"], "--address is 'a b', wanted a node's"),
    "an empty address": (["args", "solo-8", "--address", ""], "--address is '', wanted a node's"),
    "one address for two nodes": (
        ["args", "fused-16", "--address", "a", "--address", "a"],
        "--address is a, a, wanted another one for each node",
    ),
    "one port for two servers": (
        ["args", "solo-8", "--address", "a", "--port", "13345"],
        "--port and --rpc-port are both 13345, wanted two",
    ),
    "no GPUs": (["check", "fused-16", "--gpus-per-node", "0"], "--gpus-per-node"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_ends_with_2_and_says_what_is_wanted(arguments: list[str], message: str) -> None:
    result = plan(*arguments, "--profiles-dir", str(PROFILES))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "input should be a valid dictionary"),
    "not YAML": (b"name: [", "is not YAML"),
    "not text": (b"\xff\xfe", "is not YAML"),
    "a list": (b"- a\n", "input should be a valid dictionary"),
    "huge": (b"#" * (2**20 + 1), "has more than 1048576 bytes"),
    "unsafe YAML": (b"!!python/object/apply:os.getcwd []\n", "is not YAML"),
}


@pytest.mark.parametrize(("content", "message"), FILES.values(), ids=FILES.keys())
def test_a_file_that_is_no_profile_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_bytes(content)
    result = plan("check", str(path))
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert message in result.stderr


def test_a_cache_type_that_cannot_be_counted_is_bad_input(tmp_path: Path) -> None:
    result = plan("check", written(tmp_path, limits={"kv_cache_dtype": "nvfp4"}))
    assert result.exit_code == 2
    assert "whose size is not known" in result.stderr
