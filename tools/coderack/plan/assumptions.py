"""The figures that the latency model stands on: each with a range, its unit and where it comes from.

Shares are of the datasheet's rate, so that one figure serves every GPU of a family. A measurement file replaces any of
them (`measurements`). What was measured is marked "measured"; "judgement" means that nobody has shown it yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

Case = Literal["expected", "best", "worst"]
CASES: tuple[Case, ...] = ("expected", "best", "worst")


@dataclass(frozen=True)
class Assumption:
    """One figure: what is expected, and the best and worst that it may well be."""

    expected: float
    best: float
    worst: float
    unit: str
    meaning: str
    source: str


@dataclass(frozen=True)
class Figures:
    """One value for each assumption; the names say the unit, shares are 0 to 1. See ASSUMPTIONS for what they mean."""

    memory_share: float
    cache_share: float
    head_share: float
    linear_share: float
    expert_share: float
    attention_share: float
    expert_tile: float
    corner: float
    busiest_gpu: float
    expert_imbalance: float
    layer_us: float
    host_step_ms: float
    first_token_ms: float
    nvlink_share: float
    all_reduce_us: float
    gather_us: float
    pcie_share: float
    pcie_us: float
    local_hop_us: float
    fabric_gb_per_second: float
    fabric_share: float
    fabric_us: float
    fabric_medium_us: float
    fabric_hop_us: float


NAMES = tuple(field.name for field in fields(Figures))

# No losses, collectives that cost nothing, experts evenly spread: what memory and tensor cores alone would give.
ROOFLINE = Figures(
    memory_share=1,
    cache_share=1,
    head_share=1,
    linear_share=1,
    expert_share=1,
    attention_share=1,
    expert_tile=0,
    corner=1000,
    busiest_gpu=0,
    expert_imbalance=1,
    layer_us=0,
    host_step_ms=0,
    first_token_ms=0,
    nvlink_share=1e9,
    all_reduce_us=0,
    gather_us=0,
    pcie_share=1e9,
    pcie_us=0,
    local_hop_us=0,
    fabric_gb_per_second=1e9,
    fabric_share=1,
    fabric_us=0,
    fabric_medium_us=0,
    fabric_hop_us=0,
)

_H200 = "measured on one H200 with vLLM 0.26 and this model's layers"
_FIT = "fitted to the H200 runs, which it then gives within 9 %"

_EVERYWHERE: dict[str, Assumption] = {
    "memory_share": Assumption(
        0.87, 0.92, 0.75, "of HBM rate", "reading weights in a decode step",
        f"{_H200}: 4.18 of 4.8 TB/s, decode at 87 to 100 % of what that allows",
    ),
    "cache_share": Assumption(
        0.70, 0.77, 0.60, "of HBM rate", "decode attention reading the KV cache",
        f"{_H200}: 3.2 TB/s (16 x 8k) to 3.7 (4 x 64k)",
    ),
    "head_share": Assumption(0.71, 0.85, 0.60, "of HBM rate", "reading lm_head", f"{_H200}: 3.4 TB/s"),
    "linear_share": Assumption(
        0.55, 0.63, 0.40, "of tensor rate", "dense projections of a prompt",
        "measured on one H200: FP8 products of 4096 rows or more at 1.1 to 1.25 of 1.98 PFLOP/s",
    ),
    "expert_share": Assumption(
        0.35, 0.50, 0.25, "of tensor rate", "experts of a prompt (grouped product, Triton)", _FIT,
    ),
    "attention_share": Assumption(
        0.56, 0.65, 0.40, "of BF16 rate", "attention of a prompt over itself", _FIT,
    ),
    "expert_tile": Assumption(
        64, 64, 128, "rows", "an expert's tokens are filled up to a multiple of at most this",
        "block sizes of vLLM's fused_moe kernel",
    ),
    "corner": Assumption(
        2, 1000, 1, "exponent", "how reading and computing overlap: 1 not at all, large fully", _FIT,
    ),
    "busiest_gpu": Assumption(
        1, 0, 1, "0 to 1", "each layer waits for the GPU with most touched experts (1), or all have equally many (0)",
        "expected maximum of binomials under uniform routing; 0 is what load balancing can reach at best",
    ),
    "expert_imbalance": Assumption(
        1.5, 1.0, 2.1, "x mean", "tokens at the busiest GPU in a prompt, with expert parallelism",
        "1.6 (8 GPUs) and 2.1 (16), placed at random, if the 16 hottest of 160 experts take 59.8 % of calls, as one "
        "public trace of this model has it (mystous/vllm_hybrid); 1 is uniform",
    ),
    "layer_us": Assumption(
        40, 25, 60, "us", "per layer and step, however small the work (some 40 kernels)",
        f"{_FIT}; 100 tiny kernels in one CUDA graph took 93 us",
    ),
    "host_step_ms": Assumption(
        2.1, 1.0, 3.0, "ms", "least time of a step: the host's work, at 4 layers as at 8", _H200,
    ),
    "first_token_ms": Assumption(
        3, 1, 15, "ms", "API server, tokenising and scheduling of one request", f"{_FIT}; worst is judgement",
    ),
    "nvlink_share": Assumption(
        0.80, 1.0, 0.60, "of NVLink rate", "large collectives within a node",
        "all-reduce on 8 x H100: 370 GB/s by ring, 480 by NVLS, of 450 per direction (nccl-tests #290)",
    ),
    "all_reduce_us": Assumption(
        8, 5, 15, "us", "smallest all-reduce of a tensor parallel group",
        "H100: 6 to 10 us at 8 GPUs (sglang PR #2904), 10 us at 0.5 MB and 4 GPUs (vllm PR #24532)",
    ),
    "gather_us": Assumption(
        15, 8, 25, "us", "smallest all-gather or reduce-scatter within a node", "judgement, after NCCL's all-reduce: "
        "21 to 27 us at 0.5 MB (vllm PRs #24532, #42324)",
    ),
    "pcie_share": Assumption(
        0.55, 0.75, 0.35, "of PCIe rate", "large collectives without NVLink",
        "all-gather of two GPUs over PCIe (flashinfer PR #5023), rounded",
    ),
    "pcie_us": Assumption(
        20, 9, 40, "us", "smallest collective without NVLink",
        "8.5 us at 2 GPUs, 14 at 4 (flashinfer PR #5023); 8 GPUs over two sockets are judgement",
    ),
    "local_hop_us": Assumption(
        15, 8, 40, "us", "one hop of the ring in which ranks of a node agree on a step (Gloo)", "judgement",
    ),
}  # fmt: skip


_Three = tuple[float, float, float]


def _fabric(
    rate: float, small: _Three, medium: _Three, hop: _Three, rates: str, smalls: str, mediums: str
) -> dict[str, Assumption]:
    return {
        "fabric_gb_per_second": Assumption(rate, rate, rate, "GB/s", "network rate per GPU, one direction", rates),
        "fabric_share": Assumption(
            0.50, 0.90, 0.25, "of network rate", "large collectives between nodes",
            "judgement; an all-reduce reaches 0.9 and more with 8 GB (nccl-tests #290), 25 to 200 MB do not",
        ),
        "fabric_us": Assumption(
            *small, "us", "smallest all-gather or reduce-scatter over nodes; two per layer", smalls,
        ),
        "fabric_medium_us": Assumption(
            *medium, "us", "what one takes more from 1 MB on, beside its bytes; 2 MB are 128 tokens", mediums,
        ),
        "fabric_hop_us": Assumption(
            *hop, "us", "one hop of the ring in which ranks of several nodes agree on a step (Gloo, TCP)", "judgement",
        ),
    }  # fmt: skip


_DEEPEP = "judgement; worst: DeepEP at EP16 over ConnectX-7, 118 and 195 us at 128 tokens per rank"
_EFA_TABLE = "bottlerocket-kernel-kit PR #313, instance type not said"
_AS_EFA = "judgement: as much more as on EFA, in proportion"
FABRICS: dict[str, dict[str, Assumption]] = {
    "infiniband-ndr": _fabric(
        50, (45, 30, 155), (105, 30, 200), (40, 20, 100), "400 Gb/s and one HCA per GPU", _DEEPEP,
        _AS_EFA,
    ),
    "infiniband-hdr": _fabric(
        25, (50, 30, 155), (120, 30, 200), (40, 20, 100), "200 Gb/s and one HCA per GPU", _DEEPEP,
        _AS_EFA,
    ),
    "roce-400": _fabric(
        50, (55, 35, 155), (130, 30, 250), (40, 20, 100), "400 Gb/s and one NIC per GPU", _DEEPEP,
        _AS_EFA,
    ),
    "efa": _fabric(
        50, (105, 55, 150), (250, 100, 300), (50, 30, 120), "p5, p5e, p5en: 3200 Gb/s per node of 8 GPUs",
        f"all-gather of 16 ranks: 105 to 122 us up to 64 KiB ({_EFA_TABLE}); best: all-reduce of 54 us on 2 x p6-b200 "
        "(dstack PR #3961)", f"the same: 161 us at 256 KiB, 213 at 512 KiB, 303 at 1 MiB ({_EFA_TABLE})",
    ),
    "efa-p4d": _fabric(
        6.25, (105, 72, 150), (250, 100, 300), (50, 30, 120), "p4d, p4de: 400 Gb/s per node of 8 GPUs",
        "as EFA; best: all-reduce of 72 us (bottlerocket-core-kit PR #141)", f"as EFA ({_EFA_TABLE})",
    ),
    "tcp-100": _fabric(
        1.56, (200, 120, 500), (300, 100, 500), (50, 30, 150), "100 Gb/s per node of 8 GPUs, NCCL over sockets",
        "judgement", "judgement",
    ),
}  # fmt: skip


def assumptions(fabric: str) -> dict[str, Assumption]:
    """All assumptions for a deployment whose nodes are joined by `fabric`, one of FABRICS."""
    return {**_EVERYWHERE, **FABRICS[fabric]}


def figures(table: Mapping[str, Assumption], case: Case) -> Figures:
    """The values of one case; all bests together are optimistic, all worsts pessimistic, beyond what is likely."""
    return Figures(**{name: getattr(table[name], case) for name in NAMES})
