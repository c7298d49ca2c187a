"""`coderack plan`: does a serving profile fit its GPUs, what would, and how vLLM is started with it."""

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, print_table
from coderack.cli.plan_compare import compare_layouts, scale_out
from coderack.spec.checked import SpecError
from coderack.spec.hardware import GPUS

if TYPE_CHECKING:
    from coderack.plan.check import Check
    from coderack.plan.fit import Fit, Rung
    from coderack.plan.memory import KvCache, Memory, Range
    from coderack.spec.hardware import GpuSpec
    from coderack.spec.model import ModelSpec
    from coderack.spec.profile import ServingProfile

_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")

app = typer.Typer(
    help="Find out before a start of half an hour whether a layout fits, why not, what would, and what it costs.\n\n"
    "Exit codes: 0 it fits, 1 it does not, 2 bad input.",
    no_args_is_help=True,
    add_completion=False,
)

ProfileArgument = Annotated[
    str, typer.Argument(metavar="PROFILE", help="A name in inventories/profiles, or the path of a profile.")
]
GpuOption = Annotated[
    str, typer.Option("--gpu", metavar="NAME", envvar="CODERACK_GPU", help=f"One of {', '.join(GPUS)}.")
]
PerNodeOption = Annotated[int, typer.Option("--gpus-per-node", metavar="N", min=1, max=16, help="GPUs of one node.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--model-config", metavar="FILE", help="The model's config.json, instead of the shipped one."),
]
FolderOption = Annotated[
    Path | None, typer.Option("--profiles-dir", metavar="DIR", help="Where named profiles are looked for.")
]


@app.callback()
def _group() -> None:
    pass


app.command("compare")(compare_layouts)
app.command("scale")(scale_out)


@app.command("check")
def check_command(
    profile: ProfileArgument,
    *,
    gpu: GpuOption = "h100-sxm",
    gpus_per_node: PerNodeOption = 8,
    model_config: ConfigOption = None,
    profiles_dir: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a profile fits: what divides, what each GPU holds, and how many requests the KV cache takes.

    It fits when one request of max_model_len fits even with every uncertain figure at its bad end. Exit code 1: it does
    not, or only with luck; the nearest that does is named.

    Example: coderack plan check fused-16 --gpu h100-sxm
    """
    from coderack.plan.check import check  # noqa: PLC0415
    from coderack.plan.fit import fit  # noqa: PLC0415

    asked, model, hardware = _inputs(profile, profiles_dir, model_config, gpu)
    try:
        found = check(asked, model, hardware, gpus_per_node)
        ladder = None if found.fits else fit(asked, model, hardware, gpus_per_node)
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)
    if as_json:
        nearest = [_rung_json(rung, ladder) for rung in _nearest(ladder)] if ladder else []
        print_json("coderack.plan.check/1", _check_json(found, asked) | {"nearest": nearest})
    else:
        _print_check(found, asked)
        if ladder:
            _print_nearest(ladder)
    raise typer.Exit(Exit.HOLDS if found.fits else Exit.DOES_NOT_HOLD)


@app.command("fit")
def fit_command(
    profile: ProfileArgument,
    *,
    gpu: GpuOption = "h100-sxm",
    gpus_per_node: PerNodeOption = 8,
    model_config: ConfigOption = None,
    profiles_dir: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Climb the out-of-memory ladder: what to give up first until it fits, and what each step costs.

    The order: tokens per step, sequences and graphs, an 8-bit KV cache, shorter requests, wider tensor parallelism,
    and in the end shorter prompts. Steps add up, but for tensor parallelism, which spares cache type and length.

    Example: coderack plan fit inventories/profiles/seed-8.yml --gpu h100-sxm
    """
    from coderack.plan.fit import fit  # noqa: PLC0415

    asked, model, hardware = _inputs(profile, profiles_dir, model_config, gpu)
    try:
        found = fit(asked, model, hardware, gpus_per_node)
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)
    if as_json:
        print_json("coderack.plan.fit/1", _fit_json(found, asked, hardware))
    else:
        _print_fit(found, asked, hardware)
    raise typer.Exit(Exit.HOLDS if found.first else Exit.DOES_NOT_HOLD)


