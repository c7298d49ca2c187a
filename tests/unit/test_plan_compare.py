"""`coderack plan compare`, its measurement files and its page."""

import json
import re
import xml.etree.ElementTree as ET
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from coderack.plan.assumptions import NAMES, assumptions
from coderack.plan.charts import chart, short
from coderack.plan.layouts import GroupLayout, group_layouts
from coderack.plan.measurements import Measurements, apply
from coderack.spec.checked import SpecError, validate

from .program import run

MEASURED: dict[str, Any] = {
    "version": 1,
    "name": "two nodes",
    "source": "a run",
    "gpu": "h100-sxm",
    "assumptions": {"fabric_us": 62, "memory_share": {"expected": 0.85, "best": 0.9, "worst": 0.8}},
}


@cache
def compared(*words: str, code: int = 0) -> dict[str, Any]:
    done, out, err = run("plan", "compare", *words, "--json")
    assert (done, err) == (code, "")
    result: dict[str, Any] = json.loads(out)
    assert result["schema"] == "coderack.plan.compare/1"
    return result


def refused(*words: str) -> str:
    code, out, err = run("plan", "compare", *words)
    assert (code, out) == (2, "")
    return err


def file(folder: Path, data: object) -> str:
    path = folder / "measured.yml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return str(path)


# Layouts --------------------------------------------------------------------------------------------------------


def test_layouts_use_all_gpus_and_keep_tensor_parallel_groups_inside_a_node() -> None:
    layouts = list(group_layouts(16, 8, experts=True))
    assert {one.all_gpus for one in layouts} == {16}
    assert {(one.tensor_parallel, one.nodes) for one in layouts} == {(t, n) for t in (1, 2, 4, 8) for n in (1, 2)}
    assert len(layouts) == len(set(layouts)) == 16


def test_a_dense_model_has_no_experts_to_spread() -> None:
    assert not any(one.expert_parallel for one in group_layouts(8, 8, experts=False))


@pytest.mark.parametrize(("gpus", "per_node"), [(12, 8), (9, 8), (0, 8)])
def test_half_filled_nodes_are_refused(gpus: int, per_node: int) -> None:
    with pytest.raises(ValueError, match=f"{gpus} GPUs do not fill nodes of {per_node}"):
        list(group_layouts(gpus, per_node, experts=True))


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (GroupLayout(2, 8, True, 2, 1), "DP8 TP2 EP16"),
        (GroupLayout(8, 1, True, 1, 2), "2 x TP8 EP8"),
        (GroupLayout(4, 2, False, 1, 1), "DP2 TP4"),
    ],
)
def test_layouts_are_named_as_people_say_them(layout: GroupLayout, name: str) -> None:
    assert layout.name == name


# What the verb says ---------------------------------------------------------------------------------------------


def test_sixteen_gpus_one_request_is_fastest_in_one_node_and_every_layout_that_fits_is_ranked() -> None:
    result = compared("--gpus", "16")
    first = result["rankings"][0]
    assert first["concurrency"] == 1
    assert first["layouts"][0] == "2 x TP8 EP8"
    assert first["first_under"] == dict.fromkeys(("expected", "best", "worst"), "2 x TP8 EP8")
    assert sorted(first["layouts"]) == sorted(one["name"] for one in result["layouts"])
    assert {"DP8 TP2 EP16", "DP4 TP4 EP16"} <= set(first["layouts"])


def test_ranking_is_by_the_time_of_a_request() -> None:
    result = compared("--gpus", "16", "--concurrency", "8")
    by_name = {one["name"]: one["points"][0]["expected"]["request_ms"] for one in result["layouts"]}
    times = [by_name[name] for name in result["rankings"][0]["layouts"]]
    assert times == sorted(times)


def test_eight_gpus_refuse_dp4_tp2_at_64k_and_name_what_fits() -> None:
    result = compared("--gpus", "8")
    one = next(one for one in result["too_large"] if one["names"] == ["DP4 TP2 EP8"])
    assert "one request of 65,536 tokens needs 7.8 GiB of KV cache per GPU" in one["reasons"][0]
    assert any("--kv-cache-dtype fp8 it fits" in reason for reason in one["reasons"])
    assert "as it is, DP2 TP4 EP8 is the nearest that fits" in one["reasons"]


def test_tensor_parallel_six_is_refused_with_the_values_that_work() -> None:
    result = compared("--gpus", "16")
    reasons = next(one["reasons"] for one in result["illegal"] if one["names"] == ["TP6"])
    assert "8 key/value heads neither divide by it nor into it; wanted one of 1, 2, 4, 8" in reasons[0]
    assert reasons[1] == "the 8 GPUs of a node are no multiple of 6"


