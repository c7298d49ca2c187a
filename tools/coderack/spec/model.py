"""The model: shape and number format, read from the `config.json` that Hugging Face ships with the weights.

Only architectures whose memory the planner knows how to count are taken; another one is refused by name, since a wrong
count is found out after half an hour of loading.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from coderack.spec.checked import Frozen, SpecError, validate

# Generous bounds: a slip of the keyboard must not make the planner count for minutes.
Count = Annotated[int, Field(ge=1, le=100_000_000)]
CountOrNone = Annotated[int, Field(ge=0, le=100_000_000)]
Layers = Annotated[int, Field(ge=1, le=1000)]


class GroupedAttention(Frozen):
    """Multi-head attention whose query heads share `kv_heads` key/value heads."""

    kind: Literal["grouped"] = "grouped"
    heads: Count
    kv_heads: Count
    head_dim: Count
    bias: bool = False  # on query, key and value
    output_bias: bool = False
    norm: Literal["none", "per_head", "per_layer"] = "none"  # RMS norms of query and key


class LatentAttention(Frozen):
    """DeepSeek's multi-head latent attention: one compressed vector per token is cached, for all heads together."""

    kind: Literal["latent"] = "latent"
    heads: Count
    query_rank: CountOrNone  # 0: queries are not compressed
    kv_rank: Count
    rope_head_dim: Count
    nope_head_dim: Count
    value_head_dim: Count


class Experts(Frozen):
    """The mixture-of-experts layers. `shared_intermediate` is the width of the expert every token takes, 0 for none."""

    count: Count
    active: Count
    intermediate: Count
    shared_intermediate: CountOrNone = 0
    dense_layers: tuple[int, ...] = ()  # layers with a plain MLP instead
    router_bias: bool = False
    router_bytes: Literal[2, 4] = 2  # MiniMax's router stays in fp32


class Quantisation(Frozen):
    """8-bit weights. `block` is rows x columns under one scale, None where a scale covers one output channel.

    The four counts are layers whose matrices of that kind are converted; the others keep the model's own type, as
    embeddings, lm_head, norms and routers always do.
    """

    method: Literal["fp8", "compressed-tensors"]
    block: tuple[Count, Count] | None
    attention_layers: CountOrNone
    expert_layers: CountOrNone
    shared_expert_layers: CountOrNone
    dense_layers: CountOrNone


