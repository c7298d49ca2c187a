"""What one GPU's memory holds under a layout: weights, working memory, and what is left for the KV cache.

One model for all layouts, after how vLLM 0.32 sizes the cache: it takes `gpu_memory_utilization` of the memory, loads
the weights, runs one step of the largest allowed batch to see the peak, reserves the CUDA graphs, and gives the rest to
the KV cache. Formulae, constants and their sources: README.md of this folder. Every figure that is not exact is a
range; sums of ranges add their ends, so that the low end is low for all reasons at once.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coderack.spec.checked import SpecError
from coderack.spec.hardware import GpuSpec
from coderack.spec.model import GroupedAttention, LatentAttention, ModelSpec
from coderack.spec.profile import Layout, Limits, ServingProfile, flag_of, values_of

DEFAULT_UTILIZATION = 0.92  # vLLM 0.32's, for a profile that leaves it out
BLOCK_TOKENS = 16  # vLLM's pages of the KV cache


@dataclass(frozen=True)
class Range:
    """Bytes, or another quantity, between `low` and `high`; `expected` is the planner's best guess."""

    low: float
    expected: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def times(self, low: float, expected: float, high: float) -> "Range":
        return Range(self.low * low, self.expected * expected, self.high * high)


def exactly(value: float) -> Range:
    return Range(value, value, value)


@dataclass(frozen=True)
class Part:
    """One piece of the stack, bottom first. `group` is weights, activations or runtime."""

    key: str
    label: str
    group: Literal["weights", "activations", "runtime"]
    size: Range


@dataclass(frozen=True)
class KvCache:
    """The cache of one data parallel rank, on each of its GPUs.

    `requests` is how many requests of max_model_len it holds at once. More free memory means more of all three, so
    `low` is the pessimistic end.
    """

    dtype: str
    bytes_per_token: int
    available: Range
    tokens: Range
    requests: Range


@dataclass(frozen=True)
class Memory:
    """One GPU of the group, in bytes. `limit` is what vLLM may use; the parts and the KV cache fill it.

    `kv` is under the profile's cache type, `alternatives` under others, by type. `ranks` is the number of data parallel
    ranks of the whole deployment, each with a cache of its own.
    """

    total: Range
    limit: Range
    parts: tuple[Part, ...]
    kv: KvCache
    alternatives: tuple[KvCache, ...]
    max_model_len: int
    ranks: int

    @property
    def weights(self) -> Range:
        return self.group("weights")

    @property
    def occupied(self) -> Range:
        return _sum(part.size for part in self.parts)

    def group(self, name: str) -> Range:
        return _sum(part.size for part in self.parts if part.group == name)

    def part(self, key: str) -> Range:
        """The size of one part, zero when this layout has none of that name."""
        return _sum(part.size for part in self.parts if part.key == key)


@dataclass(frozen=True)
class Engine:
    """What differs between vLLM releases. The defaults are 0.32's.

    `moe_chunk_tokens`: most tokens that the expert kernel takes at once; None since 0.18 (PR 34086), 32,768 before.
    `sampler_bytes_per_logit`: profiling samples max_num_seqs rows of the whole vocabulary. Logits in bf16, gathered,
    in fp32, and one copy; before 0.16 top-p sorted them, with 64-bit indices.
    `keeps_workspace`: the expert kernels' workspace stays allocated, so that the sampler's peak comes on top of it.
    `reserves_graphs`: CUDA graphs are estimated and taken from the cache (PR 38284).
    `prefers_flashinfer`: block FP8 experts of a group on Hopper run FlashInfer's CUTLASS kernel.
    """

    moe_chunk_tokens: int | None = None
    sampler_bytes_per_logit: float = 14
    keeps_workspace: bool = True
    reserves_graphs: bool = True
    prefers_flashinfer: bool = True


@dataclass(frozen=True)
class Extras:
    """What a profile asks for beside layout and limits, as far as it takes memory."""

    cuda_graphs: bool = True
    draft_bytes: float = 0.0  # of the draft model's weights
    draft_tokens: int = 0  # proposed per step
    moe_backend: str | None = None  # --moe-backend, None for vLLM's choice
    positions: int | None = None  # with YaRN, more than the model's own


VLLM_0_32 = Engine()

