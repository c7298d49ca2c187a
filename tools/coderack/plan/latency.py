"""How long a step takes: the roofline of one layout, with its losses.

A step is one pass through all layers: for decoding (one token of each running sequence), for a chunk of a prompt, or
both. The time of a layer is what the slowest GPU needs to read its weights and cache and to compute, plus the
collectives, plus a fixed part. The time of a step is at least the host's. All times here are seconds, sizes bytes.

The exchange of expert parallelism is vLLM 0.32's default, all-gather and reduce-scatter: every GPU gets the tokens of
all data parallel ranks in the model's own type, 2 bytes per value (vllm/distributed/device_communicators/all2all.py,
vllm/model_executor/models/qwen3_moe.py). Routing is taken as uniform.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from coderack.plan.assumptions import ROOFLINE, Figures
from coderack.plan.layouts import GroupLayout
from coderack.spec.hardware import GpuSpec
from coderack.spec.model import GroupedAttention, ModelSpec

_MICRO, _MILLI, _GIGA = 1e-6, 1e-3, 1e9
# Between small and large collectives over nodes NCCL changes protocols. With this size `_over_nodes` gives all ten rows
# from 2 KiB to 1 MiB of a public all-gather over 16 ranks (bottlerocket-kernel-kit PR #313) within 10 %.
_MEDIUM_BYTES = 0.8 * 2**20


@dataclass(frozen=True)
class Step:
    """Seconds of one step by part; parts of the GPU add up, the host works at the same time."""

    linear: float  # attention projections, dense and shared experts, router
    attention: float  # over the KV cache, and of a prompt over itself
    experts: float
    head: float
    fixed: float  # per layer, however small the work
    all_reduce: float  # within tensor parallel groups
    exchange: float  # of tokens between all GPUs of the group
    host: float

    @property
    def gpu(self) -> float:
        return math.fsum(getattr(self, field.name) for field in fields(self) if field.name != "host")

    @property
    def seconds(self) -> float:
        return max(self.gpu, self.host)


@dataclass(frozen=True)
class Work:
    """What one step of a group does.

    `sequences` decode, spread evenly over the ranks, each over `context` tokens. `prefill_ranks` of the ranks have a
    chunk of `prefill_tokens` tokens as well, whose tokens attend to `attended` tokens in all. Those three may be means.
    """

    sequences: int = 0
    context: int = 0
    prefill_ranks: float = 0
    prefill_tokens: float = 0
    attended: float = 0.0


@dataclass(frozen=True)
class EngineGroup:
    """One group of engines: what is timed. `cache_bytes` is the size of one value in the KV cache."""

    model: ModelSpec
    gpu: GpuSpec
    layout: GroupLayout
    figures: Figures
    cache_bytes: float = 2.0

    @cached_property
    def sizes(self) -> "_Sizes":
        return _sizes(self.model)


def step(engine: EngineGroup, work: Work) -> Step:
    """Return the time of one step, as the slowest GPU of the group sees it."""
    model, layout, figures = engine.model, engine.layout, engine.figures
    of_rank = math.ceil(work.sequences / layout.data_parallel) + work.prefill_tokens * bool(work.prefill_ranks)
    in_group = work.sequences + work.prefill_ranks * work.prefill_tokens
    # Ranks that decode are filled up to the same number of tokens, so that they can replay the same CUDA graph.
    padded = math.ceil(work.sequences / layout.data_parallel) * layout.data_parallel
    exchanged = padded + work.prefill_ranks * work.prefill_tokens
    row = model.hidden * model.bytes_per_value
    return Step(
        linear=_linear(engine, of_rank),
        attention=_attention(engine, work),
        experts=_experts(engine, in_group),
        head=_head(engine, work),
        fixed=model.layers * figures.layer_us * _MICRO,
        all_reduce=_all_reduces(engine, of_rank * row),
        exchange=_exchange(engine, exchanged * row, of_rank * row),
        host=figures.host_step_ms * _MILLI + _agreement(engine),
    )


def decode(engine: EngineGroup, sequences: int, context: int) -> Step:
    """One token for each of `sequences` running in the group, each over `context` tokens."""
    return step(engine, Work(sequences=sequences, context=context))


def prefill(
    engine: EngineGroup, prompt: int, batched_tokens: int, *, cached: int = 0, ranks: int = 1, prompts: int = 1
) -> float:
    """Seconds until the first token of the last of `prompts` prompts on each of `ranks` ranks, all starting together.

    A step takes at most `batched_tokens` tokens per rank: a long prompt comes in chunks, here of one size, and short
    ones share a step. The first `cached` tokens are in the prefix cache.
    """
    new = prompt - cached
    chunks, together = math.ceil(new / batched_tokens), max(1, min(prompts, batched_tokens // new))
    # A token looks back over what is cached and, on average, half of what is new.
    attended = new * (cached + new / 2) / chunks
    one = step(engine, Work(prefill_ranks=ranks, prefill_tokens=new / chunks * together, attended=attended * together))
    # The next chunk is scheduled when this one is through.
    steps = math.ceil(prompts / together) * chunks
    return engine.figures.first_token_ms * _MILLI + steps * (one.gpu + one.host)


def expected_touched(count: int, active: int, tokens: float) -> float:
    """How many of `count` experts at least one of `tokens` tokens goes to, each to `active`, on average."""
    return count * _touched_share(count, active, tokens)


def expected_busiest(local: int, share: float, gpus: int) -> float:
    """The largest number of touched experts on one of `gpus` GPUs with `local` experts each, on average.

    Each expert is touched with probability `share`; GPUs are taken as independent, which at small batches they nearly
    are. The mean of a maximum is the sum over n of the probability that it is above n.
    """
    return _busiest(local, round(share, 9), gpus)


@lru_cache(maxsize=4096)
def _busiest(local: int, share: float, gpus: int) -> float:
    below, mean = 0.0, 0.0
    for number in range(local):
        below += math.comb(local, number) * share**number * (1 - share) ** (local - number)
        mean += 1 - min(1.0, below) ** gpus
    return mean


@dataclass(frozen=True)
class _Sizes:
    """Bytes of the whole model by what reads them, and weights that one token is multiplied with."""

    split: float  # over the tensor parallel ranks
    whole: float  # on every GPU
    expert: float  # one expert in all layers
    head: float
    linear_weights: float
    whole_weights: float
    expert_weights: float  # one expert in all layers


def _sizes(model: ModelSpec) -> _Sizes:
    counts, converted, size = model.parameters, model.quantisation, model.bytes_per_value
    moe, layers = model.moe_layers, model.layers

    def of(number: float, layers_converted: int, among: int) -> float:
        return number * (size - (size - 1) * layers_converted / among) if among else 0.0

    attention = of(1.0, converted.attention_layers if converted else 0, layers)
    expert = of(moe * model.expert_parameters, converted.expert_layers if converted else 0, moe)
    shared = of(counts.shared_experts, converted.shared_expert_layers if converted else 0, moe)
    dense = of(counts.dense, converted.dense_layers if converted else 0, model.dense_layers)
    return _Sizes(
        split=counts.attention * attention + shared + dense,
        whole=counts.attention_shared * attention + counts.router * size,
        expert=expert,
        # Tied or not, the whole table is read for the product.
        head=model.vocab * model.hidden * size,
        linear_weights=counts.attention + counts.shared_experts + counts.dense,
        whole_weights=counts.attention_shared + counts.router,
        expert_weights=moe * model.expert_parameters,
    )


def _linear(engine: EngineGroup, tokens: float) -> float:
    sizes, figures, tensor = engine.sizes, engine.figures, engine.layout.tensor_parallel
    reading = (sizes.split / tensor + sizes.whole) / (engine.gpu.memory_bytes_per_second * figures.memory_share)
    flops = 2 * tokens * (sizes.linear_weights / tensor + sizes.whole_weights)
    return _both(reading, flops / (_tensor_rate(engine) * figures.linear_share), figures.corner)


def _attention(engine: EngineGroup, work: Work) -> float:
    model, gpu, figures, tensor = engine.model, engine.gpu, engine.figures, engine.layout.tensor_parallel
    of_rank = math.ceil(work.sequences / engine.layout.data_parallel)
    cache = of_rank * work.context * model.cached_values_per_token(tensor) * engine.cache_bytes
    reading = cache / (gpu.memory_bytes_per_second * figures.cache_share)
    one = model.attention
    if isinstance(one, GroupedAttention):
        per_pair = 4 * one.heads * one.head_dim
    else:
        per_pair = 2 * one.heads * (one.nope_head_dim + one.rope_head_dim + one.value_head_dim)
    flops = model.layers * per_pair * work.attended / tensor if work.prefill_ranks else 0.0
    return reading + flops / (gpu.bf16_flops * figures.attention_share)


def _experts(engine: EngineGroup, tokens: float) -> float:
    layout, figures, experts = engine.layout, engine.figures, engine.model.experts
    if experts is None or not tokens:
        return 0.0
    share = _touched_share(experts.count, experts.active, tokens)
    each = tokens * experts.active / experts.count
    if layout.expert_parallel:
        local, slices = math.ceil(experts.count / layout.gpus), 1
        mean = share * experts.count / layout.gpus
        touched = mean + figures.busiest_gpu * (max(mean, expected_busiest(local, share, layout.gpus)) - mean)
        imbalance = figures.expert_imbalance if layout.gpus > 1 else 1.0
        rows = each * experts.count / layout.gpus * _towards(imbalance, each)
    else:
        slices, touched = layout.gpus, experts.count * share
        rows = each * experts.count
    # An expert's rows are filled up to the kernel's tile, half a tile on average; few rows take a small one.
    rows += touched * min(figures.expert_tile, max(16.0, 2.0 ** math.ceil(math.log2(max(1.0, each))))) / 2
    rate = engine.gpu.memory_bytes_per_second * figures.memory_share
    reading = touched * engine.sizes.expert / slices / rate
    flops = 2 * rows * engine.sizes.expert_weights / slices
    return _both(reading, flops / (_tensor_rate(engine) * figures.expert_share), figures.corner)


def _towards(imbalance: float, each: float) -> float:
    """Imbalance counts where experts compute, not where few tokens touch each of them."""
    return 1 + (imbalance - 1) * min(1.0, each / 16)


def _head(engine: EngineGroup, work: Work) -> float:
    model, gpu, figures, tensor = engine.model, engine.gpu, engine.figures, engine.layout.tensor_parallel
    tokens = math.ceil(work.sequences / engine.layout.data_parallel) + bool(work.prefill_ranks)
    reading = engine.sizes.head / tensor / (gpu.memory_bytes_per_second * figures.head_share)
    logits = tokens * model.vocab * model.bytes_per_value
    return reading + _gather_here(engine, tensor, logits)


def _all_reduces(engine: EngineGroup, size: float) -> float:
    """Two in every layer, after attention and after the MLP or experts, and one after the embedding."""
    layers, tensor = engine.model.layers, engine.layout.tensor_parallel
    if tensor == 1:
        return 0.0
    after_experts = 0 if _exchanges(engine) and engine.layout.expert_parallel else engine.model.moe_layers
    times = layers + engine.model.dense_layers + after_experts + 1
    rate, latency = _link(engine, tensor, engine.figures.all_reduce_us)
    return times * (latency + 2 * (tensor - 1) / tensor * size / rate)


def _exchange(engine: EngineGroup, size: float, of_rank: float) -> float:
    """All-gather of all tokens' activations (`size` bytes) to all GPUs and reduce-scatter back, in each MoE layer.

    `of_rank` bytes of them are the fullest rank's own.
    """
    if not _exchanges(engine):
        return 0.0
    layout, figures = engine.layout, engine.figures
    if layout.nodes == 1:
        once = _gather_here(engine, layout.gpus, size)
    else:
        # What a node gets from the others; all of it where a single rank has all tokens.
        crossing = max(size * (1 - 1 / layout.nodes), of_rank)
        if not layout.expert_parallel:
            # Each tensor parallel rank gathers for itself.
            crossing *= layout.tensor_parallel
        rate, _ = _link(engine, layout.gpus_per_node, 0.0)
        once = max(_over_nodes(figures, size, crossing, layout.gpus_per_node), size / rate)
    # Experts work on the tokens in slices; the tensor parallel group puts its slices together afterwards.
    again = layout.tensor_parallel > 1 and layout.expert_parallel
    together = _gather_here(engine, layout.tensor_parallel, of_rank) if again else 0.0
    return engine.model.moe_layers * (2 * once + together)


def _over_nodes(figures: Figures, size: float, crossing: float, gpus_per_node: int) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all, `crossing` of which come to a node."""
    network = gpus_per_node * figures.fabric_gb_per_second * _GIGA * figures.fabric_share
    medium = figures.fabric_medium_us * -math.expm1(-size / _MEDIUM_BYTES)
    return (figures.fabric_us + medium) * _MICRO + crossing / network