def test_what_nobody_has_measured_is_not_predicted() -> None:
    reasons = {name: one["reasons"] for one in compared("--gpus", "8")["illegal"] for name in one["names"]}
    assert "slices of 320 columns cut the FP8 blocks of 128 x 128" in reasons["TP8"][0]


def test_an_eight_bit_cache_lets_the_layout_fit() -> None:
    result = compared("--gpus", "8", "--kv-cache-dtype", "fp8")
    assert "DP4 TP2 EP8" in {one["name"] for one in result["layouts"]}


def test_fused_groups_need_a_network() -> None:
    result = compared("--gpus", "16", "--fabric", "none")
    assert all(one["mode"] == "split" for one in result["layouts"])
    reasons = {name: one["reasons"] for one in result["illegal"] for name in one["names"]}
    assert "the nodes have no network for collectives" in reasons["DP8 TP2 EP16"][0]


def test_a_slower_network_slows_fused_layouts_only() -> None:
    def tokens(fabric: str) -> dict[str, float]:
        result = compared("--gpus", "16", "--concurrency", "1", "--fabric", fabric)
        return {one["name"]: one["points"][0]["expected"]["tpot_ms"] for one in result["layouts"]}

    infiniband, efa = tokens("infiniband-ndr"), tokens("efa")
    assert efa["2 x TP8 EP8"] == infiniband["2 x TP8 EP8"]
    assert efa["DP8 TP2 EP16"] > infiniband["DP8 TP2 EP16"] + 5


def test_requests_beyond_the_cache_wait() -> None:
    result = compared("--gpus", "8", "--prompt", "60000", "--concurrency", "32")
    one = next(one for one in result["layouts"] if one["name"] == "TP8 EP8")
    assert one["points"][0]["running"] == one["requests_at_once"] < 32


def test_nothing_fits_is_exit_code_one() -> None:
    result = compared("--gpus", "8", "--gpu", "a100-40-sxm", code=1)
    assert result["layouts"] == []
    assert result["rankings"][0]["first_under"] == {}


def test_text_says_what_is_first_what_does_not_go_and_on_what_it_stands() -> None:
    code, out, _ = run("plan", "compare", "--gpus", "16")
    assert code == 0
    assert "2 x TP8 EP8 is first under all best and all worst assumptions too." in out
    assert "Predicted, not measured" in out
    for name in NAMES:
        assert name in out


def test_measured_gpu_shows_how_far_off_the_prediction_is() -> None:
    result = compared("--gpus", "8", "--gpu", "h200-sxm")
    assert result["measurements"] == ["one H200"]
    assert len(result["checked"]) == 22
    assert all(abs(one["error"]) < 0.09 for one in result["checked"])


def test_another_model_is_taken_from_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "qwen3-30b-a3b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_30B))
    result = compared("--gpus", "8", "--max-model-len", "32768", "--model-config", str(folder / "config.json"))
    assert result["model"] == "qwen3-30b-a3b"
    assert {"DP8 TP1 EP8", "TP8 EP8", "TP8"} <= {one["name"] for one in result["layouts"]}


# Qwen/Qwen3-30B-A3B, config.json
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "12"], "12 GPUs do not fill nodes of 8"),
        (["--gpus", "8", "--gpu", "b200"], "--gpu: is 'b200', wanted one of h100-sxm"),
        (["--gpus", "8", "--fabric", "wifi"], "--fabric: is 'wifi', wanted one of infiniband-ndr"),
        (["--gpus", "8", "--concurrency", "1,x"], "--concurrency: is '1,x', wanted up to 8 numbers from 1 to 4096"),
        (["--gpus", "8", "--concurrency", ""], "--concurrency: is '', wanted up to 8 numbers"),
        (["--gpus", "8", "--concurrency", "0"], "--concurrency: is '0', wanted up to 8 numbers"),
        (["--gpus", "8", "--concurrency", "٣"], "--concurrency: is '٣', wanted up to 8 numbers"),
        (["--gpus", "8", "--cached", "8192"], "--cached: is 8192, wanted less than --prompt 8192"),
        (["--gpus", "8", "--kv-cache-dtype", "q8"], "is q8, a llama.cpp name; vLLM's is fp8"),
        (["--gpus", "8", "--max-num-batched-tokens", "32"], "wanted at least limits.max_num_seqs = 64"),
        (["--gpus", "8", "--prompt", "70000"], "--prompt and --output: are 70,128 tokens together, wanted at most"),
        (["--gpus", "8", "--max-model-len", "262145"], "and qwen3-coder-480b-fp8 knows 262,144 positions"),
        (["--gpus", "8", "--model-config", "/nowhere/config.json"], "/nowhere/config.json: cannot be read"),
    ],
)
def test_bad_input_is_refused_with_what_was_wanted(words: list[str], message: str) -> None:
    assert message in refused(*words)


