"""`coderack probe`: does every data-parallel rank of a served model still give tokens?"""

import ipaddress
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, print_table

if TYPE_CHECKING:
    from coderack.liveness.tokens import Round
    from coderack.liveness.tokens_ask import Target

app = typer.Typer(
    help="Ask every data-parallel rank of a served model for one token.\n\n"
    "Exit codes: 0 every rank gave one, 1 a rank failed, 2 bad input, 3 could not find out.",
    no_args_is_help=True,
)

# No one-token answer that takes longer says that a model is served.
_LONGEST_S = 600
_MOST_RANKS = 1024
_KEY_BYTES = 4096
_KEY_NAME = "VLLM_API_KEY="

UrlOption = Annotated[str, typer.Option("--url", metavar="URL", help="The API server, such as http://10.77.0.10:8000.")]
ModelOption = Annotated[str, typer.Option("--model", metavar="NAME", help="Served model name.")]
RanksOption = Annotated[
    int, typer.Option("--ranks", metavar="N", min=1, max=_MOST_RANKS, help="Data-parallel ranks behind the server.")
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="vLLM's API key, or its environment file; others must not be able to read it.",
    ),
]


@app.command()
def once(
    url: UrlOption,
    model: ModelOption,
    ranks: RanksOption,
    api_key_file: KeyOption = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=_LONGEST_S, help="For one token.")
    ] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Ask each rank once.

    A rank that gives no token in time while its engine works on other requests is "busy", which leaves open whether it
    would: 3. So do a closed port and a refused key.

    Example: coderack probe once --url http://10.77.0.10:8000 --model qwen3-coder-480b --ranks 8
    """
    import asyncio  # noqa: PLC0415

    from coderack.liveness import tokens_report as report  # noqa: PLC0415
    from coderack.liveness.tokens import State  # noqa: PLC0415
    from coderack.liveness.tokens_ask import Prober  # noqa: PLC0415

    target = _target(url, model, ranks, api_key_file, timeout_s)

    async def ask() -> "Round":
        async with Prober(target) as prober:
            return await prober.round()

    done = asyncio.run(ask())
    verdict = report.verdict(done)
    if as_json:
        print_json(report.ONCE_SCHEMA, report.once(done, url=url, model=model))
    else:
        print_table(
            ["rank", "outcome", "seconds", "error"],
            [
                [str(a.rank), a.outcome.value, "-" if a.seconds is None else f"{a.seconds:.3f}", a.error]
                for a in done.answers
            ],
            folded=["error"],
        )
        typer.echo(f"{url}: {verdict.value}")
    raise typer.Exit({State.UP: Exit.HOLDS, State.DOWN: Exit.DOES_NOT_HOLD}.get(verdict, Exit.UNKNOWN))


@app.command()
def watch(
    url: UrlOption,
    model: ModelOption,
    ranks: RanksOption,
    api_key_file: KeyOption = None,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.01, max=3600, help="Between the starts of rounds.")
    ] = 3.0,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.01, max=_LONGEST_S, help="For one token.")
    ] = 3.0,
    failures: Annotated[
        int, typer.Option("--failures", metavar="N", min=1, max=1000, help="So many in a row, and a rank is down.")
    ] = 3,
    start_limit_s: Annotated[
        float,
        typer.Option("--start-limit", metavar="SECONDS", min=1, help="A port that stays shut for longer is a failure."),
    ] = 2700.0,
    unit: Annotated[
        str | None,
        typer.Option("--unit", metavar="UNIT", help="The server's systemd unit, which tells a start from a crash."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="JSON document, rewritten after every round.")
    ] = None,
    textfile: Annotated[
        Path | None, typer.Option("--textfile", metavar="FILE", help="Metrics for node_exporter's textfile collector.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="ADDR:PORT", help="Answer HTTP there: 200 while up, else 503, and the JSON."),
    ] = None,
) -> None:
    """Ask again and again, and tell the state in a JSON file, as metrics, to systemd and over HTTP, until SIGTERM.

    States: up, degraded (some ranks are down), down, starting (the port is yet to open), unknown, stopped.

    Example: coderack probe watch --url http://10.77.0.10:8000 --model qwen3-coder-480b --ranks 8
    --out /run/coderack/probe.json
    """
    import asyncio  # noqa: PLC0415
    import logging  # noqa: PLC0415

    from coderack.liveness.tokens import Limits  # noqa: PLC0415
    from coderack.liveness.tokens_watch import Watch, run  # noqa: PLC0415

    target = _target(url, model, ranks, api_key_file, timeout_s)
    for option, path in (("--out", out), ("--textfile", textfile)):
        if path is not None and path.exists() and not path.is_file():
            fail(
                Exit.BAD_INPUT, f"{option} is {path}, which is no regular file; wanted one, such as /run/coderack/probe"
            )
    if unit is not None and (not unit.isascii() or not unit.isprintable() or unit[:1] in ("-", "") or "/" in unit):
        fail(Exit.BAD_INPUT, f"--unit is {unit!r}, wanted the name of a unit such as vllm.service")
    logging.basicConfig(format="coderack: %(message)s", level=logging.WARNING)
    logging.getLogger("coderack").setLevel(logging.INFO)
    asyncio.run(
        run(
            Watch(
                target,
                Limits(failures, start_limit_s),
                interval_s=interval_s,
                out=out,
                textfile=textfile,
                listen=None if listen is None else _address(listen),
                unit=unit,
            )
        )
    )


def _target(url: str, model: str, ranks: int, api_key_file: Path | None, timeout_s: float) -> "Target":
    from coderack.liveness.tokens_ask import Target  # noqa: PLC0415

    try:
        # The shell passes any bytes; what is not UTF-8 cannot be sent.
        model.encode("utf-8")
    except UnicodeEncodeError:
        fail(Exit.BAD_INPUT, f"--model is {model!r}, wanted UTF-8 text")
    if not model.strip():
        fail(Exit.BAD_INPUT, "--model is empty, wanted the served model name")
    try:
        return Target(url, model, ranks, _api_key(api_key_file), timeout_s)
    except ValueError as error:
        fail(Exit.BAD_INPUT, f"--url: {error}")


def _api_key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            fail(Exit.BAD_INPUT, f"--api-key-file {path} is no regular file, wanted a file that holds the API key")
        with path.open("rb") as file:
            text = file.read(_KEY_BYTES + 1).decode("ascii")
    except (OSError, ValueError) as error:
        fail(Exit.BAD_INPUT, f"--api-key-file {path} cannot be read ({error}); wanted a file that holds the API key")
    # The group may read: systemd hands credentials over that way where it must.
    if mode & 0o027:
        seen = f"{stat.S_IMODE(mode):04o}"
        fail(Exit.BAD_INPUT, f"--api-key-file {path} has mode {seen}, wanted 0600 or 0640: `chmod 0600 {path}`")
    key = _key_in(text)
    if key is not None and (not key or len(text) > _KEY_BYTES or not key.isprintable() or " " in key):
        fail(
            Exit.BAD_INPUT,
            f"--api-key-file {path}: wanted one key, alone and without blanks, or a line {_KEY_NAME}<key>",
        )
    return key


def _key_in(text: str) -> str | None:
    """A file that holds the key alone, or vLLM's environment file, which names no key where vLLM wants none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("#")]
    if lines and not told:
        return None
    named = [line.removeprefix(_KEY_NAME).strip('"') for line in told if line.startswith(_KEY_NAME)]
    return named[-1] if named else "\n".join(told)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
    except ValueError:
        number = 0
    if not 0 < number < 65536 or not port.isdecimal():
        fail(Exit.BAD_INPUT, f"--listen is {text!r}, wanted a numeric address and a port, such as 10.77.0.10:9102")
    return str(address), number