class Rope(Frozen):
    """Rotary embedding; `dim` is how many numbers of a head are rotated."""

    dim: Count
    theta: Annotated[float, Field(gt=0)]
    kind: str = "default"
    factor: Annotated[float, Field(gt=0)] | None = None
    original_max_positions: Count | None = None


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights by part, of the whole model.

    `attention` is what tensor parallelism splits, `attention_shared` what every rank holds whole (MLA's down
    projections).
    """

    embedding: int
    lm_head: int
    attention: int
    attention_shared: int
    experts: int
    shared_experts: int
    dense: int
    router: int
    norms: int

    @property
    def total(self) -> int:
        return (
            self.embedding
            + self.lm_head
            + self.attention
            + self.attention_shared
            + self.experts
            + self.shared_experts
            + self.dense
            + self.router
            + self.norms
        )


class ModelSpec(Frozen):
    """A decoder-only transformer. `bytes_per_value` is the size of one unconverted weight and one activation."""

    architecture: str
    layers: Layers
    hidden: Count
    vocab: Count
    tied_embeddings: bool
    bytes_per_value: Literal[2, 4]
    attention: GroupedAttention | LatentAttention
    dense_intermediate: CountOrNone  # of plain MLPs
    experts: Experts | None = None
    quantisation: Quantisation | None = None
    max_positions: Count
    rope: Rope

    @property
    def moe_layers(self) -> int:
        return self.layers - len(self.experts.dense_layers) if self.experts else 0

    @property
    def dense_layers(self) -> int:
        return self.layers - self.moe_layers

    @property
    def parameters(self) -> Parameters:
        moe, embedding = self.experts, self.vocab * self.hidden
        split, shared, norms = self._attention_parameters()
        norms = self.layers * (norms + 2 * self.hidden) + self.hidden
        return Parameters(
            embedding=embedding,
            lm_head=0 if self.tied_embeddings else embedding,
            attention=self.layers * split,
            attention_shared=self.layers * shared,
            experts=self.moe_layers * moe.count * self.expert_parameters if moe else 0,
            shared_experts=self.moe_layers * 3 * self.hidden * moe.shared_intermediate if moe else 0,
            dense=self.dense_layers * 3 * self.hidden * self.dense_intermediate,
            router=self.moe_layers * moe.count * (self.hidden + moe.router_bias) if moe else 0,
            norms=norms,
        )

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert in one layer: gate, up and down projection."""
        return 3 * self.hidden * self.experts.intermediate if self.experts else 0

    @property
    def active_parameters(self) -> int:
        """Weights that one token meets, without the embedding table, of which it reads one row."""
        counts = self.parameters
        idle = 0 if self.experts is None else self.experts.count - self.experts.active
        idle *= self.moe_layers * self.expert_parameters
        # Tied or not, the product with lm_head is computed.
        return counts.total - counts.lm_head - idle

    def cached_values_per_token(self, tensor_parallel: int) -> int:
        """Numbers in the KV cache of one GPU for one token.

        Grouped attention: keys and values of the rank's own heads; with more ranks than heads, heads are repeated.
        Latent attention: the compressed vector, whole on every rank.
        """
        attention = self.attention
        if isinstance(attention, LatentAttention):
            return self.layers * (attention.kv_rank + attention.rope_head_dim)
        heads = max(1, attention.kv_heads // tensor_parallel)
        return self.layers * 2 * heads * attention.head_dim

    def _attention_parameters(self) -> tuple[int, int, int]:
        """Weights of one layer: split over tensor parallel ranks, held whole by each, and in norms."""
        one = self.attention
        if isinstance(one, LatentAttention):
            query = one.heads * (one.nope_head_dim + one.rope_head_dim)
            split = (one.query_rank or self.hidden) * query
            split += one.kv_rank * one.heads * (one.nope_head_dim + one.value_head_dim)
            split += one.heads * one.value_head_dim * self.hidden
            shared = self.hidden * (one.query_rank + one.kv_rank + one.rope_head_dim)
            return split, shared, one.query_rank + one.kv_rank
        query, keys = one.heads * one.head_dim, one.kv_heads * one.head_dim
        split = self.hidden * (2 * query + 2 * keys)
        split += (query + 2 * keys if one.bias else 0) + (self.hidden if one.output_bias else 0)
        norms = {"none": 0, "per_head": 2 * one.head_dim, "per_layer": query + keys}[one.norm]
        return split, 0, norms


class _Config(BaseModel):
    """What the planner reads of a config.json; the rest of it is ignored. Newer names of a key stand second."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    architectures: Annotated[tuple[str, ...], Field(min_length=1)]
    num_hidden_layers: Layers
    hidden_size: Count
    vocab_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count | None = None
    tie_word_embeddings: bool = False
    dtype: str | None = Field(None, validation_alias=AliasChoices("torch_dtype", "dtype"))
    max_position_embeddings: Count
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    rotary_dim: Count | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    use_sliding_window: bool = False
    attention_bias: bool = False
    qk_norm_type: str | None = None
    # mixture of experts
    num_experts: Count | None = Field(
        None, validation_alias=AliasChoices("num_experts", "num_local_experts", "n_routed_experts")
    )
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    n_shared_experts: CountOrNone | None = None
    decoder_sparse_step: Count = 1
    mlp_only_layers: tuple[CountOrNone, ...] | None = None
    first_k_dense_replace: CountOrNone = 0
    moe_layer_freq: Count = 1
    # multi-head latent attention
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_rope_head_dim: Count | None = None
    qk_nope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    quantization_config: dict[str, Any] | None = None


# Architecture -> (attention, feed-forward part); each of the four words has one function below.
_ARCHITECTURES: dict[str, tuple[Literal["grouped", "latent"], Literal["dense", "qwen", "deepseek", "minimax"]]] = {
    "Qwen3MoeForCausalLM": ("grouped", "qwen"),
    "MiniMaxM2ForCausalLM": ("grouped", "minimax"),
    "LlamaForCausalLM": ("grouped", "dense"),
    "Qwen2ForCausalLM": ("grouped", "dense"),
    "Qwen3ForCausalLM": ("grouped", "dense"),
    "DeepseekV2ForCausalLM": ("latent", "deepseek"),
    "DeepseekV3ForCausalLM": ("latent", "deepseek"),
}
_QK_NORM: dict[str, Literal["per_head", "per_layer"]] = {
    "Qwen3MoeForCausalLM": "per_head",
    "Qwen3ForCausalLM": "per_head",
    "MiniMaxM2ForCausalLM": "per_layer",
}
_BYTES: dict[str, Literal[2, 4]] = {"bfloat16": 2, "float16": 2, "float32": 4}


def read_config(config: object, what: str = "config.json") -> ModelSpec:
    """Return the model that a Hugging Face `config.json`, already parsed, describes.

    Raises SpecError, whose text starts with `what`, for an unknown architecture or number format, and for keys that
    are missing or not what they should be.
    """
    if isinstance(config, Mapping):
        _refuse_unknown(config, what)
    raw = validate(_Config, config, what)
    if raw.use_sliding_window:
        _refuse(what, "use_sliding_window is true; the planner counts KV cache for full attention only")
    dtype = raw.dtype or "bfloat16"
    if dtype not in _BYTES:
        _refuse(what, f"dtype is {dtype!r:.40}, wanted {', '.join(_BYTES)}")
    attention_kind, feed_forward = _ARCHITECTURES[raw.architectures[0]]
    attention = _latent(raw, what) if attention_kind == "latent" else _grouped(raw, what)
    experts = None if feed_forward == "dense" else _experts(raw, feed_forward, what)
    has_dense = experts is None or bool(experts.dense_layers)
    return ModelSpec(
        architecture=raw.architectures[0],
        layers=raw.num_hidden_layers,
        hidden=raw.hidden_size,
        vocab=raw.vocab_size,
        tied_embeddings=raw.tie_word_embeddings,
        bytes_per_value=_BYTES[dtype],
        attention=attention,
        dense_intermediate=_need(raw, "intermediate_size", what) if has_dense else 0,
        experts=experts,
        quantisation=_quantisation(raw, experts, what),
        max_positions=raw.max_position_embeddings,
        rope=_rope(raw, attention, what),
    )


def _refuse(what: str, problem: str) -> NoReturn:
    raise SpecError(what, (problem,))


def _refuse_unknown(config: Mapping[Any, Any], what: str) -> None:
    """Before anything else is looked at: another architecture's other keys would only be noise."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    if isinstance(first, str) and first not in _ARCHITECTURES:
        _refuse(what, f"architecture {first!r:.80} is not one whose memory is known: {', '.join(_ARCHITECTURES)}")


def _need(raw: _Config, key: str, what: str) -> int:
    value = getattr(raw, key)
    if value is None:
        _refuse(what, f"{key} is missing, which {raw.architectures[0]} needs")
    return int(value)


def _grouped(raw: _Config, what: str) -> GroupedAttention:
    heads = raw.num_attention_heads
    kv_heads = raw.num_key_value_heads or heads
    if heads % kv_heads:
        _refuse(what, f"num_attention_heads is {heads}, wanted a multiple of num_key_value_heads = {kv_heads}")
    if raw.head_dim is None and raw.hidden_size % heads:
        _refuse(what, f"hidden_size is {raw.hidden_size}, wanted a multiple of num_attention_heads = {heads}")
    qwen2 = raw.architectures[0] == "Qwen2ForCausalLM"
    return GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=raw.head_dim or raw.hidden_size // heads,
        bias=qwen2 or raw.attention_bias,
        output_bias=raw.attention_bias and raw.architectures[0] == "LlamaForCausalLM",
        norm=_QK_NORM.get(raw.architectures[0], "none"),
    )