# Measurement files ----------------------------------------------------------------------------------------------


def test_a_measurement_takes_the_place_of_an_assumption_and_says_so(tmp_path: Path) -> None:
    result = compared("--gpus", "16", "--measurements", file(tmp_path, MEASURED))
    one = result["assumptions"]["fabric_us"]
    assert (one["expected"], one["best"], one["worst"]) == (62, 62, 62)
    assert one["source"] == "two nodes: a run"
    assert result["assumptions"]["memory_share"]["worst"] == 0.8
    assert result["measurements"] == ["public 8 x H100", "two nodes"]


def test_a_measured_latency_changes_the_prediction(tmp_path: Path) -> None:
    def tokens(*words: str) -> float:
        layouts = compared("--gpus", "16", "--concurrency", "1", *words)["layouts"]
        return float(next(one["points"][0]["expected"]["tpot_ms"] for one in layouts if one["name"] == "DP8 TP2 EP16"))

    more = tokens("--measurements", file(tmp_path, MEASURED | {"assumptions": {"fabric_us": 145}})) - tokens()
    assert more == pytest.approx(2 * 62 * 0.1, rel=0.01)  # two collectives in each of 62 layers, 100 us more


def test_an_observed_time_is_set_against_its_prediction(tmp_path: Path) -> None:
    row = {
        "what": "step_ms", "value": 24.0, "gpus": 16, "tensor_parallel": 4, "expert_parallel": True, "concurrency": 32,
        "prompt": 8192, "output": 128, "batched_tokens": 2048,
    }  # fmt: skip
    result = compared("--gpus", "16", "--measurements", file(tmp_path, MEASURED | {"observed": [row]}))
    last = result["checked"][-1]
    assert last["observed"]["gpus"] == 16
    assert last["error"] == pytest.approx(last["predicted"] / 24 - 1, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "h200-sxm"}, "measurements two nodes: are of gpu h200-sxm, wanted h100-sxm"),
        ({"version": 2}, "version is 2"),
        ({"version": True}, "version is True, wanted the number 1"),
        ({"speed": 3}, "speed is not a known key"),
        ({"assumptions": {"fabric": 3}}, "assumptions.fabric is not a known key; wanted one of memory_share"),
        ({"assumptions": {"fabric_us": "fast"}}, "fabric_us"),
        ({"assumptions": {"fabric_us": -1}}, "fabric_us"),
        ({"assumptions": {"fabric_us": float("nan")}}, "fabric_us"),
        ({"assumptions": {"memory_share": 0}}, "assumptions.memory_share is 0, wanted more than that"),
        (
            {"assumptions": {"memory_share": {"expected": 0.9, "best": 0.8, "worst": 0.7}}},
            "expected is 0.9, wanted from best 0.8 to worst 0.7",
        ),
        ({"model": "gpt-2"}, "model is gpt-2, wanted one of qwen3-coder-480b-fp8"),
        ({"observed": [{"what": "speed"}]}, "observed[0].what is 'speed'"),
    ],
)
def test_a_measurement_file_that_is_wrong_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refused("--gpus", "16", "--measurements", file(tmp_path, MEASURED | changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty, wanted keys and values"),
        ("- 1\n", "is list, wanted keys and values"),
        ("a: [", "is not YAML"),
        ("\x00", "is not YAML"),
        ("a: " + "[" * 5000, "is not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused("--gpus", "16", "--measurements", file(tmp_path, text))


def test_a_missing_measurement_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yml"
    assert f"{path}: cannot be read" in refused("--gpus", "16", "--measurements", str(path))


def test_later_measurements_win() -> None:
    first = validate(Measurements, MEASURED, "first")
    second = validate(Measurements, MEASURED | {"assumptions": {"fabric_us": 70}, "gpu": None}, "second")
    table = apply(assumptions("efa"), (first, second), "h100-sxm").table
    assert table["fabric_us"].expected == 70
    assert table["memory_share"].expected == 0.85


def test_measurements_of_another_gpu_are_refused() -> None:
    one = validate(Measurements, MEASURED, "file")
    with pytest.raises(SpecError, match="are of gpu h100-sxm, wanted l40s"):
        apply(assumptions("efa"), (one,), "l40s")


# The page -------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Tags with attributes, and whether all that were opened are closed."""

    VOID = ("meta", "line", "polyline", "link", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "layouts.html"
    code, _, err = run("plan", "compare", "--gpus", "16", "--html", str(path))
    assert (code, err) == (0, "")
    return path.read_text(encoding="utf-8")


def test_page_loads_nothing_and_runs_nothing(page: str) -> None:
    elements = Elements(page)
    assert elements.open == []
    assert not {tag for tag, _ in elements.found} & {"script", "link", "img", "iframe", "object"}
    assert not [attrs for _, attrs in elements.found if {"src", "href", "xlink:href"} & set(attrs)]
    assert "url(" not in page
    assert "@import" not in page


def test_every_chart_has_a_title_a_description_and_a_table(page: str) -> None:
    charts = re.findall(r'<svg class="plot".*?</svg>', page, re.DOTALL)
    assert len(charts) == 4
    for one in charts:
        tree = ET.fromstring(one)  # noqa: S314 - our own output
        first, second = list(tree)[:2]
        assert (first.tag, second.tag) == ("title", "desc")
        assert tree.get("aria-labelledby") == f"{first.get('id')} {second.get('id')}"
        assert "2 x TP8 EP8 from" in (second.text or "")
    assert page.count("Figures of this chart") == 5  # and the memory bars'


def test_curves_stay_inside_their_chart(page: str) -> None:
    for path in re.findall(r'points="([^"]*)"', page):
        for pair in path.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 560
            assert 0 <= y <= 320


def test_page_has_a_bar_for_what_fits_and_what_is_too_large(page: str) -> None:
    assert "2 x DP4 TP2 EP8<span>does not fit: " in page
    widths = [float(text) for text in re.findall(r"left:[\d.]+%;width:([\d.]+)%", page)]
    assert all(0 < width <= 100 for width in widths)


def test_page_shows_every_assumption_with_its_source(page: str) -> None:
    for name in NAMES:
        assert f"<code>{name}</code>" in page


def test_text_of_others_cannot_become_markup(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    evil = MEASURED | {"name": "<script>alert(1)</script>"}
    run("plan", "compare", "--gpus", "8", "--html", str(path), "--measurements", file(tmp_path, evil))
    assert "<script>" not in path.read_text()
    assert "&lt;script&gt;" in path.read_text()


def test_page_that_says_nothing_fits(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    code, _, _ = run("plan", "compare", "--gpus", "8", "--gpu", "a100-40-sxm", "--html", str(path))
    assert code == 1
    assert "No layout fits." in path.read_text()


def test_a_page_that_cannot_be_written_is_exit_code_three(tmp_path: Path) -> None:
    code, out, err = run("plan", "compare", "--gpus", "8", "--html", str(tmp_path / "none" / "page.html"))
    assert (code, out) == (3, "")
    assert "cannot be written" in err


def test_a_directory_in_place_of_the_page_is_refused(tmp_path: Path) -> None:
    assert "is no regular file" in refused("--gpus", "8", "--html", str(tmp_path))


# Charts ---------------------------------------------------------------------------------------------------------


def test_axis_steps_enclose_all_values() -> None:
    one = chart("t", "T", "s", [1, 2, 4], [("a", [0.031, 0.5, 7.2], [False, False, True])], logarithmic=True)
    assert [tick.label for tick in one.y_ticks] == ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10"]
    assert [mark.waiting for mark in one.curves[0].marks] == [False, False, True]
    assert one.rows[-1] == ("4", "7.2 (some wait)")


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [1e-4, 1e-4], [1e6, 3e6]])
def test_a_chart_of_few_or_equal_values_has_an_axis(values: list[float]) -> None:
    concurrencies = [1, 2][: len(values)]
    for logarithmic in (True, False):
        one = chart("t", "T", "s", concurrencies, [("a", values, [False] * len(values))], logarithmic=logarithmic)
        assert len(one.y_ticks) >= 2
        assert all(0 <= mark.y <= 320 for mark in one.curves[0].marks)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.2789, "0.279"), (6.726, "6.73"), (62.7, "62.7"), (113.2, "113"), (1030.4, "1,030")]
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert short(value) == text
