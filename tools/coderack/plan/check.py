"""Whether a profile can run on given nodes: does the layout divide the model, and does one whole request fit."""

from dataclasses import dataclass
from enum import StrEnum
from math import gcd

from coderack.plan.memory import Memory, group_size, plan_memory
from coderack.spec.hardware import GpuSpec
from coderack.spec.model import GroupedAttention, LatentAttention, ModelSpec
from coderack.spec.profile import Layout, ServingProfile, flag_of, values_of

# Without expert parallelism vLLM 0.32 refines an FP8 block that a slice cuts, down to this many columns.
_SMALLEST_BLOCK = 32

# A process's CUDA context, at the least: on H100 and H200 some 500 MiB, and NCCL's buffers come on top.
_CONTEXT_BYTES = 0.4 * 2**30

# Free arguments that change memory in ways no figure here follows.
_NOT_COUNTED = (
    "--block-size",
    "--cpu-offload-gb",
    "--decode-context-parallel-size",
    "--dtype",
    "--enable-dbo",
    "--enable-eplb",
    "--enable-lora",
    "--kv-cache-memory-bytes",
    "--kv-cache-dtype-skip-layers",
    "--num-gpu-blocks-override",
    "--pipeline-parallel-size",
    "--prefill-context-parallel-size",
    "--quantization",
)


class Verdict(StrEnum):
    """`fits`: one request of max_model_len fits when every uncertain figure is at its bad end. `tight`: only when they
    are not. `too_big`: not even then. `impossible`: the layout cannot run at all."""

    FITS = "fits"
    TIGHT = "tight"
    TOO_BIG = "too_big"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Check:
    """`problems` stop the layout from running, `notes` do not. `memory` is None where there are problems."""

    profile: str
    gpu: str
    gpus_per_node: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    memory: Memory | None
    verdict: Verdict
    reason: str

    @property
    def fits(self) -> bool:
        return self.verdict is Verdict.FITS


def check(profile: ServingProfile, model: ModelSpec, gpu: GpuSpec, gpus_per_node: int = 8) -> Check:
    """Judge `profile` on nodes of `gpus_per_node` GPUs. Raises SpecError where the planner cannot count."""
    problems = (
        *layout_problems(profile.layout, model, gpus_per_node),
        *_length_problems(profile, model),
        *_start_problems(profile, gpu, gpus_per_node),
    )
    plan = None if problems else plan_memory(profile, model, gpu)
    verdict, reason = judge(plan) if plan else (Verdict.IMPOSSIBLE, "; ".join(problems))
    return Check(
        profile=profile.name,
        gpu=gpu.name,
        gpus_per_node=gpus_per_node,
        problems=problems,
        notes=_notes(profile, model, gpu, gpus_per_node),
        memory=plan,
        verdict=verdict,
        reason=reason,
    )


def judge(memory: Memory) -> tuple[Verdict, str]:
    """The verdict on a layout that can run, and one sentence why."""
    need = memory.max_model_len * memory.kv.bytes_per_token
    have = memory.kv.available
    size = f"one request of {memory.max_model_len:,} tokens needs {gib(need)} of KV cache per GPU"
    there = f"{gib(have.low)} to {gib(have.high)} are left"
    if memory.kv.requests.low >= 1:
        return Verdict.FITS, f"{size} and at least {gib(have.low)} are left"
    if memory.kv.requests.expected >= 1:
        return Verdict.TIGHT, f"{size} and {there}: it fits at the expected {gib(have.expected)}, not at the low end"
    if memory.kv.requests.high >= 1:
        return Verdict.TIGHT, f"{size} and {there}: it fits at the optimistic end only"
    if memory.limit.high < memory.occupied.low:
        return Verdict.TOO_BIG, (
            f"weights and working memory take {gib(memory.occupied.low)} or more of the {gib(memory.limit.high)} that "
            "vLLM may use: nothing is left for KV cache"
        )
    return Verdict.TOO_BIG, f"{size} and at most {gib(have.high)} are left"


def layout_problems(layout: Layout, model: ModelSpec, gpus_per_node: int = 8) -> tuple[str, ...]:
    """What of the model does not divide by the layout, one sentence each, with the values that do."""
    problems = list(_tensor_problems(model, layout))
    if problems:
        works = tensor_parallel_values(model, layout, gpus_per_node)
        problems = [f"layout.tensor_parallel is {layout.tensor_parallel}: {'; '.join(problems)}; "
                    f"wanted one of {', '.join(map(str, works)) or 'none on these nodes'}"]  # fmt: skip
    problems += _expert_problems(model, layout)
    if layout.gpus_per_node > gpus_per_node:
        problems.append(
            f"layout takes {layout.gpus_per_node} GPUs per node ({layout.data_parallel_per_node} data parallel ranks "
            f"of {layout.tensor_parallel}), and a node has {gpus_per_node}"
        )
    return tuple(problems)


