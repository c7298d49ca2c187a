"""A comparison as one HTML page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from coderack.plan.assumptions import CASES, Assumption
from coderack.plan.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Bar, Chart, Tick, bar, chart, short
from coderack.plan.compare import Candidate, Comparison, Refused, engines
from coderack.plan.memory import Memory
from coderack.plan.predictions import Times, times

_TEMPLATE = files("coderack.plan") / "templates" / "compare.html.j2"
_GIB = 2**30
# More curves than this cannot be told apart; the page says which are left out.
MOST_CURVES = 6
# Kind -> what the legend says. Parts of `memory` that belong together share a colour.
_KINDS = {
    "experts": "experts",
    "attention": "attention and other weights",
    "activations": "working memory of a step",
    "runtime": "CUDA graphs, NCCL, modules",
    "kv": "KV cache",
    "missing": "missing",
    "unused": "left to the system",
}


def render(comparison: Comparison) -> str:
    """The page, for a file. Everything in it is escaped: names and measurement files come from outside."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["short"] = short
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    drawn = _drawn(comparison)
    return template.render(
        comparison=comparison,
        question=comparison.question,
        cases=CASES,
        kinds=_KINDS,
        bars=_bars(comparison),
        bar_ticks=_bar_ticks(comparison),
        limit=_limit_share(comparison),
        charts=_charts(comparison, drawn) if drawn else (),
        not_drawn=len(comparison.candidates) - len(drawn),
        size={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        assumptions=_assumptions(comparison),
    )


def _drawn(comparison: Comparison) -> list[Candidate]:
    """The candidates whose curves are shown: those that come first at some concurrency before others."""
    places = range(len(comparison.question.concurrencies))
    rankings = [comparison.ranked(place) for place in places]
    order = [one for rank in zip(*rankings, strict=True) for one in rank]
    chosen = list(dict.fromkeys(one.layout for one in order))[:MOST_CURVES]
    return [one for layout in chosen for one in comparison.candidates if one.layout == layout]


def _charts(comparison: Comparison, drawn: list[Candidate]) -> tuple[Chart, ...]:
    question = comparison.question
    last = max(64, *question.concurrencies)
    doubling = [2**power for power in range(last.bit_length())]
    concurrencies = doubling if doubling[-1] == last else [*doubling, 2 * doubling[-1]]
    curves: dict[str, list[Times]] = {}
    for one in drawn:
        engine = engines(question, comparison.applied, one.layout, one.memory)("expected")
        curves[one.layout.name] = [
            times(engine, question.workload, each, min(each, one.room)) for each in concurrencies
        ]
    waits = {one.layout.name: [each > one.room for each in concurrencies] for one in drawn}

    def series(pick: str, factor: float) -> list[tuple[str, list[float], list[bool]]]:
        return [(name, [getattr(one, pick) * factor for one in points], waits[name]) for name, points in curves.items()]

    return (
        chart("tpot", "Time per output token, mean", "ms", concurrencies, series("tpot", 1e3)),
        chart("ttft", "Time to first token, mean", "s", concurrencies, series("ttft", 1), logarithmic=True),
        chart("request", "Time of a whole request, mean", "s", concurrencies, series("request", 1), logarithmic=True),
        chart("rate", "Output tokens per second, whole deployment", "tokens/s", concurrencies, series("output_rate", 1),
              logarithmic=True),
    )  # fmt: skip


def _bars(comparison: Comparison) -> tuple[Bar, ...]:
    scale = _scale(comparison)
    fitting = [_bar(one.layout.name, one.memory, scale, fits=True) for one in comparison.candidates]
    return (*fitting, *(_refused_bar(one, one.memory, scale) for one in comparison.too_large if one.memory is not None))


def _refused_bar(one: Refused, used: Memory, scale: float) -> Bar:
    return _bar(", ".join(one.names), used, scale, fits=False)


def _bar(name: str, used: Memory, scale: float, *, fits: bool) -> Bar:
    experts, weights = used.part("experts").expected, used.weights.expected
    short_of = _missing(used)
    parts = [
        ("experts", experts),
        ("attention", weights - experts),
        ("activations", used.group("activations").expected),
        ("runtime", used.group("runtime").expected),
        ("kv", used.kv.available.expected),
        ("missing", short_of),
        ("unused", used.total.expected - used.limit.expected if fits else 0.0),
    ]
    if fits:
        note = f"KV cache: {used.kv.requests.expected:.1f} requests of {used.max_model_len:,} per rank"
    else:
        # What is used beyond the limit is missing too, and is in the bar already.
        beyond = max(0.0, used.occupied.expected - used.limit.expected)
        note = f"does not fit: {(short_of + beyond) / _GIB:.1f} GiB short"
    return bar(name, note, [(kind, _KINDS[kind], size / _GIB) for kind, size in parts if size > 0], scale, fits=fits)


def _missing(used: Memory) -> float:
    """Bytes that one request of max_model_len needs and the cache does not have; 0 where it fits."""
    needed = used.kv.bytes_per_token * used.max_model_len
    return max(0.0, needed - used.kv.available.expected)


def _memories(comparison: Comparison) -> list[Memory]:
    refused = [one.memory for one in comparison.too_large if one.memory is not None]
    return [*(one.memory for one in comparison.candidates), *refused]


def _scale(comparison: Comparison) -> float:
    """GiB of the full width: the GPU, or the largest demand on it."""
    demands = [
        (used.occupied.expected + used.kv.available.expected + _missing(used)) / _GIB for used in _memories(comparison)
    ]
    return max([comparison.question.gpu.memory_gib[1], *demands])


def _bar_ticks(comparison: Comparison) -> tuple[Tick, ...]:
    scale = _scale(comparison)
    size = 20 if scale <= 200 else 10 ** len(str(int(scale))) // 10
    return tuple(Tick(round(gib / scale * 100, 2), str(gib)) for gib in range(0, int(scale) + 1, size))


def _limit_share(comparison: Comparison) -> tuple[float, float]:
    """GiB that vLLM may use, and where that lies in percent."""
    memories = _memories(comparison)
    if not memories:
        return 0.0, 0.0
    gib = memories[0].limit.expected / _GIB
    return gib, round(gib / _scale(comparison) * 100, 2)


def _assumptions(comparison: Comparison) -> list[tuple[str, Assumption]]:
    return list(comparison.applied.table.items())
