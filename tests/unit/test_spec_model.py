import json
from collections.abc import Callable
from typing import Any

import pytest

from coderack.plan.models import model_of, shipped_model, shipped_models
from coderack.spec.checked import SpecError, validate
from coderack.spec.model import GroupedAttention, LatentAttention, read_config
from coderack.spec.profile import ServingProfile

from .data import profile_data
from .plan_models import CODER, DEEPSEEK_R1, FP8_CHANNELS, LLAMA_70B, MINIMAX, QWEN_235B

# HuggingFaceTB/SmolLM2-135M-Instruct, as Transformers 5 writes it; 134,515,008 weights in its safetensors header.
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
# Qwen/Qwen2.5-7B-Instruct: biases on query, key and value; 7,615,616,512 weights in its safetensors headers.
QWEN2_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
COUNTS: dict[str, tuple[dict[str, Any], float]] = {
    "SmolLM2 135M": (SMOLLM2, 134_515_008),
    "Qwen2.5 7B": (QWEN2_7B, 7_615_616_512),
    "Llama 3.3 70B": (LLAMA_70B, 70_553_706_496),
    # As its makers count it, without the multi-token head of 14 B, which vLLM does not load.
    "DeepSeek R1": (DEEPSEEK_R1, 671.0e9),
    "MiniMax M2.5": (MINIMAX, 228_703_644_928),
}


@pytest.mark.parametrize(("config", "published"), COUNTS.values(), ids=COUNTS.keys())
def test_counts_the_weights_that_are_published(config: dict[str, Any], published: float) -> None:
    assert read_config(config).parameters.total == pytest.approx(published, rel=0.0002)


def test_the_480b_model_by_part() -> None:
    model = shipped_model("qwen3-coder-480b-fp8")
    parts = model.parameters
    assert parts.experts == 62 * 160 * 3 * 6144 * 2560
    assert parts.attention == 62 * 6144 * (2 * 96 + 2 * 8) * 128
    assert parts.embedding == parts.lm_head == 151936 * 6144
    assert parts.total == pytest.approx(480.15e9, rel=1e-4)
    assert model.active_parameters == pytest.approx(35e9, rel=0.03)
    assert model.quantisation is not None
    assert model.quantisation.attention_layers == model.quantisation.expert_layers == 62


def test_the_shipped_model_is_the_published_one() -> None:
    assert shipped_model("qwen3-coder-480b-fp8") == read_config(CODER)
    assert "qwen3-coder-480b-fp8" in shipped_models()


def test_reads_latent_attention_and_dense_first_layers() -> None:
    model = read_config(DEEPSEEK_R1)
    assert isinstance(model.attention, LatentAttention)
    assert model.experts is not None
    assert model.experts.dense_layers == (0, 1, 2)
    assert (model.dense_layers, model.moe_layers) == (3, 58)
    assert model.active_parameters == pytest.approx(37e9, rel=0.03)


def test_reads_layers_without_experts_of_a_qwen_model() -> None:
    model = read_config(CODER | {"mlp_only_layers": [0, 5], "decoder_sparse_step": 2})
    assert model.experts is not None
    assert model.experts.dense_layers[:4] == (0, 2, 4, 5)
    assert model.dense_intermediate == 8192


def test_channel_scales_and_patterns_of_kept_modules_are_read() -> None:
    quantised = read_config(QWEN_235B | {"quantization_config": FP8_CHANNELS}).quantisation
    assert quantised is not None
    assert (quantised.block, quantised.expert_layers, quantised.attention_layers) == (None, 94, 94)


def test_modules_that_are_kept_in_some_layers_are_counted() -> None:
    kept = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.layers.0.self_attn"],
    }
    quantised = read_config(CODER | {"quantization_config": kept}).quantisation
    assert quantised is not None
    assert (quantised.attention_layers, quantised.expert_layers) == (61, 62)


def test_heads_without_a_size_of_their_own_share_the_hidden_one() -> None:
    attention = read_config(QWEN2_7B).attention
    assert isinstance(attention, GroupedAttention)
    assert (attention.head_dim, attention.bias) == (128, True)