def tensor_parallel_values(model: ModelSpec, layout: Layout, gpus_per_node: int) -> tuple[int, ...]:
    """Tensor parallel sizes up to a node that divide the model, with the layout's expert parallelism as it is."""
    return tuple(
        size
        for size in range(1, gpus_per_node + 1)
        if gpus_per_node % size == 0
        and not any(_tensor_problems(model, layout.model_copy(update={"tensor_parallel": size})))
    )


def gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _tensor_problems(model: ModelSpec, layout: Layout) -> list[str]:
    tp, one = layout.tensor_parallel, model.attention
    problems = []
    if one.heads % tp:
        problems.append(f"{one.heads} attention heads do not divide by it")
    if isinstance(one, GroupedAttention) and one.kv_heads % tp and tp % one.kv_heads:
        problems.append(f"{one.kv_heads} key/value heads neither divide by it nor into it")
    if model.dense_layers and model.dense_intermediate % tp:
        problems.append(f"the MLP's {model.dense_intermediate} columns do not divide by it")
    if not problems:
        problems += _block_problems(model, tp)
    if model.experts and not layout.expert_parallel:
        inner, group = model.experts.intermediate, group_size(layout)
        if inner % group:
            problems.append(f"{inner} columns of an expert do not divide by the {group} GPUs that share it")
    return problems