# Beside PyTorch's tensors: CUDA modules, attention workspaces, NCCL's and the all-reduce's buffers.
_ONE_GPU = Range(0.15, 0.25, 0.6)  # GiB; one H200, vLLM 0.26: 0.23
_GROUP = Range(1.4, 2.35, 3.3)  # GiB; readings of TP 4 and TP 8 leave 2.1 to 2.4 when all else is taken off
# What is set aside for graphs, GiB: 0.24 for 4 and 8 layers, 0.97 for 80, 1.2 to 2.8 for 94 layers with experts.
_GRAPHS_FIXED, _GRAPHS_PER_LAYER = 0.2, 0.0165
_GRAPHS_SPREAD = (0.5, 1.0, 2.0)
# FlashInfer's fused all-reduce on Hopper: largest tensor it takes, by tensor parallel size. It allocates one buffer and
# three of its Lamport protocol, each for all ranks.
_ALL_REDUCE_LIMIT = {2: 64 * 2**20, 4: 2 * 2**20, 8: 2**19}
_ALL_REDUCE_BUFFERS = 4
_GIB = 2**30
# Which kernel vLLM picks, and how FlashInfer's allocates inside, is read from source, not measured.
_WORKSPACE_SPREAD = {"triton": (0.9, 1.0, 1.25), "flashinfer": (0.75, 1.0, 1.3), "batched": (0.7, 1.0, 1.5)}
_FORWARD_SPREAD = (0.85, 1.1, 1.5)

_BATCHED = ("deepep_low_latency", "nixl_ep")

# Bytes of one number in the cache, and of the scale that every head's keys and every head's values have per token.
_KV_BYTES: dict[str, tuple[float, float]] = {
    "float16": (2, 0),
    "bfloat16": (2, 0),
    "fp8": (1, 0),
    "fp8_e4m3": (1, 0),
    "fp8_e5m2": (1, 0),
    "fp8_per_token_head": (1, 4),
    "int8_per_token_head": (1, 4),
    "int4_per_token_head": (0.5, 4),
}


def extras_of(profile: ServingProfile) -> Extras:
    """What `profile`'s free arguments and its speculative decoding mean for memory."""
    backends = values_of(profile.engine_args, "--moe-backend")
    draft = profile.speculative
    return Extras(
        cuda_graphs="--enforce-eager" not in map(flag_of, profile.engine_args),
        draft_bytes=(draft.weights_gib or 0) * _GIB if draft else 0,
        draft_tokens=draft.tokens if draft else 0,
        moe_backend=backends[-1] if backends else None,
        positions=profile.yarn.max_positions if profile.yarn else None,
    )


def plan_memory(profile: ServingProfile, model: ModelSpec, gpu: GpuSpec) -> Memory:
    """Return one GPU's memory under `profile`. Raises SpecError where the planner cannot count what it asks for."""
    return memory(model, gpu, profile.layout, profile.limits, extras_of(profile))


def memory(
    model: ModelSpec,
    gpu: GpuSpec,
    layout: Layout,
    limits: Limits,
    extras: Extras | None = None,
    engine: Engine = VLLM_0_32,
) -> Memory:
    """Return what one GPU holds. The layout has to divide the model (see `check`); no figure makes sense otherwise.

    Raises SpecError for a cache type whose size is not known.
    """
    extras = extras or Extras()
    utilization = limits.gpu_memory_utilization or DEFAULT_UTILIZATION
    low, high = gpu.memory_bytes
    total = Range(low, (low + high) / 2, high)
    limit = total.times(utilization, utilization, utilization)
    parts = (
        *_weights(model, layout, extras),
        *_draft(extras, layout),
        *_activations(model, gpu, layout, limits, extras, engine),
        *_runtime(model, gpu, layout, limits, extras, engine),
    )
    occupied = _sum(part.size for part in parts)
    free = Range(limit.low - occupied.high, limit.expected - occupied.expected, limit.high - occupied.low)
    return Memory(
        total=total,
        limit=limit,
        parts=parts,
        kv=_cache(model, layout, limits, limits.kv_cache_dtype or "auto", free),
        alternatives=tuple(_cache(model, layout, limits, dtype, free) for dtype in ("bfloat16", "fp8")),
        max_model_len=limits.max_model_len,
        ranks=layout.data_parallel * (layout.nodes if layout.mode == "split" else 1),
    )


def group_size(layout: Layout) -> int:
    """GPUs that work on one step together; the expert parallel size where that is on."""
    return layout.data_parallel * layout.tensor_parallel


