"""What `coderack plan compare` and `coderack plan scale` take, print and write. Imported when one of them runs."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from coderack.cli.console import Exit, fail, print_table
from coderack.fleet import files
from coderack.plan import measurements, models
from coderack.plan.assumptions import FABRICS, assumptions
from coderack.plan.charts import short
from coderack.plan.compare import Candidate, Comparison, Question, Refused
from coderack.plan.measurements import Applied
from coderack.plan.predictions import Checked, Point, Times, Workload
from coderack.plan.scale import Scaled, rule
from coderack.spec.checked import SpecError, validate
from coderack.spec.hardware import GPUS, GpuSpec
from coderack.spec.profile import Limits

_GIB = 2**30
_MOST_CONCURRENCIES = 8
_MOST_AT_ONCE = 4096
_TIMES = (
    *("Layout", "First token s", "Per token ms", "Step ms", "Of roofline", "Pause ms", "Request s", "Tokens/s"),
    *("Burst s", "Running"),
)

# Input -------------------------------------------------------------------------------------------------------------


def question(
    gpus: int, gpus_per_node: int, gpu: str, config: Path | None, fabric: str, workload: Workload,
    concurrencies: tuple[int, ...], limits: Limits,
) -> Question:  # fmt: skip
    if fabric not in (*FABRICS, "none"):
        raise SpecError("--fabric", (f"is {fabric!r:.80}, wanted one of {', '.join(FABRICS)} or none",))
    tokens = workload.prompt + workload.output
    if tokens > limits.max_model_len:
        wanted = f"wanted at most --max-model-len {limits.max_model_len:,}"
        raise SpecError("--prompt and --output", (f"are {tokens:,} tokens together, {wanted}",))
    model, name = models.model_at(config) if config else models.default_model()
    if limits.max_model_len > model.max_positions:
        known = f"and {name} knows {model.max_positions:,} positions; wanted no more than that"
        raise SpecError("--max-model-len", (f"is {limits.max_model_len:,} {known}",))
    return Question(
        model=model,
        model_name=name,
        gpu=_gpu(gpu),
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        fabric=None if fabric == "none" else fabric,
        limits=limits,
        workload=workload,
        concurrencies=concurrencies,
    )


def _gpu(name: str) -> GpuSpec:
    if name not in GPUS:
        raise SpecError("--gpu", (f"is {name!r:.80}, wanted one of {', '.join(GPUS)}",))
    return GPUS[name]


def workload(prompt: int, output: int, cached: int, context: int | None, batched_tokens: int) -> Workload:
    if cached >= prompt:
        raise SpecError("--cached", (f"is {cached}, wanted less than --prompt {prompt}: one token is always computed",))
    return Workload(prompt, output, batched_tokens, cached, context)


def limits(length: int, batched_tokens: int, seqs: int, utilization: float, cache: str) -> Limits:
    data = {
        "max_model_len": length,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": batched_tokens,
        "gpu_memory_utilization": float(utilization),
        "kv_cache_dtype": cache,
    }
    return validate(Limits, data, "options")


def concurrencies(text: str) -> tuple[int, ...]:
    return numbers(text, "--concurrency", _MOST_AT_ONCE)


def numbers(text: str, option: str, most: int) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    good = all(word.isascii() and word.isdecimal() and len(word) <= 8 and 1 <= int(word) <= most for word in words)
    if not good or len(words) > _MOST_CONCURRENCIES:
        wanted = f"up to {_MOST_CONCURRENCIES} numbers from 1 to {most} such as 1,8,32"
        raise SpecError(option, (f"is {text!r:.80}, wanted {wanted}",))
    return tuple(sorted({int(word) for word in words}))


def applied_to(question: Question, paths: Iterable[Path]) -> Applied:
    # Without a fabric nothing crosses nodes, so that any would do.
    table = assumptions(question.fabric or next(iter(FABRICS)))
    given = (*measurements.shipped_for(question.gpu.name), *(measurements.load(path) for path in paths))
    return measurements.apply(table, given, question.gpu.name)


def write_page(path: Path, result: Comparison) -> None:
    from coderack.plan.page import render  # noqa: PLC0415 - Jinja takes as long to import as all of this to compute

    try:
        files.is_there(path)
        files.replace(path, render(result))
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)
    except OSError as error:
        fail(Exit.UNKNOWN, f"{path} cannot be written ({error.strerror}); wanted a file in a folder that is there")


# Text --------------------------------------------------------------------------------------------------------------


def print_comparison(result: Comparison) -> None:
    question = result.question
    typer.echo(_heading(question))
    for place, concurrency in enumerate(question.concurrencies):
        if result.candidates:
            print_table(
                _TIMES,
                [_row(one, one.points[place]) for one in result.ranked(place)],
                title=f"{concurrency} at a time",
            )
            typer.echo(_sure(result, place))
    if result.candidates:
        print_table(
            ["Layout", "Weights GiB", "Working GiB", "KV GiB", f"Of {question.limits.max_model_len:,} tokens", "Note"],
            [_memory_row(one) for one in result.candidates],
            title="Memory of one GPU, KV cache of one data parallel rank",
            folded=["Note"],
        )
    else:
        typer.echo("\nNo layout fits.")
    refused = [*result.too_large, *result.illegal]
    if refused:
        print_table(
            ["Layout", "Why not"], [[", ".join(one.names), "; ".join(one.reasons)] for one in refused],
            title="What does not go", folded=["Layout", "Why not"],
        )  # fmt: skip
    if result.checked:
        print_table(
            ["Measured on this GPU", "Measured", "Predicted", "Off by"],
            [_checked_row(one) for one in result.checked],
            title="Prediction against measurement",
        )
    _print_assumptions(result.applied)


def _heading(question: Question) -> str:
    one = question.workload
    cached = f" ({one.cached:,} cached)" if one.cached else ""
    network = f", {question.fabric} between nodes" if question.gpus > question.gpus_per_node else ""
    return (
        f"{question.model_name} on {question.gpus} x {question.gpu.product}, "
        f"{question.gpus_per_node} per node{network}.\n"
        f"Prompt {one.prompt:,} tokens{cached}, answer {one.output:,}. "
        "Predicted, not measured; in brackets all best to all worst assumptions.\n"
        "First token and per token: means under a steady load, with prompts of others in between.\n"
        "Step: a token without such a prompt. Pause: with one. Burst: the last first token when all come at once."
    )


def _row(one: Candidate, at: Point) -> list[str]:
    times = at.times
    return [
        one.layout.name,
        _with_range(times.expected.ttft, times.best.ttft, times.worst.ttft),
        _with_range(*(case.tpot * 1e3 for case in (times.expected, times.best, times.worst))),
        short(times.expected.step * 1e3),
        f"{at.floor / times.expected.step:.0%}",
        short(times.expected.gap * 1e3),
        _with_range(times.expected.request, times.best.request, times.worst.request),
        short(times.expected.output_rate),
        short(times.expected.burst_ttft),
        str(at.running) if at.running == at.concurrency else f"{at.running}, others wait",
    ]


def _with_range(expected: float, best: float, worst: float) -> str:
    return f"{short(expected)} ({short(best)}-{short(worst)})"


def _sure(result: Comparison, place: int) -> str:
    leaders = result.leaders(place)
    if len(set(leaders.values())) == 1:
        return f"{leaders['expected']} is first under all best and all worst assumptions too."
    if leaders["best"] == leaders["worst"]:
        return f"A close call: under all best and under all worst assumptions {leaders['best']} is first. Measure both."
    return (
        f"Not certain: under all best assumptions {leaders['best']} is first, under all worst {leaders['worst']}. "
        "Measure those."
    )


def _memory_row(one: Candidate) -> list[str]:
    used = one.memory
    working = used.group("activations") + used.group("runtime")
    note = "with the highest use of memory that is likely, it does not start" if one.tight else ""
    return [
        one.layout.name,
        f"{used.weights.expected / _GIB:.1f}",
        f"{working.expected / _GIB:.1f} ({working.low / _GIB:.1f}-{working.high / _GIB:.1f})",
        f"{used.kv.available.expected / _GIB:.1f}",
        f"{used.kv.requests.expected:.1f} ({used.kv.requests.low:.1f}-{used.kv.requests.high:.1f})",
        note,
    ]


def _checked_row(one: Checked) -> list[str]:
    row = one.observed
    layers = f", {row.layers} layers" if row.layers else ""
    of = f"{row.gpus} GPUs, TP{row.tensor_parallel}{layers}, {row.concurrency} at a time, prompt {row.prompt:,}"
    return [f"{row.what}: {of}", short(row.value), _with_range(one.predicted, one.best, one.worst), f"{one.error:+.1%}"]


def _print_assumptions(applied: Applied) -> None:
    print_table(
        ["Assumption", "Expected", "Best to worst", "Unit", "What it is", "Source"],
        [
            [name, short(one.expected), f"{short(one.best)} to {short(one.worst)}", one.unit, one.meaning, one.source]
            for name, one in applied.table.items()
        ],
        title="Assumptions; --measurements FILE replaces any of them",
        folded=["What it is", "Source"],
    )


def print_scaled(question: Question, rows: list[Scaled]) -> None:
    headings = [
        *("Nodes", "GPUs", "Group", "EP", "Experts per GPU", "Weights GiB"),
        f"Requests of {question.limits.max_model_len:,}",
        *(f"{one} at a time: s, ms/token" for one in question.concurrencies),
        "A node's death takes",
    ]
    title = f"{question.model_name} on {question.gpu.product}"
    print_table(headings, [_scaled_row(question, row) for row in rows], title=title)
    for size in dict.fromkeys(row.layout.gpus for row in rows if row.layout.expert_parallel):
        typer.echo(f"{rule(question, size)}.")
    if question.model.experts is not None:
        typer.echo(
            "The rule: with fewer GPUs than active experts, some GPU has to read two or more of a token's experts, one "
            "after the other, in every layer. With as many or more, only chance brings that about, and the less often "
            "the more GPUs there are."
        )


def _scaled_row(question: Question, row: Scaled) -> list[str]:
    cells = [
        str(row.nodes),
        str(row.gpus),
        row.arithmetic,
        str(row.layout.gpus) if row.layout.expert_parallel else "-",
        str(row.experts_per_gpu) if row.layout.expert_parallel else "-",
        f"{row.memory.weights.expected / _GIB:.1f}",
    ]
    if row.reason is not None:
        return [*cells, row.reason, *("-" for _ in question.concurrencies), "-"]
    times = [one.times.expected for one in row.points]
    figures = [f"{short(one.request)}, {short(one.tpot * 1e3)}" for one in times]
    figures = figures or ["not predicted" for _ in question.concurrencies]
    requests = f"{row.requests:.1f}{', may not start' if row.tight else ''}"
    return [*cells, requests, *figures, "all" if row.lost == 1 else f"{row.lost:.0%}"]


# JSON --------------------------------------------------------------------------------------------------------------


def comparison_json(result: Comparison) -> dict[str, Any]:
    question = result.question
    places = range(len(question.concurrencies))
    return {
        "model": question.model_name,
        "gpu": question.gpu.name,
        "gpus": question.gpus,
        "gpus_per_node": question.gpus_per_node,
        "fabric": question.fabric,
        "limits": question.limits.model_dump(),
        "workload": asdict(question.workload),
        "rankings": [
            {
                "concurrency": question.concurrencies[place],
                "layouts": [one.layout.name for one in result.ranked(place)],
                "first_under": result.leaders(place),
            }
            for place in places
        ],
        "layouts": [_candidate_json(one) for one in result.candidates],
        "too_large": [_refused_json(one) for one in result.too_large],
        "illegal": [_refused_json(one) for one in result.illegal],
        "checked": [_checked_json(one) for one in result.checked],
        "measurements": [one.name for one in result.applied.given],
        "assumptions": {name: asdict(one) for name, one in result.applied.table.items()},
    }


def _candidate_json(one: Candidate) -> dict[str, Any]:
    layout = one.layout
    return {
        "name": layout.name,
        "mode": layout.mode,
        "replicas": layout.replicas,
        "nodes_per_group": layout.nodes,
        "data_parallel": layout.data_parallel,
        "tensor_parallel": layout.tensor_parallel,
        "expert_parallel_size": layout.gpus if layout.expert_parallel else 1,
        "may_not_fit": one.tight,
        "memory": asdict(one.memory),
        "requests_at_once": one.room,
        "points": [_point_json(at) for at in one.points],
    }


def _point_json(at: Point) -> dict[str, Any]:
    return {
        "concurrency": at.concurrency,
        "running": at.running,
        **{case: _times_json(getattr(at.times, case)) for case in ("expected", "best", "worst")},
        "roofline_share": round(at.floor / at.times.expected.step, 4),
        "step_ms": {part: round(seconds * 1e3, 4) for part, seconds in asdict(at.step).items()},
    }


def _times_json(times: Times) -> dict[str, float]:
    return {
        "ttft_ms": round(times.ttft * 1e3, 2),
        "burst_ttft_ms": round(times.burst_ttft * 1e3, 2),
        "tpot_ms": round(times.tpot * 1e3, 3),
        "step_ms": round(times.step * 1e3, 3),
        "longest_pause_ms": round(times.gap * 1e3, 2),
        "request_ms": round(times.request * 1e3, 2),
        "output_tokens_per_s": round(times.output_rate, 2),
    }


def _refused_json(one: Refused) -> dict[str, Any]:
    return {"names": list(one.names), "reasons": list(one.reasons)}


def _checked_json(one: Checked) -> dict[str, Any]:
    return {
        "observed": one.observed.model_dump(),
        "source": one.source,
        "predicted": round(one.predicted, 3),
        "best": round(one.best, 3),
        "worst": round(one.worst, 3),
        "error": round(one.error, 4),
    }


def scaled_json(question: Question, row: Scaled) -> dict[str, Any]:
    experts = row.layout.expert_parallel
    return {
        "nodes": row.nodes,
        "gpus": row.gpus,
        "replicas": row.layout.replicas,
        "data_parallel": row.layout.data_parallel,
        "tensor_parallel": row.layout.tensor_parallel,
        "pipeline_parallel": row.pipeline,
        "expert_parallel_size": row.layout.gpus if experts else 1,
        "experts_per_gpu": row.experts_per_gpu if experts else None,
        "rule": rule(question, row.layout.gpus) if experts else None,
        "rule_holds": row.enough_gpus,
        "fits": row.reason is None,
        "may_not_fit": row.tight,
        "reason": row.reason,
        "requests_of_max_model_len": round(row.requests, 2),
        "lost_with_a_node": row.lost,
        "points": [_point_json(at) for at in row.points],
    }
