"""`coderack plan scale`: what more nodes give."""

import json
from functools import cache
from typing import Any

import pytest

from .program import run


@cache
def scaled(*words: str, code: int = 0) -> list[dict[str, Any]]:
    done, out, err = run("plan", "scale", *words, "--json")
    assert (done, err) == (code, "")
    result = json.loads(out)
    assert result["schema"] == "coderack.plan.scale/1"
    rows: list[dict[str, Any]] = result["rows"]
    return rows


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2)])
def test_gpus_are_replicas_times_data_times_tensor_times_pipeline_parallel(tensor: int, pipeline: int) -> None:
    words = ("--nodes", "1,2,4", "--tensor-parallel", str(tensor), "--pipeline-parallel", str(pipeline))
    rows = scaled(*words, "--gpu", "h200-sxm")
    for row in rows:
        sizes = row["data_parallel"] * row["tensor_parallel"] * row["pipeline_parallel"]
        assert row["replicas"] * sizes == row["gpus"] == row["nodes"] * 8
        assert row["expert_parallel_size"] == row["data_parallel"] * row["tensor_parallel"]


def test_each_number_of_nodes_is_shown_as_one_group_and_as_a_group_per_node() -> None:
    rows = scaled("--nodes", "1,2", "--tensor-parallel", "4")
    assert [(row["nodes"], row["replicas"], row["data_parallel"]) for row in rows] == [(1, 1, 2), (2, 2, 2), (2, 1, 4)]


def test_one_group_over_two_nodes_caches_far_more_and_dies_as_one() -> None:
    _, split, fused = scaled("--nodes", "1,2", "--tensor-parallel", "4")
    assert fused["requests_of_max_model_len"] > 3 * split["requests_of_max_model_len"]
    assert (split["lost_with_a_node"], fused["lost_with_a_node"]) == (0.5, 1.0)
    assert (split["experts_per_gpu"], fused["experts_per_gpu"]) == (20, 10)


def test_expert_parallel_below_the_active_experts_breaks_the_rule_with_its_reason() -> None:
    rows = scaled("--nodes", "1", "--tensor-parallel", "2", "--pipeline-parallel", "2")
    assert rows[0]["rule_holds"] is False
    assert "EP4, 8 active: EP is below the active experts" in rows[0]["rule"]
    assert "at best the busiest GPU has 2 of them to read" in rows[0]["rule"]


def test_rule_holds_from_eight_gpus_on_and_chance_still_loads_one_gpu() -> None:
    row = scaled("--nodes", "1", "--tensor-parallel", "8")[0]
    assert row["rule_holds"] is True
    assert "at best the busiest GPU has 1 of them to read, on average 2.5" in row["rule"]


def test_pipeline_stages_are_not_predicted() -> None:
    rows = scaled("--nodes", "1", "--tensor-parallel", "4", "--pipeline-parallel", "2")
    assert rows[0]["points"] == []


def test_nothing_fits_is_exit_code_one() -> None:
    rows = scaled("--nodes", "1", "--tensor-parallel", "2", code=1)
    assert rows[0]["fits"] is False
    assert "one request of 65,536 tokens needs" in rows[0]["reason"]


def test_text_has_the_reason_of_the_rule() -> None:
    code, out, _ = run("plan", "scale")
    assert code == 0
    assert "The rule: with fewer GPUs than active experts" in out
    assert "DP4 x TP4" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tensor-parallel", "3"], "TP3 x PP1 takes 3 GPUs, wanted a divisor of the 8 of a node"),
        (["--tensor-parallel", "8", "--pipeline-parallel", "2"], "TP8 x PP2 takes 16 GPUs"),
        (["--nodes", "0"], "--nodes: is '0', wanted up to 8 numbers from 1 to 64"),
        (["--nodes", "65"], "--nodes: is '65'"),
    ],
)
def test_bad_input_is_refused(words: list[str], message: str) -> None:
    code, _, err = run("plan", "scale", *words)
    assert code == 2
    assert message in err
