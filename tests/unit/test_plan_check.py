from typing import Any

import pytest

from coderack.plan.check import Check, Verdict, check, layout_problems, tensor_parallel_values
from coderack.plan.fit import PROMPT_ADVICE, Fit, fit
from coderack.plan.models import shipped_model
from coderack.spec.checked import validate
from coderack.spec.hardware import GPUS
from coderack.spec.model import ModelSpec, read_config
from coderack.spec.profile import Layout, ServingProfile

from .data import PROFILES, profile_data
from .plan_models import CODER, DEEPSEEK_R1, FP8_BLOCKS, LLAMA_70B
from .test_spec_model import SMOLLM2

H100 = GPUS["h100-sxm"]
CODER_480B = shipped_model("qwen3-coder-480b-fp8")
# The lab makes this model itself (tests/lab/models); these are its config.json's keys.
TINY_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 32,
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 64,
    "num_attention_heads": 8,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 16,
    "vocab_size": 49152,
}
LAB_MODELS = {"tiny-qwen3-moe": TINY_MOE, "smollm2-135m-instruct": SMOLLM2}


def profile(name: str, **changes: dict[str, Any] | list[str]) -> ServingProfile:
    """A profile of the repository with changed keys per part."""
    data = profile_data(name)
    for part, values in changes.items():
        data[part] = {**data.get(part, {}), **values} if isinstance(values, dict) else values
    return validate(ServingProfile, data, name)


def seed(*, tokens: int = 2048) -> ServingProfile:
    """DP4 TP2 EP8 on one node, with fused-16's limits and no 8-bit cache."""
    layout = {"mode": "split", "nodes": 1, "data_parallel": 4}
    return profile("fused-16", layout=layout, limits={"max_num_batched_tokens": tokens})


def judged(asked: ServingProfile, model: ModelSpec = CODER_480B, gpu: str = "h100-sxm") -> Check:
    return check(asked, model, GPUS[gpu])


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yml")), ids=lambda path: path.stem)
def test_every_profile_of_the_repository_fits_its_nodes(path: Any) -> None:
    asked = profile(path.stem)
    lab = LAB_MODELS.get(asked.model.name)
    found = judged(asked, read_config(lab) if lab else CODER_480B)
    assert found.problems == ()
    assert found.verdict is Verdict.FITS, found.reason


# What the comments of the profiles say: weights, KV cache at its low and high end, GiB.
COMMENTS = {
    "fused-16": (33.9, 25.6, 32.1),
    "fused-16-tp4": (30.7, 31.8, 36.9),
    "split-8": (56.3, 8.4, 12.5),
    "solo-8": (56.3, 8.4, 12.5),
    "seed-8": (61.1, 4.3, 8.9),
}


@pytest.mark.parametrize("name", COMMENTS)
def test_the_figures_in_a_profile_are_the_planners(name: str) -> None:
    weights, low, high = COMMENTS[name]
    text = (PROFILES / f"{name}.yml").read_text()
    memory = judged(profile(name)).memory
    assert memory is not None
    seen = (memory.weights.expected, memory.kv.available.low, memory.kv.available.high)
    assert tuple(round(size / 2**30, 1) for size in seen) == (weights, low, high)
    assert f"{low} to {high} GiB" in text
    assert str(weights) in text


def test_tp6_is_refused_with_the_reason_and_the_values_that_work() -> None:
    found = judged(profile("split-8", layout={"tensor_parallel": 6}))
    assert found.verdict is Verdict.IMPOSSIBLE
    assert found.memory is None
    assert found.problems == (
        "layout.tensor_parallel is 6: 8 key/value heads neither divide by it nor into it; wanted one of 1, 2, 4, 8",
    )
    nearest = fit(profile("split-8", layout={"tensor_parallel": 6}), CODER_480B, H100).first
    assert nearest is not None
    assert nearest.settings == (("layout.tensor_parallel", "8"), ("layout.data_parallel", "1"))


@pytest.mark.parametrize("tokens", [8192, 2048])
def test_one_node_cannot_hold_a_long_request_at_dp4_tp2_in_bf16(tokens: int) -> None:
    found = judged(seed(tokens=tokens))
    assert found.verdict is Verdict.TOO_BIG
    assert "one request of 65,536 tokens needs 7.8 GiB of KV cache per GPU" in found.reason


def test_the_nearest_that_fits_on_one_node_is_named() -> None:
    found = fit(seed(), CODER_480B, H100)
    assert found.first is not None
    assert found.first.name == "shorter requests"
    assert dict(found.first.changes) == {
        "limits.max_num_batched_tokens": "1024",
        "limits.max_num_seqs": "16",
        "limits.kv_cache_dtype": "fp8",
        "limits.max_model_len": "45056",
    }
    sparing = next(rung for rung in found.rungs if rung.name == "tensor_parallel 2 to 4")
    assert sparing.check.fits
    assert dict(sparing.changes) == {"layout.tensor_parallel": "4", "layout.data_parallel": "2"}


