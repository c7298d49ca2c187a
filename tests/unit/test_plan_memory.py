import pytest

from coderack.plan.memory import Extras, Memory, kv_bytes_per_token, memory, plan_memory
from coderack.plan.models import shipped_model
from coderack.spec.checked import SpecError, validate
from coderack.spec.hardware import GPUS
from coderack.spec.model import read_config
from coderack.spec.profile import Layout, Limits, ServingProfile

from .data import profile_data
from .plan_models import CODER, DEEPSEEK_R1, GIB, MINIMAX, READINGS, Reading

H100 = GPUS["h100-sxm"]


def plan(dp: int, tp: int, *, tokens: int = 2048, ep: bool = True, dtype: str | None = None, seqs: int = 64) -> Memory:
    layout = Layout(mode="split", nodes=1, data_parallel=dp, tensor_parallel=tp, expert_parallel=ep)
    limits = Limits(
        max_model_len=65536,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=0.9,
        kv_cache_dtype=dtype,
    )
    return memory(shipped_model("qwen3-coder-480b-fp8"), H100, layout, limits)


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
def test_readings_of_others_are_met(reading: Reading) -> None:
    planned = reading.planned()
    if reading.weights is not None:
        assert planned.weights.expected / GIB == pytest.approx(reading.weights, rel=0.005)
    if reading.kv is not None:
        assert planned.kv.available.expected / GIB == pytest.approx(reading.kv, rel=reading.kv_within)
        assert planned.kv.available.low / GIB <= reading.kv <= planned.kv.available.high / GIB


@pytest.mark.parametrize("reading", [one for one in READINGS if one.tokens and one.kv], ids=lambda one: one.name)
def test_bytes_of_kv_cache_per_token_are_those_of_the_log(reading: Reading) -> None:
    """A log has the cache in GiB to two digits and the tokens that it made of them."""
    assert reading.kv
    assert reading.tokens
    per_token = reading.planned().kv.bytes_per_token
    assert per_token == pytest.approx(reading.kv * GIB / reading.tokens, abs=0.006 * GIB / reading.tokens + 16)


# GiB of weights per GPU and bytes of KV cache per token in bf16: experts 468.08 GB, attention 10.14 GB and embeddings
# 3.73 GB over the ranks, 0.12 GB of routers on each. They leave out the rotary table of 0.06 GiB.
LAYOUTS = [
    (16, 1, 40.29, 253952),
    (8, 2, 33.83, 126976),
    (4, 4, 30.60, 63488),
    (2, 8, 28.98, 31744),
    (8, 1, 67.54, 253952),
    (4, 2, 61.08, 126976),
    (2, 4, 57.85, 63488),
    (1, 8, 56.23, 31744),
]


@pytest.mark.parametrize(("dp", "tp", "weights", "kv_bytes"), LAYOUTS)
def test_weights_and_cache_of_the_480b_model_per_layout(dp: int, tp: int, weights: float, kv_bytes: int) -> None:
    planned = plan(dp, tp)
    assert planned.weights.expected / GIB == pytest.approx(weights, rel=0.005)
    assert planned.kv.bytes_per_token == kv_bytes
    assert [cache.bytes_per_token for cache in planned.alternatives] == [kv_bytes, kv_bytes // 2]


# An independent estimate of the same: KV GiB at 0.90 and, by tokens per step, with 3 GiB of doubt.
ESTIMATES = [
    (8, 2, {8192: 19, 4096: 26, 2048: 30, 1024: 32}),
    (4, 4, {8192: 30, 4096: 33, 2048: 35, 1024: 36}),
    (4, 2, {4096: 2.8, 2048: 4.5, 1024: 5.4}),
    (2, 4, {8192: 6.0, 4096: 7.8, 2048: 8.7, 1024: 9.1}),
    (1, 8, {8192: 9.4, 4096: 10.3, 2048: 10.7, 1024: 10.9}),
]


@pytest.mark.parametrize(("dp", "tp", "estimates"), ESTIMATES)
def test_cache_agrees_with_an_independent_estimate(dp: int, tp: int, estimates: dict[int, float]) -> None:
    for tokens, expected in estimates.items():
        available = plan(dp, tp, tokens=tokens).kv.available
        assert available.low / GIB - 0.5 <= expected <= available.high / GIB + 0.5
        assert available.expected / GIB == pytest.approx(expected, abs=3.5)


def test_working_memory_grows_with_ranks_times_tokens() -> None:
    one = plan(2, 2, tokens=4096).group("activations").expected
    assert plan(4, 2, tokens=2048).group("activations").expected == pytest.approx(one, rel=0.05)
    assert plan(4, 2, tokens=4096).group("activations").expected == pytest.approx(2 * one, rel=0.05)


def test_tokens_are_whole_blocks_and_requests_are_counted_in_blocks() -> None:
    cache = plan(1, 8).kv
    assert cache.tokens.expected % 16 == 0
    assert cache.tokens.expected == 16 * (cache.available.expected // (16 * cache.bytes_per_token))
    assert cache.requests.expected == pytest.approx(cache.tokens.expected / 65536)


def test_more_ranks_than_key_value_heads_repeat_the_heads() -> None:
    model = shipped_model("qwen3-coder-480b-fp8")
    assert kv_bytes_per_token(model, 16, "auto") == kv_bytes_per_token(model, 8, "auto") == 62 * 2 * 128 * 2


def test_latent_attention_caches_one_vector_on_every_rank() -> None:
    assert kv_bytes_per_token(read_config(DEEPSEEK_R1), 8, "auto") == 61 * (512 + 64) * 2


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        ("fp8", 0.5),
        ("fp8_e5m2", 0.5),
        ("float16", 1),
        ("int8_per_token_head", 0.5 + 4 / 256),
        ("int4_per_token_head", 0.25 + 4 / 256),
    ],
)
def test_cache_types_take_their_share(dtype: str, factor: float) -> None:
    model = read_config(MINIMAX)
    assert kv_bytes_per_token(model, 8, dtype) == factor * kv_bytes_per_token(model, 8, "auto")


