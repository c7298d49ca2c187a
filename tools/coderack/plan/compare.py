"""All layouts of a model on a number of GPUs: which fit, and how fast each is predicted to be."""

from collections.abc import Iterator
from dataclasses import dataclass

from coderack.plan.assumptions import CASES, Case, figures
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
    """Layouts that cannot be, with every reason; `memory` where one is legal and only too large."""

    name: str
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
    too_large: list[Refused] = []
    illegal = list(_impossible_tensor_sizes(question))
    for layout in group_layouts(question.gpus, question.gpus_per_node, experts=question.model.experts is not None):
        if reasons := _reasons(question, layout):
            illegal.append(Refused(layout.name, reasons))
            continue
        used = memory(question.model, question.gpu, as_profile(layout), question.limits)
        if used.kv.requests.expected < 1:
            too_large.append(Refused(layout.name, (_too_large(used),), used))
            continue
        room = _room(question, layout, used)
        points = tuple(
            point(engines(question, applied, layout, used), question.workload, one, room)
            for one in question.concurrencies
        )
        candidates.append(Candidate(layout, used, room, used.kv.requests.low < 1, points))
    checked = check(applied, question.gpu)
    return Comparison(question, applied, tuple(candidates), tuple(too_large), tuple(illegal), checked)


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


def _room(question: Question, layout: GroupLayout, used: Memory) -> int:
    """Requests of the workload that run at once: those that the cache holds, up to max_num_seqs of each rank."""
    tokens = question.workload.prompt + question.workload.output
    of_rank = min(int(used.kv.tokens.expected // tokens), question.limits.max_num_seqs)
    return max(1, of_rank) * layout.data_parallel * layout.replicas


def _too_large(used: Memory) -> str:
    gib = 2**30
    if used.occupied.expected >= used.limit.expected:
        return (
            f"weights and working memory take {used.occupied.expected / gib:.1f} GiB, wanted less than the "
            f"{used.limit.expected / gib:.1f} GiB that vLLM may use"
        )
    return (
        f"a request of {used.max_model_len:,} tokens needs {used.kv.bytes_per_token * used.max_model_len / gib:.2f} GiB "
        f"of KV cache, and {used.kv.available.expected / gib:.1f} GiB are left"
    )


def _impossible_tensor_sizes(question: Question) -> Iterator[Refused]:
    return iter(())


def _reasons(question: Question, layout: GroupLayout) -> tuple[str, ...]:
    if layout.nodes > 1 and question.fabric is None:
        return ("nodes have no network for collectives (--fabric none); wanted one, or split layouts",)
    return ()