def test_the_ladder_has_the_order_of_what_costs_least() -> None:
    names = [rung.name for rung in fit(seed(tokens=4096), CODER_480B, H100).rungs]
    assert names == [
        "as it is",
        "fewer tokens per step",
        "fewer tokens per step",
        "fewer sequences and graphs",
        "fewer sequences and graphs",
        "8-bit KV cache",
        "shorter requests",
        "tensor_parallel 2 to 4",
        "tensor_parallel 4 to 8",
    ]


def test_every_step_leaves_at_least_as_many_tokens_as_the_one_before() -> None:
    rungs = fit(seed(tokens=8192), CODER_480B, H100).rungs
    tokens = [rung.check.memory.kv.tokens.expected for rung in rungs if rung.check.memory][:8]
    assert tokens == sorted(tokens)


def test_what_fits_keeps_its_settings() -> None:
    found = fit(profile("split-8"), CODER_480B, H100)
    assert found.first is found.rungs[0]
    assert found.first.changes == ()
    assert found.advice is None


def test_when_nothing_fits_the_advice_is_to_shorten_prompts() -> None:
    found: Fit = fit(profile("solo-8"), CODER_480B, GPUS["l40s"])
    assert found.first is None
    assert found.advice == PROMPT_ADVICE


def test_a_request_that_fits_only_with_luck_is_not_called_fitting() -> None:
    lucky = profile("seed-8", limits={"max_num_batched_tokens": 2048})
    found = judged(lucky)
    assert found.verdict is Verdict.TIGHT
    assert "it fits at the expected 5.7 GiB, not at the low end" in found.reason
    optimistic = judged(profile("seed-8", limits={"kv_cache_dtype": "bfloat16"}))
    assert optimistic.verdict is Verdict.TIGHT
    assert "it fits at the optimistic end only" in optimistic.reason


def test_weights_that_alone_are_too_large_are_told_as_such() -> None:
    found = judged(profile("solo-8"), gpu="l40s")
    assert found.verdict is Verdict.TOO_BIG
    assert "nothing is left for KV cache" in found.reason


@pytest.mark.parametrize("name", ["fused-16", "fused-16-tp4", "split-8"])
def test_a_million_tokens_are_refused_where_they_cannot_fit(name: str) -> None:
    million = profile(name, limits={"max_model_len": 1048576}, yarn=profile_data("yarn-1m")["yarn"])
    assert judged(million).verdict is Verdict.TOO_BIG


def test_a_quarter_million_tokens_need_no_yarn() -> None:
    assert judged(profile("fused-16-tp4", limits={"max_model_len": 262144})).fits
    beyond = judged(profile("fused-16-tp4", limits={"max_model_len": 262145}))
    assert beyond.problems == (
        "limits.max_model_len is 262145 and the model knows 262144 positions; wanted no more, or yarn with a factor "
        "that reaches it",
    )


@pytest.mark.parametrize(
    ("yarn", "problem"),
    [
        ({"theta": 10000.0}, "yarn.theta is 10000, wanted the model's 1e+07"),
        ({"original_max_positions": 300000}, "yarn.original_max_positions is 300000, wanted the model's 262144"),
    ],
)
def test_yarn_that_contradicts_the_model_is_refused(yarn: dict[str, Any], problem: str) -> None:
    assert judged(profile("yarn-1m", yarn=yarn)).problems == (problem,)


def layout(dp: int, tp: int, *, ep: bool = True) -> Layout:
    return Layout(mode="split", nodes=1, data_parallel=dp, tensor_parallel=tp, expert_parallel=ep)


MODELS = {
    "coder": (CODER, (1, 2, 4, 8)),
    "llama": (LLAMA_70B | {"quantization_config": FP8_BLOCKS}, (1, 2, 4, 8)),
    "deepseek": (DEEPSEEK_R1, (1, 2, 4, 8)),
    # 9 and 3 heads.
    "smollm2": (SMOLLM2, (1,)),
    # 18944 / 2 is 74 blocks of 128, 18944 / 4 is 37, and then no whole number.
    "odd MLP": (LLAMA_70B | {"intermediate_size": 18944, "quantization_config": FP8_BLOCKS}, (1, 2, 4)),
}


@pytest.mark.parametrize(("config", "works"), MODELS.values(), ids=MODELS.keys())
def test_tensor_parallel_sizes_that_divide_a_model(config: dict[str, Any], works: tuple[int, ...]) -> None:
    model = read_config(config)
    assert tensor_parallel_values(model, layout(1, 1, ep=model.experts is not None), 8) == works


def test_an_fp8_block_that_a_slice_would_cut_is_named() -> None:
    model = read_config(LLAMA_70B | {"intermediate_size": 18944, "quantization_config": FP8_BLOCKS})
    assert layout_problems(layout(1, 8, ep=False), model) == (
        "layout.tensor_parallel is 8: a slice of the MLP has 2368 columns, no multiple of the FP8 block of 128 x 128; "
        "wanted one of 1, 2, 4",
    )