def kv_bytes_per_token(model: ModelSpec, tensor_parallel: int, dtype: str) -> int:
    """Bytes of KV cache that one token takes on each GPU of its rank. `auto` is the model's own type."""
    values = model.cached_values_per_token(tensor_parallel)
    if dtype == "auto":
        return values * model.bytes_per_value
    if dtype not in _KV_BYTES:
        raise SpecError("limits.kv_cache_dtype", (f"is {dtype}, whose size is not known; wanted one of "
                                                  f"auto, {', '.join(_KV_BYTES)}",))  # fmt: skip
    width, scale = _KV_BYTES[dtype]
    one = model.attention
    heads = values // (one.head_dim if isinstance(one, GroupedAttention) else one.kv_rank + one.rope_head_dim)
    return math.ceil(values * width + heads * scale)


def _cache(model: ModelSpec, layout: Layout, limits: Limits, dtype: str, free: Range) -> KvCache:
    per_token = kv_bytes_per_token(model, layout.tensor_parallel, dtype)
    blocks_per_request = math.ceil(limits.max_model_len / BLOCK_TOKENS)

    def blocks(available: float) -> int:
        return max(0, int(available // (per_token * BLOCK_TOKENS)))

    counts = Range(blocks(free.low), blocks(free.expected), blocks(free.high))
    return KvCache(
        dtype=dtype,
        bytes_per_token=per_token,
        available=Range(max(0.0, free.low), max(0.0, free.expected), max(0.0, free.high)),
        tokens=counts.times(BLOCK_TOKENS, BLOCK_TOKENS, BLOCK_TOKENS),
        requests=counts.times(*(1 / blocks_per_request,) * 3),
    )


# Weights ----------------------------------------------------------------------------------------------------------


def _weights(model: ModelSpec, layout: Layout, extras: Extras) -> tuple[Part, ...]:
    counts, tp = model.parameters, layout.tensor_parallel
    own = model.bytes_per_value
    embeddings = (counts.embedding + counts.lm_head) / tp
    sizes = {
        "experts": ("experts", _experts(model, layout)),
        "attention": ("attention", _attention(model, tp)),
        "dense": ("dense MLP and shared experts", _dense(model, tp)),
        "embeddings": ("embeddings and lm_head" if counts.lm_head else "embeddings, also used as lm_head",
                       embeddings * own),
        "router": ("router, norms, rotary table", _small(model, extras)),
    }  # fmt: skip
    return tuple(Part(key, label, "weights", exactly(size)) for key, (label, size) in sizes.items() if size)


def _small(model: ModelSpec, extras: Extras) -> float:
    """What every GPU holds whole: routers, norms, and the sine and cosine of every position."""
    counts, own = model.parameters, model.bytes_per_value
    router = max(own, model.experts.router_bytes) if model.experts else 0
    return counts.router * router + (counts.norms + (extras.positions or model.max_positions) * model.rope.dim) * own


def _experts(model: ModelSpec, layout: Layout) -> float:
    moe = model.experts
    if moe is None:
        return 0
    group = group_size(layout)
    # With expert parallelism whole experts are dealt out, and a rank may get one more than another; without it every
    # expert is cut into slices, over all GPUs of the group.
    per_gpu = math.ceil(moe.count / group) if layout.expert_parallel else moe.count / group
    converted = model.quantisation.expert_layers if model.quantisation else 0
    return per_gpu * model.expert_parameters * _bytes_per_weight(model, converted, model.moe_layers) * model.moe_layers


def _attention(model: ModelSpec, tp: int) -> float:
    counts, one = model.parameters, model.attention
    converted = model.quantisation.attention_layers if model.quantisation else 0
    width = _bytes_per_weight(model, converted, model.layers)
    if isinstance(one, LatentAttention):
        # Decoding multiplies with kv_b_proj's two halves in the model's own type, kept beside the projection.
        absorbed = model.layers * one.kv_rank * one.heads * (one.nope_head_dim + one.value_head_dim)
        return (counts.attention / tp + counts.attention_shared) * width + absorbed / tp * model.bytes_per_value
    repeats = max(1, tp // one.kv_heads)  # a rank holds at least one key/value head
    keys = model.layers * model.hidden * 2 * one.kv_heads * one.head_dim
    return (counts.attention + (repeats - 1) * keys) / tp * width


def _dense(model: ModelSpec, tp: int) -> float:
    counts, quantisation = model.parameters, model.quantisation
    shared = _bytes_per_weight(model, quantisation.shared_expert_layers if quantisation else 0, model.moe_layers)
    dense = _bytes_per_weight(model, quantisation.dense_layers if quantisation else 0, model.dense_layers)
    return (counts.shared_experts * shared + counts.dense * dense) / tp


def _bytes_per_weight(model: ModelSpec, converted: int, layers: int) -> float:
    """Mean over layers of which `converted` have 8-bit weights with their fp32 scales."""
    if not layers or model.quantisation is None:
        return model.bytes_per_value
    rows, columns = model.quantisation.block or (1, model.hidden)
    eight_bits = 1 + 4 / (rows * columns)
    return (converted * eight_bits + (layers - converted) * model.bytes_per_value) / layers


def _draft(extras: Extras, layout: Layout) -> tuple[Part, ...]:
    if not extras.draft_bytes:
        return ()
    whole = extras.draft_bytes
    # Split like the model or, for some methods, whole on every GPU.
    return (Part("draft", "draft model", "weights", Range(whole / layout.tensor_parallel, whole, whole)),)


# Working memory ---------------------------------------------------------------------------------------------------


def gathered_tokens(model: ModelSpec, layout: Layout, limits: Limits) -> int:
    """Tokens that the expert kernels of one GPU see in the largest step.

    The all-gather hands every rank the tokens of all data parallel ranks, and profiling runs all of them full.
    """
    return limits.max_num_batched_tokens * (layout.data_parallel if model.experts else 1)


def _activations(
    model: ModelSpec, gpu: GpuSpec, layout: Layout, limits: Limits, extras: Extras, engine: Engine
) -> tuple[Part, ...]:
    kernel = _kernel(model, gpu, layout, extras, engine)
    workspace = exactly(_workspace(model, kernel, layout, limits, engine)).times(*_WORKSPACE_SPREAD[kernel])
    forward = exactly(_forward(model, kernel, layout, limits, engine)).times(*_FORWARD_SPREAD)
    rows = min(limits.max_num_seqs * (1 + extras.draft_tokens), limits.max_num_batched_tokens)
    sampler = exactly(rows * model.vocab * engine.sampler_bytes_per_logit).times(0.7, 1.0, 1.3)
    # The sampler runs when the forward pass has given its tensors back.
    if engine.keeps_workspace and kernel != "flashinfer":
        peak, kept = _larger(forward, sampler), workspace
    else:
        peak, kept = _larger(forward + workspace, sampler), exactly(0)
        forward_share = min(workspace.expected, peak.expected)
        kept, peak = _split(peak, workspace) if forward_share else (kept, peak)
    label = f"expert kernels' workspace, {gathered_tokens(model, layout, limits):,} tokens"
    parts = (
        Part("workspace", label, "activations", kept),
        Part("forward", "hidden states, or logits when larger", "activations", peak),
    )
    return tuple(part for part in parts if part.size.high)


def _split(whole: Range, part: Range) -> tuple[Range, Range]:
    """`part` as far as it is in `whole`, and the rest."""
    share = Range(min(part.low, whole.low), min(part.expected, whole.expected), min(part.high, whole.high))
    return share, Range(whole.low - share.low, whole.expected - share.expected, whole.high - share.high)


def _kernel(
    model: ModelSpec, gpu: GpuSpec, layout: Layout, extras: Extras, engine: Engine
) -> Literal["triton", "flashinfer", "batched"]:
    """Which family of expert kernels runs: vLLM 0.32's own choice, unless --moe-backend names one."""
    if layout.all2all_backend in _BATCHED:
        return "batched"
    if extras.moe_backend is not None:
        return "flashinfer" if extras.moe_backend.startswith("flashinfer") else "triton"
    quantisation = model.quantisation
    blocks = quantisation is not None and quantisation.method == "fp8" and quantisation.block is not None
    # Block FP8 on Hopper: FlashInfer's CUTLASS kernel with expert parallelism, Triton's without.
    grouped = layout.expert_parallel and group_size(layout) > 1
    if engine.prefers_flashinfer and gpu.architecture == "hopper" and blocks and grouped:
        return "flashinfer"
    return "triton"


def _workspace(model: ModelSpec, kernel: str, layout: Layout, limits: Limits, engine: Engine) -> float:
    """Bytes between the expert matrices: what comes out of the first product and out of the second.

    Both buffers have one row per token and chosen expert, wide enough for either product. FlashInfer's kernel quantises
    its input into a third. The batched format has a row for every token that could come, for each local expert.
    """
    moe = model.experts
    if moe is None:
        return 0
    group, width = group_size(layout), model.bytes_per_value
    inner = moe.intermediate if layout.expert_parallel else moe.intermediate / group
    tokens = gathered_tokens(model, layout, limits)
    if engine.moe_chunk_tokens is not None:
        tokens = min(tokens, engine.moe_chunk_tokens)
    rows = tokens * moe.active
    if kernel == "batched":
        rows = tokens * math.ceil(moe.count / group)
    buffers = width * (max(2 * inner, model.hidden) + max(inner, model.hidden))
    if kernel == "flashinfer":
        buffers += max(inner, model.hidden)
        return rows * buffers + tokens * model.hidden * width
    return rows * buffers


def _forward(model: ModelSpec, kernel: str, layout: Layout, limits: Limits, engine: Engine) -> float:
    """Bytes of hidden states at the fuller of two moments: in attention, or between the expert matrices."""
    own, width, hidden = limits.max_num_batched_tokens, model.bytes_per_value, model.hidden
    query, keys, out = _attention_widths(model)
    tp = layout.tensor_parallel
    # Residual and normed input or output; query, key and value, once more after rotation; the result, and its FP8 copy.
    attention = own * (2 * hidden * width + ((query + 2 * keys) + (query + keys) + out) * width / tp + out / tp)
    return max(attention, _between_experts(model, kernel, layout, limits, engine), _dense_forward(model, tp, own))


def _attention_widths(model: ModelSpec) -> tuple[int, int, int]:
    one = model.attention
    if isinstance(one, LatentAttention):
        # Prefill expands the compressed vector into keys and values of every head.
        head = one.nope_head_dim + one.rope_head_dim
        return one.heads * head, one.heads * head, one.heads * one.value_head_dim
    return one.heads * one.head_dim, one.kv_heads * one.head_dim, one.heads * one.head_dim


def _between_experts(model: ModelSpec, kernel: str, layout: Layout, limits: Limits, engine: Engine) -> float:
    moe = model.experts
    if moe is None:
        return 0
    own, width, hidden = limits.max_num_batched_tokens, model.bytes_per_value, model.hidden
    all_tokens = gathered_tokens(model, layout, limits)
    chunk = min(all_tokens, engine.moe_chunk_tokens or all_tokens)
    inner = moe.intermediate if layout.expert_parallel else moe.intermediate / group_size(layout)
    # Residual and input of the own tokens; the input's FP8 copy, and that of the intermediate result.
    size: float = own * 2 * hidden * width
    if kernel == "triton":
        size += all_tokens * hidden + chunk * moe.active * inner
    if layout.data_parallel > 1:
        # What the exchange brings (FlashInfer's kernel wants it unquantised) and what goes back.
        size += all_tokens * hidden * width * (2 if kernel == "flashinfer" else 1)
    return size


def _dense_forward(model: ModelSpec, tp: int, own: int) -> float:
    moe = model.experts
    inner = max(model.dense_intermediate, moe.shared_intermediate if moe else 0) / tp
    width = model.bytes_per_value
    return own * (2 * model.hidden * width + 3 * inner * width + inner) if inner else 0


def _runtime(
    model: ModelSpec, gpu: GpuSpec, layout: Layout, limits: Limits, extras: Extras, engine: Engine
) -> tuple[Part, ...]:
    alone = group_size(layout) == 1
    fixed = (_ONE_GPU if alone else _GROUP).times(_GIB, _GIB, _GIB)
    label = "CUDA modules" if alone else "CUDA modules, NCCL, all-reduce buffers"
    tp = layout.tensor_parallel
    if gpu.architecture == "hopper" and tp in _ALL_REDUCE_LIMIT:
        largest: float = min(
            _ALL_REDUCE_LIMIT[tp], limits.max_num_batched_tokens * model.hidden * model.bytes_per_value
        )
        # None of it where FlashInfer is not installed or cannot map its peers.
        fixed += Range(0, _ALL_REDUCE_BUFFERS * tp * largest, _ALL_REDUCE_BUFFERS * tp * largest)
    parts = [Part("non_torch", label, "runtime", fixed)]
    if extras.cuda_graphs and engine.reserves_graphs:
        graphs = exactly(_GIB * (_GRAPHS_FIXED + _GRAPHS_PER_LAYER * model.layers)).times(*_GRAPHS_SPREAD)
        parts.append(Part("graphs", "CUDA graphs", "runtime", graphs))
    return tuple(parts)


def _larger(one: Range, other: Range) -> Range:
    return Range(max(one.low, other.low), max(one.expected, other.expected), max(one.high, other.high))


def _sum(sizes: Iterable[Range]) -> Range:
    total = exactly(0)
    for size in sizes:
        total = total + size
    return total