@app.command("args")
def args_command(
    profile: ProfileArgument,
    *,
    address: Annotated[
        list[str],
        typer.Option("--address", metavar="ADDRESS", help="Private address of a node; once per node, the head first."),
    ],
    node: Annotated[int | None, typer.Option("--node", metavar="N", min=0, help="Only this node, from 0.")] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Of the API server.")] = 8000,
    rpc_port: Annotated[int, typer.Option("--rpc-port", min=1, max=65535, help="Of the group's handshake.")] = 13345,
    profiles_dir: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the vLLM command line of each node, as the role vllm starts it, ready for a shell.

    Example: coderack plan args fused-16 --address 10.0.0.1 --address 10.0.0.2 --node 1
    """
    from coderack.plan.arguments import vllm_arguments  # noqa: PLC0415

    asked = _profile(profile, profiles_dir)
    if len(address) != asked.layout.nodes:
        fail(
            Exit.BAD_INPUT,
            f"--address is given {len(address)} time(s) and profile {asked.name} has {asked.layout.nodes} node(s); "
            "wanted one for each, the head first",
        )
    if strange := [one for one in address if _ADDRESS.fullmatch(one) is None]:
        fail(Exit.BAD_INPUT, f"--address is {strange[0]!r:.80}, wanted a node's private address, such as 10.0.0.1")
    if len(set(address)) < len(address):
        fail(Exit.BAD_INPUT, f"--address is {', '.join(address)}, wanted another one for each node")
    if port == rpc_port:
        fail(Exit.BAD_INPUT, f"--port and --rpc-port are both {port}, wanted two: the head listens on either")
    if node is not None and node >= asked.layout.nodes:
        fail(Exit.BAD_INPUT, f"--node is {node}, wanted 0 to {asked.layout.nodes - 1}")
    lines = {
        rank: vllm_arguments(
            asked,
            node_rank=rank,
            node_count=asked.layout.nodes,
            head_address=address[0],
            host=address[rank],
            port=port,
            rpc_port=rpc_port,
        )
        for rank in (range(asked.layout.nodes) if node is None else (node,))
    }
    if as_json:
        nodes = [{"node": rank, "address": address[rank], "arguments": words} for rank, words in lines.items()]
        print_json("coderack.plan.args/1", {"profile": asked.name, "nodes": nodes})
        return
    for words in lines.values():
        typer.echo(shlex.join(["vllm", *words]))


def _inputs(
    profile: str, folder: Path | None, config: Path | None, gpu: str
) -> "tuple[ServingProfile, ModelSpec, GpuSpec]":
    from coderack.plan.models import model_of  # noqa: PLC0415

    asked = _profile(profile, folder)
    if gpu not in GPUS:
        fail(Exit.BAD_INPUT, f"--gpu is {gpu!r:.80}, wanted one of {', '.join(GPUS)}")
    try:
        return asked, model_of(asked, config), GPUS[gpu]
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)


def _profile(name: str, folder: Path | None) -> "ServingProfile":
    from coderack.plan.profiles import load_profile  # noqa: PLC0415

    try:
        return load_profile(name, folder)
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)


def _nearest(found: "Fit") -> "tuple[Rung, ...]":
    """The first rung that fits, and the first that keeps length and cache type, where that is another."""
    keeps = ("layout.tensor_parallel", "layout.data_parallel", "limits.max_num_batched_tokens", "limits.max_num_seqs")
    fitting = [rung for rung in found.rungs if rung.check.fits]
    sparing = [rung for rung in fitting if all(key in keeps for key, _ in rung.changes)]
    chosen = [*fitting[:1], *(rung for rung in sparing[:1] if rung is not fitting[0])]
    return tuple(chosen)


def _setting_words(rung: "Rung") -> str:
    return ", ".join(f"{key} {value}" for key, value in rung.changes) or "as it is"


# Text -------------------------------------------------------------------------------------------------------------

_WORDS = {
    "fits": "fits",
    "tight": "does not fit for sure",
    "too_big": "does not fit",
    "impossible": "cannot run",
}


def _print_check(found: "Check", asked: "ServingProfile") -> None:
    layout = asked.layout
    typer.echo(
        f"{asked.name} on {layout.nodes} node(s) of {found.gpus_per_node} {found.gpu}, {layout.mode}: "
        f"{layout.data_parallel} data parallel x {layout.tensor_parallel} tensor parallel, "
        f"expert parallel {'on' if layout.expert_parallel else 'off'}: {_WORDS[found.verdict]}"
    )
    for line in found.problems or (found.reason,):
        typer.echo(f"  {line}")
    if found.memory is not None:
        _print_memory(found.memory)
        _print_caches(found.memory)
    for note in found.notes:
        typer.echo(f"Note: {note}.")


def _print_nearest(ladder: "Fit") -> None:
    nearest = _nearest(ladder)
    if not nearest:
        typer.echo(f"Nothing that coderack plan fit tries does: {ladder.advice}.")
    for rung in nearest:
        typer.echo(f"Fits: {_setting_words(rung)}.")
        for cost in ladder.costs(rung):
            typer.echo(f"  Cost: {cost}.")


def _print_memory(memory: "Memory") -> None:
    rows = []
    for group in ("weights", "activations", "runtime"):
        parts = [part for part in memory.parts if part.group == group]
        rows += [[f"  {part.label}", *_gib_cells(part.size)] for part in parts]
        rows.append([group, *_gib_cells(memory.group(group))])
    rows.append(["KV cache", *_gib_cells(memory.kv.available)])
    rows.append(["vLLM may use", *_gib_cells(memory.limit)])
    print_table(["GiB per GPU", "low", "expected", "high"], rows)


def _print_caches(memory: "Memory") -> None:
    rows = [_cache_row(cache, memory) for cache in (memory.kv, *memory.alternatives)]
    print_table(
        [
            "KV cache",
            "bytes per token",
            "tokens per rank",
            f"requests of {memory.max_model_len:,} per rank",
            f"tokens on {memory.ranks} rank(s)",
        ],
        rows,
    )


def _cache_row(cache: "KvCache", memory: "Memory") -> list[str]:
    everywhere = cache.tokens.times(memory.ranks, memory.ranks, memory.ranks)
    return [
        cache.dtype if cache is not memory.kv else f"{cache.dtype} (profile)",
        f"{cache.bytes_per_token:,}",
        _span(cache.tokens, "{:,.0f}"),
        _span(cache.requests, "{:.1f}"),
        _span(everywhere, "{:,.0f}"),
    ]


def _print_fit(found: "Fit", asked: "ServingProfile", gpu: "GpuSpec") -> None:
    typer.echo(f"{asked.name} on {gpu.name}:")
    rows = []
    for rung in found.rungs:
        memory = rung.check.memory
        rows.append([
            ">" if rung is found.first else "",
            rung.name,
            ", ".join(f"{key} {value}" for key, value in rung.settings),
            _span(memory.kv.requests, "{:.1f}") if memory else "",
            _WORDS[rung.check.verdict],
            rung.cost,
        ])  # fmt: skip
    print_table(
        ["", "step", "set", "requests per rank, low - expected - high", "", "cost"], rows, folded=["set", "cost"]
    )
    if found.first is None:
        typer.echo(f"No step fits: {found.advice}.")
    else:
        typer.echo(f"First that fits: {_setting_words(found.first)}.")


def _gib_cells(size: "Range") -> list[str]:
    expected = f"{size.expected / 2**30:.2f}"
    if size.low == size.high:
        return ["", expected, ""]
    return [f"{size.low / 2**30:.2f}", expected, f"{size.high / 2**30:.2f}"]


def _span(value: "Range", form: str) -> str:
    return " - ".join(form.format(number) for number in (value.low, value.expected, value.high))


# JSON -------------------------------------------------------------------------------------------------------------


def _check_json(found: "Check", asked: "ServingProfile") -> dict[str, Any]:
    return {
        "profile": found.profile,
        "gpu": found.gpu,
        "gpus_per_node": found.gpus_per_node,
        "verdict": str(found.verdict),
        "fits": found.fits,
        "reason": found.reason,
        "problems": list(found.problems),
        "notes": list(found.notes),
        "layout": asked.layout.model_dump(),
        "limits": asked.limits.model_dump(),
        "memory": asdict(found.memory) if found.memory else None,
    }


def _fit_json(found: "Fit", asked: "ServingProfile", gpu: "GpuSpec") -> dict[str, Any]:
    return {
        "profile": asked.name,
        "gpu": gpu.name,
        "fits": found.first is not None,
        "first": _rung_json(found.first, found) if found.first else None,
        "advice": found.advice,
        "rungs": [_rung_json(rung, found) for rung in found.rungs],
    }


def _rung_json(rung: "Rung", ladder: "Fit") -> dict[str, Any]:
    memory = rung.check.memory
    return {
        "name": rung.name,
        "settings": dict(rung.settings),
        "changes": dict(rung.changes),
        "cost": rung.cost,
        "costs": list(ladder.costs(rung)),
        "verdict": str(rung.check.verdict),
        "reason": rung.check.reason,
        "kv": asdict(memory.kv) if memory else None,
    }