def test_a_cache_type_of_unknown_size_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"limits\.kv_cache_dtype: is nvfp4, whose size is not known; wanted one of auto"
    ):
        plan(1, 8, dtype="nvfp4")


def test_the_sampler_counts_when_many_sequences_are_allowed() -> None:
    few, many = plan(1, 8, tokens=8192), plan(1, 8, tokens=8192, seqs=4096)
    assert many.part("forward").expected > few.part("forward").expected + 2 * GIB


def test_dense_models_do_not_gather_tokens() -> None:
    dense = CODER | {"architectures": ["Qwen3ForCausalLM"], "quantization_config": None}
    layout = Layout(mode="split", nodes=1, data_parallel=8, tensor_parallel=1, expert_parallel=False)
    limits = Limits(max_model_len=65536, max_num_seqs=64, max_num_batched_tokens=2048)
    wide = memory(read_config(dense), H100, layout, limits)
    narrow = memory(read_config(dense), H100, layout.model_copy(update={"data_parallel": 1}), limits)
    assert wide.group("activations") == narrow.group("activations")


def test_a_draft_model_and_eager_mode_change_the_plan() -> None:
    profile = profile_data("split-8")
    eagle = {"method": "eagle3", "tokens": 3, "model": "/srv/models/eagle", "weights_gib": 1.6}
    plain = planned_profile(profile)
    drafted = planned_profile(profile | {"speculative": eagle})
    assert drafted.part("draft").expected == pytest.approx(1.6 * GIB)
    assert drafted.kv.available.expected < plain.kv.available.expected - 1.6 * GIB + 1
    eager = planned_profile(profile | {"engine_args": ["--enforce-eager"]})
    assert plain.part("graphs").expected > 0
    assert eager.part("graphs").expected == 0


def planned_profile(data: dict[str, object]) -> Memory:
    profile = validate(ServingProfile, data, "profile")
    return plan_memory(profile, shipped_model("qwen3-coder-480b-fp8"), H100)


def test_yarn_lengthens_the_rotary_table() -> None:
    extended = planned_profile(profile_data("yarn-1m")).part("router").expected
    usual = planned_profile(profile_data("fused-16")).part("router").expected
    assert extended - usual == (1048576 - 262144) * 128 * 2


def test_batched_expert_formats_have_a_row_for_every_token_that_could_come() -> None:
    layout = Layout(
        mode="fused",
        nodes=2,
        data_parallel=8,
        tensor_parallel=2,
        expert_parallel=True,
        all2all_backend="deepep_low_latency",
    )
    limits = Limits(max_model_len=65536, max_num_seqs=64, max_num_batched_tokens=256)
    planned = memory(shipped_model("qwen3-coder-480b-fp8"), H100, layout, limits, Extras())
    # 10 local experts x 8 ranks x 256 tokens, two buffers of 6144 in bf16.
    assert planned.part("workspace").expected == 10 * 8 * 256 * 2 * 6144 * 2
