"""Models whose memory others have published, as their config.json describes them, and what vLLM's logs said."""

from dataclasses import dataclass, field
from typing import Any

from coderack.plan.memory import VLLM_0_32, Engine, Extras, Memory, memory
from coderack.spec.hardware import GPUS
from coderack.spec.model import ModelSpec, read_config
from coderack.spec.profile import Layout, Limits

GIB = 2**30

FP8_BLOCKS: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "gate"],
}
# As llm-compressor writes it for its FP8-dynamic scheme.
FP8_CHANNELS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
    "ignore": ["re:.*lm_head", "re:.*mlp.gate$"],
}

# Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8; config.json printed in mystous/vllm_hybrid, report IDE_069.
CODER: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 62,
    "hidden_size": 6144,
    "intermediate_size": 8192,
    "moe_intermediate_size": 2560,
    "num_experts": 160,
    "num_experts_per_tok": 8,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 262144,
    "rope_theta": 10000000,
    "quantization_config": FP8_BLOCKS,
}
# Qwen/Qwen3-235B-A22B-Instruct-2507.
QWEN_235B: dict[str, Any] = CODER | {
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "rope_theta": 5000000,
    "quantization_config": None,
}
# MiniMaxAI/MiniMax-M2.5.
MINIMAX: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rotary_dim": 64,
    "vocab_size": 200064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 196608,
    "rope_theta": 5000000,
    "quantization_config": FP8_BLOCKS,
}
# meta-llama/Llama-3.3-70B-Instruct.
LLAMA_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}
# deepseek-ai/DeepSeek-R1-0528.
DEEPSEEK_R1: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}

# What older releases did otherwise: experts in chunks until 0.18 (PR 34086), a sampler that sorted the vocabulary and a
# workspace that was freed until 0.16, graphs not reserved until 0.19 (PR 38284), FlashInfer's experts only since 0.15.
VLLM_0_11 = Engine(
    moe_chunk_tokens=32768,
    sampler_bytes_per_logit=30,
    keeps_workspace=False,
    reserves_graphs=False,
    prefers_flashinfer=False,
)
VLLM_0_18 = Engine(reserves_graphs=False)


@dataclass(frozen=True)
class Reading:
    """One start of vLLM that its log describes: `weights` is "Model loading took", `kv` the available KV cache, GiB."""

    name: str
    source: str
    model: dict[str, Any]
    gpu: str
    tensor_parallel: int
    utilization: float
    max_model_len: int
    weights: float | None = None
    kv: float | None = None
    tokens: int | None = None
    data_parallel: int = 1
    expert_parallel: bool = False
    max_num_seqs: int = 1024  # vLLM's default on GPUs of 70 GiB and more
    max_num_batched_tokens: int = 8192  # the same
    engine: Engine = VLLM_0_32
    extras: Extras = field(default_factory=Extras)
    kv_within: float = 0.10

    def planned(self) -> Memory:
        layout = Layout(
            mode="split",
            nodes=1,
            data_parallel=self.data_parallel,
            tensor_parallel=self.tensor_parallel,
            expert_parallel=self.expert_parallel,
        )
        limits = Limits(
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            gpu_memory_utilization=self.utilization,
        )
        return memory(self.spec(), GPUS[self.gpu], layout, limits, self.extras, self.engine)

    def spec(self) -> ModelSpec:
        return read_config({key: value for key, value in self.model.items() if value is not None}, self.name)


def _kaitaku(name: str, kv: float, **other: Any) -> Reading:
    return Reading(
        name, "kaitakuai/experiments", QWEN_235B | {"quantization_config": FP8_BLOCKS}, "h100-sxm", 4, weights=55.22,
        kv=kv, **({"utilization": 0.92, "max_model_len": 240000, "max_num_seqs": 128} | other),
    )  # fmt: skip


def _validation(
    name: str, model: dict[str, Any], weights: float, kv: float, tokens: int | None, **other: Any
) -> Reading:
    return Reading(
        name, "ashishkamra/vllm-memory-estimator, validation_db.json", model, "h200-sxm", weights=weights, kv=kv,
        tokens=tokens, **({"tensor_parallel": 4, "utilization": 0.92, "max_model_len": 8192} | other),
    )  # fmt: skip


