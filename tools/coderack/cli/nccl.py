"""`coderack nccl`: what an all-reduce test says about the links of a node, or between nodes."""

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from coderack.bench.nccl import Expectation, Network, Verdict, judge
from coderack.cli.console import Exit, JsonOption, fail, print_json, print_table
from coderack.clients.nccl_tests import Run, parse

# A log with every subsystem of 16 ranks has a few MB.
_LIMIT_BYTES = 256 * 2**20
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Judge NCCL's bandwidth and the way it took.")


@app.callback()
def _group() -> None:
    pass


@app.command("gate")
def gate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Output of all_reduce_perf, of all nodes; - reads stdin.")
    ],
    *,
    ranks: Annotated[int, typer.Option("--ranks", min=2, help="GPUs that took part.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that took part.")] = 1,
    floor: Annotated[
        float | None, typer.Option("--floor", metavar="GB/S", min=0.001, help="Least bus bandwidth; none is exit 3.")
    ] = None,
    nvls: Annotated[bool, typer.Option("--nvls/--no-nvls", help="NVLink SHARP has to be in use.")] = True,
    network: Annotated[
        str, typer.Option("--network", metavar="infiniband|efa|none", help="What has to carry data between nodes.")
    ] = "none",
    hcas: Annotated[
        str, typer.Option("--hcas", metavar="NAME,...", help="InfiniBand devices that have to be in use, no others.")
    ] = "",
    efa_devices: Annotated[
        int | None, typer.Option("--efa-devices", min=1, help="EFA devices that have to be found on each node.")
    ] = None,
    min_size: Annotated[
        str, typer.Option("--min-size", metavar="BYTES", help="Least message size that is judged; K, M, G are taken.")
    ] = "8G",
    without_nvls: Annotated[
        float, typer.Option("--without-nvls", metavar="GB/S", min=1, help="What these GPUs reach without NVLS.")
    ] = 370.0,
    as_json: JsonOption = False,
) -> None:
    """Judge the output of nccl-tests' all_reduce_perf, run with NCCL_DEBUG=INFO.

    The sums have to be right, the bus bandwidth at the largest size at least the floor, NVLS and the network really in
    use. Exit code 1: one of these is not so. 3: the output does not say, or there is no floor.

    Example: coderack nccl gate --ranks 8 --floor 440 all_reduce.log
    """
    if network not in ("infiniband", "efa", "none"):
        fail(Exit.BAD_INPUT, f"--network is {network!r}, wanted infiniband, efa or none")
    if ranks % nodes:
        fail(Exit.BAD_INPUT, f"--ranks is {ranks} and --nodes {nodes}; wanted the same number of ranks on every node")
    if nodes > 1 and network == "none":
        fail(Exit.BAD_INPUT, f"--nodes is {nodes} and --network none; wanted infiniband or efa")
    known: Network = "infiniband" if network == "infiniband" else "efa" if network == "efa" else "none"
    wanted = Expectation(
        ranks=ranks,
        nodes=nodes,
        floor=floor,
        nvls=nvls,
        network=known,
        hcas=tuple(name.strip() for name in hcas.split(",") if name.strip()),
        efa_devices=efa_devices,
        min_bytes=_size(min_size),
        without_nvls=without_nvls,
    )
    run = parse(_read(files))
    verdict = judge(run, wanted)
    if as_json:
        print_json("coderack.nccl/1", _report(run, wanted, verdict))
    else:
        _print(run, wanted, verdict)
    raise typer.Exit(verdict.exit_code)


def _size(text: str) -> int:
    number, unit = (text[:-1], _UNITS[text[-1].upper()]) if text[-1:].upper() in _UNITS else (text, 1)
    if not number.isdecimal() or int(number) < 1:
        fail(Exit.BAD_INPUT, f"--min-size is {text!r}, wanted bytes such as 8G or 1073741824")
    return int(number) * unit


def _read(files: list[Path]) -> str:
    texts = []
    for path in files:
        try:
            content = (
                sys.stdin.buffer.read(_LIMIT_BYTES + 1) if str(path) == "-" else path.open("rb").read(_LIMIT_BYTES + 1)
            )
        except OSError as error:
            fail(Exit.BAD_INPUT, f"{path} cannot be read ({error.strerror}); wanted the output of all_reduce_perf")
        if len(content) > _LIMIT_BYTES:
            fail(Exit.BAD_INPUT, f"{path} has more than {_LIMIT_BYTES} bytes; wanted the output of one test")
        texts.append(content.decode(errors="replace"))
    return "\n".join(texts)


def _report(run: Run, wanted: Expectation, verdict: Verdict) -> dict[str, object]:
    return {
        "verdict": Exit(verdict.exit_code).name.lower(),
        "busbw_gb_s": _number(verdict.busbw),
        "size_bytes": verdict.size,
        "expectation": asdict(wanted),
        "findings": [asdict(finding) for finding in verdict.findings],
        "nccl": {
            "version": run.log.version,
            "networks": sorted(run.log.networks),
            "nvls_channels": sorted(run.log.nvls_channels),
            "algorithms": {str(size): sorted(names) for size, names in sorted(run.log.algorithms.items())},
            "hcas": sorted(run.log.hcas),
            "overrides": dict(sorted(run.log.overrides.items())),
        },
        "devices": [asdict(device) for device in run.devices],
        "rows": [
            asdict(row) | {"out_of_place": _number(row.out_of_place), "in_place": _number(row.in_place)}
            for row in run.rows
        ],
    }


def _number(value: float | None) -> float | None:
    """JSON has neither nan nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def _print(run: Run, wanted: Expectation, verdict: Verdict) -> None:
    rate = "nothing to judge" if verdict.busbw is None else f"{verdict.busbw:.1f} GB/s at {verdict.size} bytes"
    floor = "no floor" if wanted.floor is None else f"floor {wanted.floor:g}"
    network = f", {', '.join(sorted(run.log.networks))}" if wanted.nodes > 1 and run.log.networks else ""
    place = f"{wanted.ranks} GPUs on {', '.join(run.hosts) or f'{wanted.nodes} node(s)'}"
    typer.echo(f"all_reduce over {place}: {rate} ({floor}), NCCL {run.log.version or '?'}{network}")
    if verdict.findings:
        print_table(
            ["", "finding", "seen", "wanted", "cause", "do"],
            [[one.weight, one.id, one.seen, one.wanted, one.cause, one.action] for one in verdict.findings],
            folded=["seen", "wanted", "cause", "do"],
        )
    else:
        typer.echo("It holds.")
