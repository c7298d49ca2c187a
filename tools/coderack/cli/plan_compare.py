"""`coderack plan compare` and `coderack plan scale`: layouts beside each other."""

from pathlib import Path
from typing import Annotated

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json

_MOST_TOKENS = 16 * 2**20

# The planner's default question is the agent's: a long prompt with the schema, a short answer.
GpuOption = Annotated[str, typer.Option("--gpu", metavar="NAME", envvar="CODERACK_GPU", help="h100-sxm, h200-sxm, ...")]
PerNodeOption = Annotated[int, typer.Option("--gpus-per-node", min=1, max=16, help="GPUs of one node.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--model-config", metavar="FILE", help="The model's config.json; default: Qwen3-Coder-480B in FP8."),
]
PromptOption = Annotated[int, typer.Option("--prompt", min=1, max=_MOST_TOKENS, help="Tokens of a prompt.")]
OutputOption = Annotated[int, typer.Option("--output", min=1, max=_MOST_TOKENS, help="Tokens of an answer.")]
CachedOption = Annotated[
    int, typer.Option("--cached", min=0, max=_MOST_TOKENS, help="Tokens of a prompt that the prefix cache has.")
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context", min=1, max=_MOST_TOKENS, help="Tokens that decoding looks back over; default: prompt, half answer."
    ),
]
ConcurrencyOption = Annotated[
    str, typer.Option("--concurrency", metavar="N,...", help="Requests at a time in the whole deployment.")
]
FabricOption = Annotated[
    str, typer.Option("--fabric", metavar="NAME", help="Network between nodes: infiniband-ndr, efa, ..., none.")
]
MeasurementsOption = Annotated[
    list[Path] | None,
    typer.Option("--measurements", metavar="FILE", help="Figures in place of assumptions; may be given again."),
]
LengthOption = Annotated[
    int, typer.Option("--max-model-len", min=1, max=_MOST_TOKENS, help="Tokens of the longest request; one must fit.")
]
BatchedOption = Annotated[
    int,
    typer.Option(
        "--max-num-batched-tokens", min=1, max=_MOST_TOKENS, help="Tokens of one step and data parallel rank."
    ),
]
SeqsOption = Annotated[
    int, typer.Option("--max-num-seqs", min=1, max=65_536, help="Requests that run at once on one data parallel rank.")
]
UtilizationOption = Annotated[
    float, typer.Option("--gpu-memory-utilization", min=0.01, max=1.0, help="Share of GPU memory that vLLM may use.")
]
CacheOption = Annotated[str, typer.Option("--kv-cache-dtype", metavar="TYPE", help="auto, bfloat16, fp8, ...")]


def compare_layouts(
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=512, help="GPUs of the whole deployment.")],
    *,
    gpus_per_node: PerNodeOption = 8,
    gpu: GpuOption = "h100-sxm",
    model_config: ConfigOption = None,
    prompt: PromptOption = 8192,
    output: OutputOption = 128,
    cached: CachedOption = 0,
    context: ContextOption = None,
    concurrency: ConcurrencyOption = "1,8,32",
    fabric: FabricOption = "infiniband-ndr",
    measurement_files: MeasurementsOption = None,
    max_model_len: LengthOption = 65_536,
    max_num_batched_tokens: BatchedOption = 2048,
    max_num_seqs: SeqsOption = 64,
    gpu_memory_utilization: UtilizationOption = 0.9,
    kv_cache_dtype: CacheOption = "auto",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts as well; needs no network.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """All ways to lay the model over a number of GPUs: which fit, and how fast each should be.

    Sorted by the predicted time of a whole request, for each concurrency. Predictions come from a roofline with losses;
    every figure that it stands on is shown and can be replaced by a measurement. Exit code 1: no layout fits.

    Example: coderack plan compare --gpus 16 --fabric efa --concurrency 1,8,32 --html layouts.html
    """
    from coderack.cli import plan_layouts as layouts  # noqa: PLC0415 - for the other verbs of `plan`
    from coderack.plan.compare import compare  # noqa: PLC0415

    try:
        question = layouts.question(
            gpus, gpus_per_node, gpu, model_config, fabric,
            layouts.workload(prompt, output, cached, context, max_num_batched_tokens),
            layouts.concurrencies(concurrency),
            layouts.limits(max_model_len, max_num_batched_tokens, max_num_seqs, gpu_memory_utilization, kv_cache_dtype),
        )  # fmt: skip
        result = compare(question, layouts.applied_to(question, measurement_files or []))
    except ValueError as error:
        fail(Exit.BAD_INPUT, error)
    if html is not None:
        layouts.write_page(html, result)
    if as_json:
        print_json("coderack.plan.compare/1", layouts.comparison_json(result))
    else:
        layouts.print_comparison(result)
    raise typer.Exit(Exit.HOLDS if result.candidates else Exit.DOES_NOT_HOLD)


def scale_out(
    nodes: Annotated[str, typer.Option("--nodes", metavar="N,...", help="Numbers of nodes to look at.")] = "1,2,4",
    *,
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", min=1, max=16)] = 4,
    pipeline_parallel: Annotated[int, typer.Option("--pipeline-parallel", min=1, max=16)] = 1,
    gpus_per_node: PerNodeOption = 8,
    gpu: GpuOption = "h100-sxm",
    model_config: ConfigOption = None,
    prompt: PromptOption = 8192,
    output: OutputOption = 128,
    cached: CachedOption = 0,
    concurrency: ConcurrencyOption = "1,32",
    fabric: FabricOption = "infiniband-ndr",
    measurement_files: MeasurementsOption = None,
    max_model_len: LengthOption = 65_536,
    max_num_batched_tokens: BatchedOption = 2048,
    max_num_seqs: SeqsOption = 64,
    gpu_memory_utilization: UtilizationOption = 0.9,
    kv_cache_dtype: CacheOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """What more nodes give: one larger group, or more groups of the same size.

    GPUs = DP x TP x PP, and EP = DP x TP: a group of more nodes has more data parallel ranks and fewer experts per GPU,
    and fails as one. Exit code 1: none of the numbers fits.

    Example: coderack plan scale --nodes 1,2,4 --tensor-parallel 4
    """
    from coderack.cli import plan_layouts as layouts  # noqa: PLC0415 - for the other verbs of `plan`
    from coderack.plan.scale import scale  # noqa: PLC0415

    try:
        counts = layouts.numbers(nodes, "--nodes", 64)
        question = layouts.question(
            gpus_per_node, gpus_per_node, gpu, model_config, fabric,
            layouts.workload(prompt, output, cached, None, max_num_batched_tokens),
            layouts.concurrencies(concurrency),
            layouts.limits(max_model_len, max_num_batched_tokens, max_num_seqs, gpu_memory_utilization, kv_cache_dtype),
        )  # fmt: skip
        applied = layouts.applied_to(question, measurement_files or [])
        rows = scale(question, applied, counts, tensor_parallel, pipeline_parallel)
    except ValueError as error:
        fail(Exit.BAD_INPUT, error)
    if as_json:
        print_json("coderack.plan.scale/1", {"rows": [layouts.scaled_json(question, row) for row in rows]})
    else:
        layouts.print_scaled(question, rows)
    raise typer.Exit(Exit.HOLDS if any(row.reason is None for row in rows) else Exit.DOES_NOT_HOLD)