_TRITON = Extras(moe_backend="triton")
_FLASHINFER = Extras(moe_backend="flashinfer_cutlass")

# Four constants of the planner (memory of one GPU and of a group beside tensors, of graphs, of the sampler per logit)
# were chosen with these in view, for all at once. Weights, cache and working memory have none to choose.
READINGS = (
    # An H20 with 141 GB shows the same 139.8 GiB as an H200.
    Reading("coder DP8 EP8, H20, 0.10", "vllm-project/recipes PR 12", CODER, "h200-sxm", 1, 0.90, 262144, kv=48.66,
            data_parallel=8, expert_parallel=True, engine=VLLM_0_11),
    Reading("coder TP8 EP8, H20, 0.10", "vllm PR 24072", CODER, "h200-sxm", 8, 0.90, 32000, weights=56.3173,
            expert_parallel=True, engine=VLLM_0_11, extras=Extras(cuda_graphs=False)),
    # The log names the backend.
    _kaitaku("235B TP4, 0.19", 10.89, tokens=242912, extras=_FLASHINFER),
    # Graph estimate switched off, Triton forced.
    _kaitaku("235B TP4 EP4, 0.20", 13.95, expert_parallel=True, extras=_TRITON, engine=VLLM_0_18),
    _validation("235B FP8-dynamic TP4 EP4, 0.11", QWEN_235B | {"quantization_config": FP8_CHANNELS}, 55.2032, 66.13,
                1475472, expert_parallel=True, engine=VLLM_0_11),
    _validation("MiniMax-M2.5 TP8 EP8, 0.18", MINIMAX, 27.01, 96.57, 3266480, tensor_parallel=8, expert_parallel=True,
                engine=VLLM_0_18),
    _kaitaku("235B TP4 EP4, 65536 tokens, 0.20", 5.25, expert_parallel=True, extras=_TRITON, engine=VLLM_0_18,
             max_num_batched_tokens=65536),
    _kaitaku("235B TP4 EP4, 32768 tokens, 0.20", 12.15, expert_parallel=True, extras=_TRITON, utilization=0.96,
             max_num_batched_tokens=32768),
    _kaitaku("235B TP4, 0.15", 14.03, tokens=312944, extras=_FLASHINFER, engine=VLLM_0_11),
    _kaitaku("235B TP4, 1024 sequences, 0.15", 9.27, extras=_FLASHINFER, engine=VLLM_0_11, utilization=0.90,
             max_model_len=262144, max_num_seqs=1024),
    _validation("235B bf16 TP4, 0.11", QWEN_235B, 109.6068, 12.73, 284080, engine=VLLM_0_11),
    _validation("Llama 70B FP8 TP4, 0.11", LLAMA_70B | {"quantization_config": FP8_CHANNELS}, 16.9619, 106.15, 1391344,
                engine=VLLM_0_11),
    _validation("Llama 70B bf16 TP4, 0.18", LLAMA_70B, 32.89, 91.58, 1200400, engine=VLLM_0_18),
    _validation("Llama 70B bf16 TP4, 0.20", LLAMA_70B, 32.89, 90.66, 1188336, max_model_len=131072),
    _validation("DeepSeek-R1 TP8, 0.11", DEEPSEEK_R1, 79.739, 41.6, 635648, tensor_parallel=8, engine=VLLM_0_11),
    # 616,096 tokens: 0.20 padded the latent vector of each.
    _validation("DeepSeek-R1 TP8, 0.20", DEEPSEEK_R1, 79.74, 41.24, None, tensor_parallel=8, max_model_len=163840),
    # Measured on one H200 with vLLM 0.26 and dummy weights, on this model's shapes with fewer layers.
    *(Reading(f"coder, {layers} layers, one H200, 0.26", "own measurement", CODER | {"num_hidden_layers": layers},
              "h200-sxm", 1, 0.90, 65536, weights=weights, kv=kv, tokens=tokens, max_num_seqs=64, kv_within=0.03)
      for layers, weights, kv, tokens in ((4, 32.32, 90.64, 5940448), (8, 61.07, 61.90, 2028352))),
)  # fmt: skip