Change = dict[str, Any]
REFUSALS: dict[str, tuple[Change, str]] = {
    "unknown architecture": (
        {"architectures": ["GptOssForCausalLM"]},
        "architecture 'GptOssForCausalLM' is not one whose memory is known: Qwen3MoeForCausalLM, MiniMaxM2ForCausalLM",
    ),
    "no architecture": ({"architectures": []}, "architectures is []"),
    "architecture that is no list": ({"architectures": "Qwen3MoeForCausalLM"}, "architectures is "),
    "unknown number format": ({"torch_dtype": "int4"}, "dtype is 'int4', wanted bfloat16, float16, float32"),
    "unknown quantisation": (
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        "quantization_config.quant_method is 'awq', wanted fp8 or compressed-tensors with 8 bits",
    ),
    "four bits": (
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4}}},
            }
        },
        "has not exactly one group with 8-bit weights",
    ),
    "block that is none": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
        "quantization_config: block",
    ),
    "pattern that is none": (
        {"quantization_config": FP8_CHANNELS | {"ignore": ["re:("]}},
        "quantization_config ignores a pattern that is none",
    ),
    "names that are none": (
        {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": [1]}},
        "quantization_config lists modules that are not names",
    ),
    "sliding window": ({"use_sliding_window": True}, "use_sliding_window is true"),
    "layers as text": ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "too many layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    "heads that do not group": ({"num_key_value_heads": 7}, "num_attention_heads is 96, wanted a multiple of"),
    "more active experts than there are": ({"num_experts_per_tok": 500}, "num_experts_per_tok is 500, wanted at most"),
    "rope that is none": ({"rope_scaling": {"factor": "four"}}, "rope: factor is 'four'"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refuses(change: Change, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_config(CODER | change)
    assert message in str(caught.value)
    assert str(caught.value).startswith("config.json")


@pytest.mark.parametrize("key", ["moe_intermediate_size", "num_experts", "num_experts_per_tok", "hidden_size"])
def test_refuses_a_config_without(key: str) -> None:
    config = {name: value for name, value in CODER.items() if name != key}
    with pytest.raises(SpecError, match=f"{key} is missing"):
        read_config(config)


@pytest.mark.parametrize("config", [None, [], "x", 4, {}])
def test_refuses_what_is_no_config(config: object) -> None:
    with pytest.raises(SpecError, match=r"^config\.json"):
        read_config(config)


def test_a_profile_finds_its_model_by_the_folder_of_the_weights() -> None:
    profile = validate(ServingProfile, profile_data("fused-16"), "profile")
    assert model_of(profile) == shipped_model("qwen3-coder-480b-fp8")


def test_a_config_beside_the_weights_comes_first(tmp_path: Any) -> None:
    profile = validate(ServingProfile, profile_data("fused-16"), "profile")
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    assert model_of(profile, tmp_path / "config.json").layers == 30


def test_a_model_without_a_shipped_config_asks_for_it() -> None:
    profile = validate(ServingProfile, profile_data("lab-smollm2"), "profile")
    with pytest.raises(SpecError, match=r"no config\.json is shipped .* give the one .* with --model-config"):
        model_of(profile)


FILES: dict[str, tuple[Callable[[Any], object], str]] = {
    "missing": (lambda _: None, r"cannot be read \(No such file or directory\)"),
    "folder": (lambda path: path.mkdir(), r"cannot be read \(Is a directory\)"),
    "empty": (lambda path: path.write_text(""), "is not JSON"),
    "not JSON": (lambda path: path.write_bytes(b"\xff\x00"), "is not JSON"),
    "deep": (lambda path: path.write_text("[" * 100_000), "is not JSON"),
    "huge": (lambda path: path.write_bytes(b" " * (4 * 2**20 + 1)), "has more than 4194304 bytes"),
}


@pytest.mark.parametrize(("make", "message"), FILES.values(), ids=FILES.keys())
def test_a_config_file_that_cannot_be_read_is_named(make: Callable[[Any], object], message: str, tmp_path: Any) -> None:
    profile = validate(ServingProfile, profile_data("fused-16"), "profile")
    path = tmp_path / "config.json"
    make(path)
    with pytest.raises(SpecError, match=message) as caught:
        model_of(profile, path)
    assert str(caught.value).startswith(str(path))
