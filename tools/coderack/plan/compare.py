"""All layouts of a model on a number of GPUs: which fit, and how fast each is predicted to be."""

from collections.abc import Iterator
from dataclasses import dataclass

from coderack.plan.assumptions import CASES, Case, figures
from coderack.plan.check import Verdict, judge, layout_problems
from coderack.plan.latency import EngineGroup
from coderack.plan.layouts import GroupLayout, group_layouts
from coderack.plan.measurements import Applied
from coderack.plan.memory import Memory, memory
from coderack.plan.predictions import Checked, Point, Workload, check, point
from coderack.spec.hardware import GpuSpec
from coderack.spec.model import ModelSpec
from coderack.spec.profile import Layout, Limits


@dataclass(frozen=True)
class Question:
    """What is to be compared. `fabric` is None where there is no network for collectives between nodes."""

    model: ModelSpec
    model_name: str
    gpu: GpuSpec
    gpus: int
    gpus_per_node: int
    fabric: str | None
    limits: Limits
    workload: Workload
    concurrencies: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A layout that fits, with a point for each concurrency asked for.

    `room` is how many of the workload's requests run at once in the whole deployment; `tight` says that with the
    highest use of memory that is likely, not one request of max_model_len would fit.
    """

    layout: GroupLayout
    memory: Memory
    room: int
    tight: bool
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Refused:
    """Layouts that cannot be, all for the same reasons; `memory` where one is legal and only too large."""

    names: tuple[str, ...]
    reasons: tuple[str, ...]
    memory: Memory | None = None


@dataclass(frozen=True)
class Comparison:
    question: Question
    applied: Applied
    candidates: tuple[Candidate, ...]
    too_large: tuple[Refused, ...]
    illegal: tuple[Refused, ...]
    checked: tuple[Checked, ...]

    def ranked(self, place: int, case: Case = "expected") -> list[Candidate]:
        """Candidates by the time of a whole request, shortest first, at the concurrency of that place."""
        return sorted(self.candidates, key=lambda one: getattr(one.points[place].times, case).request)

    def leaders(self, place: int) -> dict[Case, str]:
        """Which layout comes first under each case's assumptions."""
        return {case: self.ranked(place, case)[0].layout.name for case in CASES} if self.candidates else {}


def compare(question: Question, applied: Applied) -> Comparison:
    """Look at every layout. Raises ValueError when the GPUs do not fill whole nodes."""
    candidates: list[Candidate] = []
    too_large: list[tuple[GroupLayout, Memory, str]] = []
    illegal = dict(_impossible_tensor_sizes(question))
    for layout in group_layouts(question.gpus, question.gpus_per_node, experts=question.model.experts is not None):
        if reasons := _problems(question, layout):
            illegal[layout.name] = reasons
            continue
        used = memory(question.model, question.gpu, as_profile(layout), question.limits)
        verdict, why = judge(used)
        # A layout that needs luck with every figure is not compared with those that do not.
        if verdict is Verdict.TOO_BIG or used.kv.requests.expected < 1:
            too_large.append((layout, used, why))
            continue
        room = room_for(question, layout, used)
        points = tuple(
            point(engines(question, applied, layout, used), question.workload, one, room)
            for one in question.concurrencies
        )
        candidates.append(Candidate(layout, used, room, verdict is Verdict.TIGHT, points))
    refused = (
        Refused((layout.name,), (why, *_nearest(layout, used, candidates)), used) for layout, used, why in too_large
    )
    return Comparison(
        question, applied, tuple(candidates), tuple(refused), tuple(_grouped(illegal)), check(applied, question.gpu)
    )


def engines(question: Question, applied: Applied, layout: GroupLayout, used: Memory) -> "_Engines":
    """The engine group to be timed, for each case of the assumptions."""
    values = question.model.cached_values_per_token(layout.tensor_parallel)
    return _Engines(question, applied, layout, used.kv.bytes_per_token / values)


@dataclass(frozen=True)
class _Engines:
    question: Question
    applied: Applied
    layout: GroupLayout
    cache_bytes: float

    def __call__(self, case: Case) -> EngineGroup:
        one = self.question
        return EngineGroup(one.model, one.gpu, self.layout, figures(self.applied.table, case), self.cache_bytes)


def as_profile(layout: GroupLayout) -> Layout:
    """The layout as a serving profile has it; of several fused groups, one."""
    fused = layout.nodes > 1
    return Layout(
        mode="fused" if fused else "split",
        nodes=layout.nodes if fused else layout.replicas,
        data_parallel=layout.data_parallel,
        tensor_parallel=layout.tensor_parallel,
        expert_parallel=layout.expert_parallel,
    )


def room_for(question: Question, layout: GroupLayout, used: Memory) -> int:
    """Requests of the workload that run at once: those that the cache holds, up to max_num_seqs of each rank."""
    tokens = question.workload.prompt + question.workload.output
    of_rank = min(int(used.kv.tokens.expected // tokens), question.limits.max_num_seqs)
    return max(1, of_rank) * layout.data_parallel * layout.replicas


def _nearest(layout: GroupLayout, used: Memory, candidates: list[Candidate]) -> Iterator[str]:
    """What would fit in place of a layout that is too large: a smaller cache, or the next larger TP size."""
    small = next((cache for cache in used.alternatives if cache.dtype == "fp8"), None)
    if small is not None and used.kv.dtype != small.dtype and small.requests.expected >= 1:
        yield f"with --kv-cache-dtype fp8 it fits ({small.requests.expected:.1f} requests per rank)"
    alike = (layout.nodes, layout.replicas, layout.expert_parallel)
    larger = [
        one.layout
        for one in candidates
        if (one.layout.nodes, one.layout.replicas, one.layout.expert_parallel) == alike
        and one.layout.tensor_parallel > layout.tensor_parallel
    ]
    if larger:
        yield f"as it is, {min(larger, key=lambda one: one.tensor_parallel).name} is the nearest that fits"


def _grouped(reasons: dict[str, tuple[str, ...]]) -> Iterator[Refused]:
    for reason in dict.fromkeys(reasons.values()):
        yield Refused(tuple(name for name, own in reasons.items() if own == reason), reason)


def _impossible_tensor_sizes(question: Question) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Tensor parallel sizes that no layout has, since they do not divide a node."""
    per_node = min(question.gpus, question.gpus_per_node)
    for size in range(1, per_node + 1):
        if per_node % size:
            layout = Layout(
                mode="split", nodes=1, data_parallel=1, tensor_parallel=size,
                expert_parallel=question.model.experts is not None,
            )  # fmt: skip
            problems = layout_problems(layout, question.model, question.gpus_per_node)
            yield f"TP{size}", (*problems, f"the {per_node} GPUs of a node are no multiple of {size}")


def _problems(question: Question, layout: GroupLayout) -> tuple[str, ...]:
    problems = list(layout_problems(as_profile(layout), question.model, question.gpus_per_node))
    if layout.nodes > 1 and question.fabric is None:
        problems.append("the nodes have no network for collectives (--fabric none); wanted one, or a group per node")
    model, experts = question.model, question.model.experts
    block = model.quantisation.block if model.quantisation else None
    if not problems and experts and block and not layout.expert_parallel:
        columns = experts.intermediate // layout.gpus
        if any(columns % size for size in block):
            problems.append(
                f"not predicted: without expert parallelism slices of {columns} columns cut the FP8 blocks of "
                f"{block[0]} x {block[1]}; vLLM 0.32 runs that with smaller blocks, in its Triton kernel only, and "
                "nobody has measured it"
            )
    return tuple(problems)