def _latent(raw: _Config, what: str) -> LatentAttention:
    return LatentAttention(
        heads=raw.num_attention_heads,
        query_rank=raw.q_lora_rank or 0,
        kv_rank=_need(raw, "kv_lora_rank", what),
        rope_head_dim=_need(raw, "qk_rope_head_dim", what),
        nope_head_dim=_need(raw, "qk_nope_head_dim", what),
        value_head_dim=_need(raw, "v_head_dim", what),
    )


def _experts(raw: _Config, kind: str, what: str) -> Experts:
    layers = range(raw.num_hidden_layers)
    # MiniMax calls the width of an expert intermediate_size, since it has no other.
    intermediate = _need(raw, "intermediate_size" if kind == "minimax" else "moe_intermediate_size", what)
    shared = 0
    dense: tuple[int, ...] = ()
    if kind == "qwen":
        only = raw.mlp_only_layers or ()
        dense = tuple(layer for layer in layers if layer in only or (layer + 1) % raw.decoder_sparse_step)
    elif kind == "deepseek":
        shared = (raw.n_shared_experts or 0) * intermediate
        first = raw.first_k_dense_replace
        dense = tuple(layer for layer in layers if layer < first or layer % raw.moe_layer_freq)
    count, active = _need(raw, "num_experts", what), _need(raw, "num_experts_per_tok", what)
    if active > count:
        _refuse(what, f"num_experts_per_tok is {active}, wanted at most num_experts = {count}")
    return Experts(
        count=count,
        active=active,
        intermediate=intermediate,
        shared_intermediate=shared,
        dense_layers=dense,
        router_bias=kind == "minimax" or raw.architectures[0] == "DeepseekV3ForCausalLM",
        router_bytes=4 if kind == "minimax" else 2,
    )