def _block_problems(model: ModelSpec, tp: int) -> list[str]:
    """Slices of converted matrices have to hold whole FP8 blocks."""
    quantisation = model.quantisation
    if quantisation is None or quantisation.block is None or tp == 1:
        return []
    rows, columns = quantisation.block
    widths = []
    if quantisation.attention_layers:
        widths += _attention_slices(model, tp)
    if quantisation.dense_layers:
        widths.append(("the MLP", model.dense_intermediate // tp))
    if quantisation.shared_expert_layers and model.experts and model.experts.shared_intermediate:
        widths.append(("the shared expert", model.experts.shared_intermediate // tp))
    return [
        f"a slice of {what} has {width} columns, no multiple of the FP8 block of {rows} x {columns}"
        for what, width in widths
        if width % rows or width % columns
    ]


def _attention_slices(model: ModelSpec, tp: int) -> list[tuple[str, int]]:
    one = model.attention
    if isinstance(one, LatentAttention):
        return [("the attention's output", one.heads * one.value_head_dim // tp)]
    return [
        ("the queries", one.heads * one.head_dim // tp),
        ("keys and values", max(1, one.kv_heads // tp) * one.head_dim),
    ]


def _expert_problems(model: ModelSpec, layout: Layout) -> list[str]:
    moe = model.experts
    if moe is None:
        return ["layout.expert_parallel is true and the model has no experts, wanted false"] if (
            layout.expert_parallel
        ) else []  # fmt: skip
    group = group_size(layout)
    if layout.expert_parallel and group > moe.count:
        return [f"layout spreads {moe.count} experts over {group} GPUs, wanted at most one GPU per expert"]
    block = _refined_block(model, layout)
    if block is not None and block < _SMALLEST_BLOCK:
        return [
            f"layout.expert_parallel is false and leaves each GPU {moe.intermediate // group} columns of an expert, "
            "which no FP8 block of 32 or more divides; wanted true, which keeps experts whole"
        ]
    return []


def _refined_block(model: ModelSpec, layout: Layout) -> int | None:
    """The block size that an expert's slice leaves, None where the checkpoint's own fits."""
    moe, quantisation, group = model.experts, model.quantisation, group_size(layout)
    if moe is None or quantisation is None or quantisation.block is None or layout.expert_parallel:
        return None
    if not quantisation.expert_layers or moe.intermediate % group:
        return None
    inner = moe.intermediate // group
    if not any(inner % size for size in quantisation.block):
        return None
    return gcd(*quantisation.block, inner, model.hidden)


def _length_problems(profile: ServingProfile, model: ModelSpec) -> list[str]:
    length, yarn = profile.limits.max_model_len, profile.yarn
    if yarn is None:
        if length <= model.max_positions:
            return []
        return [
            f"limits.max_model_len is {length} and the model knows {model.max_positions} positions; wanted no more, or "
            "yarn with a factor that reaches it"
        ]
    problems = []
    if yarn.original_max_positions != model.max_positions:
        problems.append(
            f"yarn.original_max_positions is {yarn.original_max_positions}, wanted the model's {model.max_positions}"
        )
    if yarn.theta != model.rope.theta:
        problems.append(f"yarn.theta is {yarn.theta:g}, wanted the model's {model.rope.theta:g}")
    return problems


def _start_problems(profile: ServingProfile, gpu: GpuSpec, gpus_per_node: int) -> list[str]:
    """What vLLM 0.32 refuses, but only when it is being started: its config/scheduler.py and v1/worker/utils.py."""
    limits, layout, problems = profile.limits, profile.layout, []
    whole = "--no-enable-chunked-prefill" in map(flag_of, profile.engine_args)
    if whole and limits.max_num_batched_tokens < limits.max_model_len:
        problems.append(
            f"engine_args has --no-enable-chunked-prefill and limits.max_num_batched_tokens is "
            f"{limits.max_num_batched_tokens}, wanted at least limits.max_model_len = {limits.max_model_len}, or chunks"
        )
    given = values_of(profile.engine_args, "--pipeline-parallel-size")
    stages = int(given[-1]) if given and given[-1].isdecimal() and len(given[-1]) < 5 else 1
    if stages > 1 and layout.gpus_per_node * stages > gpus_per_node:
        problems.append(
            f"layout takes {layout.gpus_per_node} GPUs per node and engine_args has --pipeline-parallel-size {stages}, "
            f"which makes them {layout.gpus_per_node * stages}; a node has {gpus_per_node}"
        )
    share, total = limits.gpu_memory_utilization, gpu.memory_bytes[1]
    if share is not None and (1 - share) * total < _CONTEXT_BYTES:
        problems.append(
            f"limits.gpu_memory_utilization is {share:g}, which leaves {gib((1 - share) * total)}; wanted less, since "
            f"CUDA itself holds {gib(_CONTEXT_BYTES)} or more before vLLM asks whether that share is free"
        )
    return problems


def _notes(profile: ServingProfile, model: ModelSpec, gpu: GpuSpec, gpus_per_node: int) -> tuple[str, ...]:
    layout, notes = profile.layout, []
    if layout.gpus_per_node < gpus_per_node:
        notes.append(f"{gpus_per_node - layout.gpus_per_node} of {gpus_per_node} GPUs per node stay idle")
    if layout.tensor_parallel > gpu.nvlink_peers:
        notes.append(
            f"tensor_parallel {layout.tensor_parallel} reaches beyond the {gpu.nvlink_peers} GPUs that NVLink joins: "
            "every layer's all-reduce crosses PCIe"
        )
    notes += _expert_notes(profile, model)
    if model.quantisation is not None and gpu.fp8_flops is None:
        notes.append(f"{gpu.product} has no FP8 arithmetic: vLLM unpacks the weights in its Marlin kernels, unmeasured")
    if profile.yarn is not None:
        notes.append("yarn scales positions at every length: answers to short prompts may get worse")
    if profile.speculative is not None:
        notes += _speculative_notes(profile)
    words = {flag_of(word) for word in profile.engine_args}
    unseen = [flag for flag in _NOT_COUNTED if flag in words]
    if unseen:
        notes.append(f"engine_args has {', '.join(unseen)}, whose effect on memory is not counted here")
    return tuple(notes)


def _expert_notes(profile: ServingProfile, model: ModelSpec) -> list[str]:
    layout, moe, notes = profile.layout, model.experts, []
    if moe is None:
        return []
    group = group_size(layout)
    if layout.expert_parallel and moe.count % group:
        notes.append(f"{moe.count} experts over {group} GPUs: some hold one more, and all wait for those")
    block = _refined_block(model, layout)
    if block is not None and block >= _SMALLEST_BLOCK:
        notes.append(
            f"without expert_parallel a slice of {moe.intermediate // group} columns cuts the FP8 blocks: vLLM 0.32 "
            f"runs it with blocks of {block}, with its Triton kernel only; older releases refuse it"
        )
    if layout.data_parallel > 1 and "--enforce-eager" not in map(flag_of, profile.engine_args):
        notes.append(
            "with data parallel experts vLLM has been seen to set aside far more for CUDA graphs than they took "
            "(vllm issues 45178, 53013): if KV cache comes out short, VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 "
            "gives it back"
        )
    return notes


def _speculative_notes(profile: ServingProfile) -> list[str]:
    asked, notes = profile.speculative, []
    if asked is None:
        return []
    if asked.method == "ngram":
        notes.append("speculative.method ngram turns vLLM's async scheduling off; ngram_gpu keeps it")
    if asked.weights_gib is not None:
        notes.append("the KV cache of the draft model is not counted")
    return notes
