"""What more nodes give: one larger group, or more groups of the same size.

GPUs = data parallel x tensor parallel x pipeline parallel, and experts are spread over data parallel x tensor parallel
GPUs: adding nodes to a group means more data parallel ranks and fewer experts per GPU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coderack.plan.check import Verdict, judge
from coderack.plan.compare import Question, as_profile, engines, room_for
from coderack.plan.latency import expected_busiest
from coderack.plan.layouts import GroupLayout
from coderack.plan.measurements import Applied
from coderack.plan.memory import Memory, memory
from coderack.plan.predictions import Point, point, shortened


@dataclass(frozen=True)
class Scaled:
    """One deployment on `nodes` nodes. `reason` says why it does not fit, None where it does.

    `tight` says that it fits as expected and not with the highest use of memory that is likely.
    `requests` is how many requests of max_model_len the whole deployment caches, `lost` which share of it the death of
    one node takes away. `busiest_at_one` is how many experts the busiest GPU reads for one token in each layer.
    """

    nodes: int
    gpus: int
    layout: GroupLayout
    pipeline: int
    experts_per_gpu: int
    enough_gpus: bool
    busiest_at_one: float
    lost: float
    tight: bool
    reason: str | None
    memory: Memory
    requests: float
    points: tuple[Point, ...]

    @property
    def arithmetic(self) -> str:
        one = self.layout
        text = f"DP{one.data_parallel} x TP{one.tensor_parallel}"
        if self.pipeline > 1:
            text += f" x PP{self.pipeline}"
        return f"{one.replicas} x ({text})" if one.replicas > 1 else text


def scale(question: Question, applied: Applied, nodes: Sequence[int], tensor: int, pipeline: int = 1) -> list[Scaled]:
    """For each number of nodes: one fused group over all of them, and one group per node.

    `question.gpus` is not looked at. Pipeline stages stay inside a group and each has its own part of the layers.
    Raises ValueError when tensor x pipeline does not divide the GPUs of a node.
    """
    per_node = question.gpus_per_node
    if per_node % (tensor * pipeline):
        raise ValueError(
            f"TP{tensor} x PP{pipeline} takes {tensor * pipeline} GPUs, wanted a divisor of the {per_node} of a node"
        )
    rows = []
    for count in nodes:
        for group_nodes in (1, count) if count > 1 else (1,):
            ranks = group_nodes * per_node // (tensor * pipeline)
            spread = question.model.experts is not None
            layout = GroupLayout(tensor, ranks, spread, group_nodes, count // group_nodes)
            rows.append(_scaled(question, applied, layout, pipeline))
    return rows


def rule(question: Question, expert_parallel: int) -> str | None:
    """Whether experts are spread over enough GPUs for a single answer, and what that means; None without experts."""
    experts = question.model.experts
    if experts is None:
        return None
    local = math.ceil(experts.count / expert_parallel)
    busiest = expected_busiest(local, experts.active / experts.count, expert_parallel)
    best = math.ceil(experts.active / expert_parallel)
    met = "EP >= active experts holds" if expert_parallel >= experts.active else "EP is below the active experts"
    return (
        f"EP{expert_parallel}, {experts.active} active: {met}. Each token goes to {experts.active} experts per layer; "
        f"at best the busiest GPU has {best} of them to read, on average {busiest:.1f}"
    )


def _scaled(question: Question, applied: Applied, layout: GroupLayout, pipeline: int) -> Scaled:
    experts, nodes = question.model.experts, layout.nodes * layout.replicas
    local = math.ceil(experts.count / layout.gpus) if experts else 0
    share = experts.active / experts.count if experts else 0.0
    stage = shortened(question.model, math.ceil(question.model.layers / pipeline))
    used = memory(stage, question.gpu, as_profile(layout), question.limits)
    verdict, why = judge(used)
    fits = verdict is not Verdict.TOO_BIG and used.kv.requests.expected >= 1
    points: tuple[Point, ...] = ()
    if fits and pipeline == 1:
        engine_of = engines(question, applied, layout, used)
        room = room_for(question, layout, used)
        points = tuple(point(engine_of, question.workload, one, room) for one in question.concurrencies)
    return Scaled(
        nodes=nodes,
        gpus=layout.all_gpus * pipeline,
        layout=layout,
        pipeline=pipeline,
        experts_per_gpu=local,
        enough_gpus=experts is None or layout.gpus >= experts.active,
        busiest_at_one=expected_busiest(local, share, layout.gpus) if experts else 0.0,
        lost=1 / layout.replicas,
        tight=fits and verdict is Verdict.TIGHT,
        reason=None if fits else why,
        memory=used,
        requests=used.kv.requests.expected * layout.data_parallel * layout.replicas if fits else 0.0,
        points=points,
    )