@pytest.mark.parametrize(
    ("dp", "tp", "cuts"), [(1, 4, None), (1, 8, "a slice of 320 columns"), (8, 2, "a slice of 160 columns")]
)
def test_without_expert_parallelism_cut_blocks_are_noted(dp: int, tp: int, cuts: str | None) -> None:
    asked = profile(
        "split-8",
        layout={"mode": "split", "nodes": 1, "data_parallel": dp, "tensor_parallel": tp, "expert_parallel": False},
    )
    notes = " ".join(check(asked, CODER_480B, H100, 16).notes)
    assert ("cuts the FP8 blocks" in notes) == (cuts is not None)
    if cuts:
        assert cuts in notes


def test_slices_that_no_block_divides_are_refused() -> None:
    narrow = read_config(CODER | {"moe_intermediate_size": 2560 + 128})
    problems = layout_problems(layout(1, 8, ep=False), narrow)
    assert problems == (
        "layout.expert_parallel is false and leaves each GPU 336 columns of an expert, which no FP8 block of 32 or "
        "more divides; wanted true, which keeps experts whole",
    )
    assert layout_problems(layout(1, 8), narrow) == ()


def test_more_gpus_than_a_node_has_are_refused() -> None:
    found = check(profile("split-8"), CODER_480B, H100, 4)
    assert found.problems == ("layout takes 8 GPUs per node (1 data parallel ranks of 8), and a node has 4",)


def test_experts_of_a_model_without_any_are_refused() -> None:
    assert layout_problems(layout(1, 2), read_config(LLAMA_70B)) == (
        "layout.expert_parallel is true and the model has no experts, wanted false",
    )


def test_more_gpus_than_experts_are_refused() -> None:
    few = read_config(CODER | {"num_experts": 8})
    assert layout_problems(layout(8, 2), few, 16) == (
        "layout spreads 8 experts over 16 GPUs, wanted at most one GPU per expert",
    )


NOTES: dict[str, tuple[ServingProfile, str, str]] = {
    "idle GPUs": (profile("split-8", layout={"tensor_parallel": 4}), "h200-sxm", "4 of 8 GPUs per node stay idle"),
    "no NVLink": (profile("split-8"), "h100-pcie", "reaches beyond the 2 GPUs that NVLink joins"),
    "no FP8": (profile("split-8"), "a100-80-sxm", "A100 SXM4 80 GB has no FP8 arithmetic"),
    "yarn": (profile("yarn-1m"), "h100-sxm", "yarn scales positions at every length"),
    "ngram": (
        profile("split-8", speculative={"method": "ngram", "tokens": 4}), "h100-sxm", "ngram_gpu keeps it"
    ),
    "draft": (
        profile("split-8", speculative={"method": "eagle", "tokens": 4, "model": "/x", "weights_gib": 1.0}),
        "h100-sxm", "the KV cache of the draft model is not counted",
    ),
    "blocks": (profile("lab-moe-fused"), "h100-sxm", "engine_args has --dtype, --num-gpu-blocks-override"),
    "graphs": (profile("fused-16"), "h100-sxm", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0"),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "gpu", "note"), NOTES.values(), ids=NOTES.keys())
def test_what_the_figures_do_not_say_is_noted(asked: ServingProfile, gpu: str, note: str) -> None:
    assert note in " ".join(judged(asked, gpu=gpu).notes)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["--moe-backend", "triton"], ["--moe-backend=triton"]),
        (["--moe-backend", "triton"], ["--moe_backend", "flashinfer_cutlass", "--moe-backend", "triton"]),
        (["--enforce-eager"], ["--enforce_eager"]),
    ],
)
def test_an_option_counts_however_vllm_lets_it_be_written(one: list[str], other: list[str]) -> None:
    seen = [judged(profile("fused-16", engine_args=words)).memory for words in (one, other, [])]
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


# Each is refused by vLLM 0.32: config/scheduler.py, the number of devices, and request_memory of v1/worker/utils.py.
REFUSED_AT_START: dict[str, tuple[ServingProfile, str]] = {
    "whole prompts": (
        profile("fused-16", engine_args=["--no-enable-chunked-prefill"]),
        "limits.max_num_batched_tokens is 2048, wanted at least limits.max_model_len = 65536",
    ),
    "stages": (
        profile("fused-16", engine_args=["--pipeline_parallel_size=2"]),
        "--pipeline-parallel-size 2, which makes them 16; a node has 8",
    ),
    "all memory": (
        profile("fused-16", limits={"gpu_memory_utilization": 1.0}),
        "limits.gpu_memory_utilization is 1, which leaves 0.0 GiB; wanted less",
    ),
}


@pytest.mark.parametrize(("asked", "problem"), REFUSED_AT_START.values(), ids=REFUSED_AT_START.keys())
def test_what_vllm_refuses_when_it_starts_cannot_run(asked: ServingProfile, problem: str) -> None:
    found = judged(asked)
    assert found.verdict is Verdict.IMPOSSIBLE
    assert problem in found.reason


def test_stages_that_a_node_has_the_gpus_for_are_let_through() -> None:
    found = judged(profile("split-8", layout={"tensor_parallel": 4}, engine_args=["--pipeline-parallel-size", "2"]))
    assert found.problems == ()