def _exchanges(engine: EngineGroup) -> bool:
    return engine.model.experts is not None and engine.layout.data_parallel > 1


def _gather_here(engine: EngineGroup, gpus: int, size: float) -> float:
    """An all-gather or reduce-scatter of `size` bytes in all, within a node."""
    if gpus == 1:
        return 0.0
    rate, latency = _link(engine, gpus, engine.figures.gather_us)
    return latency + (gpus - 1) / gpus * size / rate


def _link(engine: EngineGroup, gpus: int, nvlink_us: float) -> tuple[float, float]:
    """Bytes/s and smallest time of a collective of that many GPUs of one node."""
    gpu, figures = engine.gpu, engine.figures
    if gpus <= gpu.nvlink_peers:
        return gpu.nvlink_bytes_per_second * figures.nvlink_share or math.inf, nvlink_us * _MICRO
    return gpu.pcie_bytes_per_second * figures.pcie_share, figures.pcie_us * _MICRO if nvlink_us else 0.0


def _agreement(engine: EngineGroup) -> float:
    """Before a step, ranks that share experts agree on its size: a small all-reduce by the hosts, around the ring."""
    if not _exchanges(engine):
        return 0.0
    hop = engine.figures.fabric_hop_us if engine.layout.nodes > 1 else engine.figures.local_hop_us
    return 2 * (engine.layout.data_parallel - 1) * hop * _MICRO


def _tensor_rate(engine: EngineGroup) -> float:
    """FLOP/s for weights: those of FP8 where weights and tensor cores both have it, otherwise BF16's."""
    fp8 = engine.gpu.fp8_flops if engine.model.quantisation else None
    return fp8 or engine.gpu.bf16_flops


def _touched_share(count: int, active: int, tokens: float) -> float:
    return 1 - math.pow(1 - active / count, tokens)


def _both(reading: float, computing: float, corner: float) -> float:
    """Seconds for work that reads and computes: between the longer of both (large `corner`) and their sum (1)."""
    long, short = max(reading, computing), min(reading, computing)
    return long * math.pow(1 + math.pow(short / long, corner), 1 / corner) if long > 0 else 0.0


def roofline(engine: EngineGroup) -> EngineGroup:
    """The same group without any loss: what the datasheet allows."""
    return EngineGroup(engine.model, engine.gpu, engine.layout, ROOFLINE, engine.cache_bytes)
