"""What a caller sees of a layout: time to first token, time per token and rate, at a concurrency.

The load is steady: `concurrency` requests of one size are there at any time, each at another place, and when one is
through the next comes. Prompts then come in between the steps of running answers and slow them down, on all ranks that
share experts. What happens when all come at once is a figure of its own.
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

    `ttft` and `tpot` are means: until the first token, and from token to token with others' prompts in between. `step`
    is from token to token without those, `gap` with a chunk of one. `request` is from sending to the last token.
    `burst_ttft` is the last request's first token when all come at once to an idle deployment.
    """

    ttft: float
    burst_ttft: float
    step: float
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

    `step` is the decode step by part, `floor` the seconds that memory and tensor cores alone would need for it.
    """

    concurrency: int
    running: int
    times: Cases
    step: Step
    floor: float


# Of the interval of possible loads; 2^-14 of it is far below what the figures are worth.
_HALVINGS = 14
# How many requests decode follows from how long steps take, and the other way round; it settles at once.
_ROUNDS = 2

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
    ranks, own = engine.layout.data_parallel, _of_group(engine, running)
    flow = _steady(engine, workload, own)
    rate = flow.requests_per_second * running / own
    waiting = (concurrency - running) / rate
    ttft = flow.ttft + waiting
    burst = prefill(
        engine,
        workload.prompt,
        workload.batched_tokens,
        cached=workload.cached,
        ranks=min(ranks, own),
        prompts=math.ceil(own / ranks),
    )
    return Times(
        ttft=ttft,
        burst_ttft=burst + waiting,
        step=decode(engine, own, workload.looks_back).seconds,
        tpot=flow.tpot,
        gap=_with_a_chunk(engine, workload, max(1, own - 1), 1, 1).seconds,
        request=ttft + (workload.output - 1) * flow.tpot,
        output_rate=rate * workload.output,
    )


@dataclass(frozen=True)
class _Flow:
    """A group in its steady state; seconds. `load` is how many prompts a rank has in the average step."""

    tpot: float
    ttft: float
    requests_per_second: float
    load: float


def _steady(engine: EngineGroup, workload: Workload, own: int) -> _Flow:
    """Find the load at which as many prompts are worked off as requests come, by halving the interval.

    Under more load steps are longer, so requests come slower: there is one such load, or prompts alone keep all ranks
    busy and the rest waits for its first token.
    """
    most = max(1, workload.batched_tokens // (workload.prompt - workload.cached))
    if own == 1:
        return _flow(engine, workload, own, 0.0)
    low, high = 0.0, float(most)
    if _flow(engine, workload, own, high).load >= high:
        return _saturated(engine, workload, own, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _flow(engine, workload, own, middle).load > middle else (low, middle)
    return _flow(engine, workload, own, high)


def _flow(engine: EngineGroup, workload: Workload, own: int, load: float) -> _Flow:
    """The state if each rank had `load` prompts in the average step, and what load would come of it."""
    ranks, chunks, answers = engine.layout.data_parallel, _chunks(workload), workload.output - 1
    busy = min(1.0, load)
    queue = min((math.ceil(own / ranks) - 1) / 2, busy / (2 * (1 - busy)) if busy < 1 else math.inf)
    decoding = float(own)
    for _ in range(_ROUNDS):
        tpot, prompt = _steps(engine, workload, load, decoding, own)
        # Half a step until the next begins, the prompts before one's own, and it itself.
        ttft = engine.figures.first_token_ms / 1e3 + (tpot / 2 if own > 1 else 0.0) + (queue + 1) * prompt
        whole = ttft + answers * tpot
        decoding = own * answers * tpot / whole
    rate = own / whole
    # A request does not get in its own way.
    return _Flow(tpot, ttft, rate, rate * chunks * tpot / ranks * (own - 1) / own)


def _steps(engine: EngineGroup, workload: Workload, load: float, decoding: float, own: int) -> tuple[float, float]:
    """Mean seconds of a step while `decoding` of the `own` requests decode, and seconds of all steps of one prompt.

    A step has a chunk when any rank has one, since ranks that share experts go in step.
    """
    ranks, busy = engine.layout.data_parallel, min(1.0, load)
    share = 1 - (1 - busy) ** ranks
    together = max(1.0, ranks * busy / share) if share else 1.0
    plain = decode(engine, max(1, math.ceil(decoding)), workload.looks_back).seconds
    chunk = _with_a_chunk(engine, workload, min(decoding, own - 1), together, max(1.0, load))
    # As in `prefill`, the next chunk is scheduled when this one is through.
    return (1 - share) * plain + share * chunk.seconds, _chunks(workload) * (chunk.gpu + chunk.host)


def _saturated(engine: EngineGroup, workload: Workload, own: int, most: float) -> _Flow:
    """Prompts come as fast as the ranks take them; who neither waits for that nor is worked on decodes."""
    answers, decoding = workload.output - 1, float(own)
    for _ in range(_ROUNDS):
        tpot, _ = _steps(engine, workload, most, decoding, own)
        rate = engine.layout.data_parallel * most / (_chunks(workload) * tpot)
        decoding = min(float(own), rate * answers * tpot)
    # Little's law, for those who wait.
    ttft = own / rate - answers * tpot
    return _Flow(tpot, ttft, rate, most)


def _with_a_chunk(engine: EngineGroup, workload: Workload, decoding: float, ranks: float, prompts: float) -> Step:
    """A step in which `ranks` ranks have a chunk of `prompts` prompts each, and `decoding` requests decode."""
    new, chunks = workload.prompt - workload.cached, _chunks(workload)
    work = Work(
        sequences=math.ceil(decoding),
        context=workload.looks_back,
        prefill_ranks=ranks,
        prefill_tokens=new / chunks * prompts,
        attended=new * (workload.cached + new / 2) / chunks * prompts,
    )
    return step(engine, work)


def _chunks(workload: Workload) -> int:
    return math.ceil((workload.prompt - workload.cached) / workload.batched_tokens)


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
        return {
            "step_ms": one.step * 1e3,
            "tpot_ms": one.tpot * 1e3,
            "ttft_ms": one.ttft * 1e3,
            "burst_ttft_ms": one.burst_ttft * 1e3,
            "output_tokens_per_s": one.output_rate,
        }[row.what]

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
