"""What a caller sees of a layout: time to first token, time per token and rate, at a concurrency.

The load is the plain one of a benchmark: `concurrency` requests of the same size come at once, and again when they are
through. It is the worst case for the first token and needs no guess about arrivals.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from coderack.plan.assumptions import CASES, Case, figures
from coderack.plan.latency import EngineGroup, Step, Work, decode, prefill, roofline, step
from coderack.plan.layouts import GroupLayout
from coderack.plan.measurements import Applied, Observed
from coderack.plan.models import shipped_model
from coderack.spec.hardware import GpuSpec
from coderack.spec.model import ModelSpec


@dataclass(frozen=True)
class Workload:
    """One kind of request, in tokens, and how many tokens of prompts a rank takes into one step.

    `cached` tokens of each prompt are in the prefix cache. `context` is how far a token looks back while decoding;
    None is the prompt and half of the answer.
    """

    prompt: int
    output: int
    batched_tokens: int
    cached: int = 0
    context: int | None = None

    @property
    def looks_back(self) -> int:
        return self.prompt + self.output // 2 if self.context is None else self.context


@dataclass(frozen=True)
class Times:
    """Seconds, and tokens/s of the whole deployment.

    `ttft` is the median request's, `ttft_last` the last one's. `gap` is the pause in a running answer while the chunk
    of another prompt is worked on. `request` is from sending to the last token, for the median request.
    """

    ttft: float
    ttft_last: float
    tpot: float
    gap: float
    request: float
    output_rate: float


@dataclass(frozen=True)
class Cases:
    """The same figure under expected, all best and all worst assumptions."""

    expected: Times
    best: Times
    worst: Times


@dataclass(frozen=True)
class Point:
    """One concurrency. `running` of its requests run at once, the others wait for room in the KV cache.

    `step` is the decode step, `floor` the seconds that memory and tensor cores alone would need for it.
    """

    concurrency: int
    running: int
    times: Cases
    step: Step
    floor: float


EngineOf = Callable[[Case], EngineGroup]


def point(engine_of: EngineOf, workload: Workload, concurrency: int, room: int | None = None) -> Point:
    """Predict one concurrency. `room` is how many requests the whole deployment holds at once, None for all."""
    engine = engine_of("expected")
    running = concurrency if room is None else min(concurrency, room)
    own = _of_group(engine, running)
    one = decode(engine, own, workload.looks_back)
    results = [times(engine_of(case), workload, concurrency, running) for case in CASES]
    floor = decode(roofline(engine), own, workload.looks_back).gpu
    return Point(concurrency, running, Cases(*results), one, floor)


def times(engine: EngineGroup, workload: Workload, concurrency: int, running: int) -> Times:
    """Times of one set of figures; `running` of the `concurrency` requests at once."""
    layout, own = engine.layout, _of_group(engine, running)
    ranks, each = min(layout.data_parallel, own), math.ceil(own / layout.data_parallel)
    first, last = (_first_token(engine, workload, ranks, prompts) for prompts in (1, each))
    tpot = decode(engine, own, workload.looks_back).seconds
    chunk = min(workload.batched_tokens, workload.prompt - workload.cached)
    during = Work(own, workload.looks_back, 1, chunk, chunk * (workload.cached + chunk / 2))
    whole = last + (workload.output - 1) * tpot
    waves = math.ceil(concurrency / running)
    ttft = (first + last) / 2 + (waves - 1) / 2 * whole
    return Times(
        ttft=ttft,
        ttft_last=last + (waves - 1) * whole,
        tpot=tpot,
        gap=step(engine, during).seconds,
        request=ttft + (workload.output - 1) * tpot,
        output_rate=running * workload.output / whole,
    )


def _first_token(engine: EngineGroup, workload: Workload, ranks: int, prompts: int) -> float:
    return prefill(
        engine, workload.prompt, workload.batched_tokens, cached=workload.cached, ranks=ranks, prompts=prompts
    )


def _of_group(engine: EngineGroup, running: int) -> int:
    return math.ceil(running / engine.layout.replicas)


@dataclass(frozen=True)
class Checked:
    """A measured figure beside the prediction of it, in the unit that `observed.what` names."""

    observed: Observed
    source: str
    predicted: float
    best: float
    worst: float

    @property
    def error(self) -> float:
        """Share of the measured value by which the prediction is off."""
        return self.predicted / self.observed.value - 1


def check(applied: Applied, gpu: GpuSpec) -> tuple[Checked, ...]:
    """Predict everything that was observed, with the assumptions in force."""
    return tuple(_checked(applied, row, one.model, one.source, gpu) for one, row in applied.observed)


def _checked(applied: Applied, row: Observed, model_name: str, source: str, gpu: GpuSpec) -> Checked:
    model = shortened(shipped_model(model_name), row.layers)
    nodes = max(1, row.gpus // row.gpus_per_node)
    layout = GroupLayout(row.tensor_parallel, row.gpus // row.tensor_parallel, row.expert_parallel, nodes, 1)
    workload = Workload(row.prompt, row.output, row.batched_tokens)

    def value(case: Case) -> float:
        engine = EngineGroup(model, gpu, layout, figures(applied.table, case))
        one = times(engine, workload, row.concurrency, row.concurrency)
        return {"tpot_ms": one.tpot * 1e3, "ttft_ms": one.ttft * 1e3, "output_tokens_per_s": one.output_rate}[row.what]

    return Checked(row, source, *(value(case) for case in CASES))


def shortened(model: ModelSpec, layers: int | None) -> ModelSpec:
    """The model with its first `layers` layers only, as benchmarks on a single GPU cut it; all of them for None."""
    if layers is None or layers == model.layers:
        return model
    quantised = model.quantisation
    if quantised is not None:
        share = {
            name: round(getattr(quantised, name) * layers / model.layers)
            for name in ("attention_layers", "expert_layers", "shared_expert_layers", "dense_layers")
        }
        quantised = quantised.model_copy(update=share)
    return model.model_copy(update={"layers": layers, "quantisation": quantised})