def _rope(raw: _Config, attention: GroupedAttention | LatentAttention, what: str) -> Rope:
    # Transformers 5 writes rope_parameters with theta inside; before, rope_scaling stood next to rope_theta.
    given = raw.rope_parameters or raw.rope_scaling or {}
    head = attention.rope_head_dim if isinstance(attention, LatentAttention) else attention.head_dim
    data = {
        "dim": raw.rotary_dim or head,
        "theta": given.get("rope_theta", raw.rope_theta if raw.rope_theta is not None else 10_000.0),
        "kind": given.get("rope_type", given.get("type", "default")),
        "factor": given.get("factor"),
        "original_max_positions": given.get("original_max_position_embeddings"),
    }
    return validate(Rope, data, f"{what}, rope")


def _quantisation(raw: _Config, experts: Experts | None, what: str) -> Quantisation | None:
    config = raw.quantization_config
    if config is None:
        return None
    method = config.get("quant_method")
    if method == "fp8":
        block = config.get("weight_block_size")
        kept = config.get("modules_to_not_convert") or config.get("ignored_layers") or []
    elif method == "compressed-tensors":
        block = _compressed_block(config, what)
        kept = config.get("ignore") or []
    else:
        _refuse(
            what,
            f"quantization_config.quant_method is {method!r:.40}, wanted fp8 or compressed-tensors with 8 bits, or no "
            "quantization_config: the planner does not know how large others' weights are",
        )
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        _refuse(what, "quantization_config lists modules that are not names, wanted a list of module names")
    keeps = _Kept(tuple(kept), what)
    moe = set(range(raw.num_hidden_layers)) - set(experts.dense_layers) if experts else set()
    dense = set(range(raw.num_hidden_layers)) - moe
    everywhere = moe | dense
    return validate(
        Quantisation,
        {
            "method": method,
            "block": block,
            "attention_layers": keeps.converted(everywhere, "self_attn.o_proj"),
            "expert_layers": keeps.converted(moe, "mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2"),
            "shared_expert_layers": keeps.converted(moe, "mlp.shared_experts.down_proj"),
            "dense_layers": keeps.converted(dense, "mlp.down_proj"),
        },
        f"{what}, quantization_config",
    )


def _compressed_block(config: Mapping[str, Any], what: str) -> object:
    groups = config.get("config_groups")
    weights = [
        group.get("weights")
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping)
    ]
    if len(weights) != 1 or not isinstance(weights[0], Mapping) or weights[0].get("num_bits") != 8:
        _refuse(what, "quantization_config.config_groups has not exactly one group with 8-bit weights, wanted that")
    return weights[0].get("block_structure")


class _Kept:
    """Module names that a quantisation leaves alone: whole names, parts of names between dots, or `re:` patterns."""

    def __init__(self, names: tuple[str, ...], what: str) -> None:
        self._parts = tuple(f".{name}." for name in names if not name.startswith("re:"))
        try:
            self._patterns = tuple(re.compile(name[3:]) for name in names if name.startswith("re:"))
        except re.error as error:
            raise SpecError(what, (f"quantization_config ignores a pattern that is none: {error}",)) from None

    def converted(self, layers: set[int], *modules: str) -> int:
        """How many of `layers` have none of `modules` (names of the same matrix in different families) kept."""
        return sum(not any(self._keeps(f"model.layers.{layer}.{name}") for name in modules) for layer in layers)

    def _keeps(self, module: str) -> bool:
        dotted = f".{module}."
        return any(part in dotted for part in self._parts) or any(one.match(module) for one in self._patterns)
