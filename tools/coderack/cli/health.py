"""`coderack health`: is this node, is this group of nodes, fit to serve?"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json
from coderack.spec.checked import SpecError

if TYPE_CHECKING:
    from coderack.health.cluster import Answered
    from coderack.health.findings import Finding
    from coderack.health.node import Pass, Settings

# The room is imported by the verbs, not here: every verb of `coderack` would pay for it.
app = typer.Typer(
    help="Find out whether GPU nodes are fit to serve, what is wrong, and what to do.\n\n"
    "Exit codes: 0 healthy, 1 unhealthy (a critical finding or a warning), 2 bad input, 3 could not find out.",
    no_args_is_help=True,
)

CONFIG = "/etc/coderack/health.yml"

ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile", metavar="NAME|FILE", envvar="CODERACK_HEALTH_PROFILE",
        help="What a healthy node shows: h100-sxm, h200-sxm, h100-pcie, h200-vm, none, or a file that builds on one.",
    ),
]  # fmt: skip
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value of the profile, e.g. network.kind=efa. Repeatable."
    ),
]
SysfsOption = Annotated[Path, typer.Option("--sysfs-root", metavar="DIR", help="Where sysfs is mounted.")]
ProcOption = Annotated[Path, typer.Option("--proc-root", metavar="DIR", help="Where proc is mounted.")]
KmsgOption = Annotated[
    Path, typer.Option("--kmsg", metavar="FILE", help="Kernel log: /dev/kmsg or a file of its records.")
]
StateOption = Annotated[Path, typer.Option("--state-dir", metavar="DIR", help="Where the history is kept.")]
DeadlineOption = Annotated[
    float, typer.Option("--deadline", metavar="SECONDS", min=1, help="A pass ends by then, whatever hangs.")
]
NcclOption = Annotated[
    list[Path] | None,
    typer.Option("--nccl-in", metavar="DIR", help="A site-packages whose NCCL version is reported. Repeatable."),
]

_SYS, _PROC, _KMSG, _STATE = Path("/sys"), Path("/proc"), Path("/dev/kmsg"), Path("/var/lib/coderack/health")
_NCCL_IN = "/opt/vllm/blue/lib"


def _settings(
    profile: str, settings: list[str] | None, sysfs: Path, proc: Path, kmsg: Path, state_dir: Path, deadline: float,
    nccl_in: list[Path] | None,
) -> "Settings":  # fmt: skip
    from coderack.health import expectations  # noqa: PLC0415
    from coderack.health.node import Settings  # noqa: PLC0415

    if profile == CONFIG and not Path(CONFIG).exists():
        fail(
            Exit.BAD_INPUT,
            f"{CONFIG} is not there; wanted: the GPU profile of this node. Let the role gpu_health write it, or give "
            f"--profile NAME (one of {', '.join(expectations.names())})",
        )
    try:
        wanted = expectations.load(profile, settings or ())
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)
    found = nccl_in if nccl_in is not None else sorted(Path(_NCCL_IN).glob("python3*/site-packages"))
    return Settings(wanted, sysfs, proc, kmsg, state_dir, tuple(found), deadline)


@app.command()
def node(
    profile: ProfileOption = CONFIG,
    settings: SetOption = None,
    textfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write metrics for node_exporter's textfile collector.")
    ] = None,
    acknowledge: Annotated[
        str | None,
        typer.Option(metavar="ID", help="First forget kernel log events of this id (xid-79, gpu-off-bus, all)."),
    ] = None,
    sysfs_root: SysfsOption = _SYS,
    proc_root: ProcOption = _PROC,
    kmsg: KmsgOption = _KMSG,
    state_dir: StateOption = _STATE,
    nccl_in: NcclOption = None,
    deadline: DeadlineOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Check this node.

    Example: coderack health node --profile h100-sxm --set network.kind=infiniband --set network.count=8
    """
    from coderack.health import metrics, report  # noqa: PLC0415
    from coderack.health import node as room  # noqa: PLC0415

    where = _settings(profile, settings, sysfs_root, proc_root, kmsg, state_dir, deadline, nccl_in)
    if acknowledge is not None:
        try:
            forgotten = room.acknowledge(where, acknowledge)
        except OSError as error:
            fail(Exit.UNKNOWN, f"{acknowledge} not acknowledged: {error.strerror or error}")
        typer.echo(f"coderack: {forgotten} kinds of kernel log events forgotten", err=True)
    done = room.examine(where)
    if as_json:
        print_json(report.SCHEMA, done.report.as_json())
    else:
        _print_node(done)
    if textfile is not None:
        try:
            metrics.write(textfile, metrics.render(done))
        except OSError as error:
            fail(Exit.UNKNOWN, f"metrics not written to {textfile}: {error.strerror or error}")
    raise typer.Exit(done.report.exit_code)


@app.command()
def gate(
    profile: ProfileOption = CONFIG,
    settings: SetOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings close the gate, too.")] = False,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Look again for so long while something is only unknown: links train."
        ),
    ] = 0.0,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Between two looks.")] = 10.0,
    sysfs_root: SysfsOption = _SYS,
    proc_root: ProcOption = _PROC,
    kmsg: KmsgOption = _KMSG,
    state_dir: StateOption = _STATE,
    deadline: DeadlineOption = 20.0,
) -> None:
    """Let a service start, or name the reason why not. For ExecStartPre= and units that others require.

    Critical findings close the gate with 1, unknown ones with 3. Warnings are printed and let pass.

    Example: ExecStart=coderack health gate --wait 600
    """
    from coderack.health import node as room  # noqa: PLC0415
    from coderack.health.findings import Severity  # noqa: PLC0415

    where = _settings(profile, settings, sysfs_root, proc_root, kmsg, state_dir, deadline, [])
    closing = {Severity.CRITICAL, *([Severity.WARNING] if strict else [])}
    until = time.monotonic() + wait
    while True:
        done = room.examine(where)
        severities = {finding.severity for finding in done.report.findings}
        shut, unknown = bool(severities & closing), Severity.UNKNOWN in severities
        if shut or not unknown or time.monotonic() + every > until:
            break
        time.sleep(every)
    for finding in done.report.findings:
        if finding.severity != Severity.INFO:
            typer.echo(
                f"{finding.severity.value}: {finding.subject}: {finding.seen}; wanted: "
                f"{finding.wanted}. {finding.remedy}"
            )
    code = Exit.DOES_NOT_HOLD if shut else Exit.UNKNOWN if unknown else Exit.HOLDS
    reason = "" if code is Exit.HOLDS else _reason(done, closing | {Severity.UNKNOWN})
    # Last, so that it is what `systemctl status` shows.
    typer.echo(f"gate {'open' if code is Exit.HOLDS else 'CLOSED'}: {where.profile.name}{reason}")
    raise typer.Exit(code)


def _reason(done: "Pass", closing: object) -> str:
    worst = [one for one in done.report.findings if one.severity in closing]  # type: ignore[operator]
    more = f" and {len(worst) - 1} more" if len(worst) > 1 else ""
    return f": {worst[0].id}: {worst[0].subject}: {worst[0].seen}{more}; next: {worst[0].runbook}"


@app.command()
def watch(
    profile: ProfileOption = CONFIG,
    settings: SetOption = None,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Between two passes.")] = 5.0,
    passes: Annotated[int, typer.Option(metavar="N", min=0, help="End after so many; 0 for never.")] = 0,
    sysfs_root: SysfsOption = _SYS,
    proc_root: ProcOption = _PROC,
    kmsg: KmsgOption = _KMSG,
    state_dir: StateOption = _STATE,
    deadline: DeadlineOption = 20.0,
) -> None:
    """Show this node's health again and again. Ends with the last verdict's exit code.

    Example: coderack health watch --every 2
    """
    import sys  # noqa: PLC0415

    from coderack.health import node as room  # noqa: PLC0415

    where = _settings(profile, settings, sysfs_root, proc_root, kmsg, state_dir, deadline, [])
    done = None
    number = 0
    try:
        while not passes or number < passes:
            if number:
                time.sleep(every)
            done = room.examine(where)
            if sys.stdout.isatty():
                typer.echo("\033[H\033[J", nl=False)
            _print_node(done)
            number += 1
    except KeyboardInterrupt:
        pass
    raise typer.Exit(done.report.exit_code if done else Exit.UNKNOWN)


@app.command()
def cluster(
    env: Annotated[str, typer.Option("--env", metavar="ENV", help="Environment: a directory of the inventories.")],
    inventories: Annotated[
        Path,
        typer.Option("--inventories", metavar="DIR", envvar="CODERACK_INVENTORIES", help="Where environments lie."),
    ] = Path("inventories"),
    ssh: Annotated[
        str | None,
        typer.Option(
            "--ssh", metavar="WORDS", help="Instead of ssh as Ansible calls it; {name} and {address} are filled in."
        ),
    ] = None,
    command: Annotated[
        str, typer.Option("--command", metavar="WORDS", help="What to run on each node; {name} is filled in.")
    ] = "sudo -n coderack health node --json",
    seconds: Annotated[float, typer.Option("--seconds", metavar="SECONDS", min=1, help="For each node.")] = 30.0,
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1, help="So many nodes at once.")] = 32,
    as_json: JsonOption = False,
) -> None:
    """Check all GPU nodes at once over SSH, and compare them with each other.

    Example: coderack health cluster --env aws
    """
    from coderack.clients import ssh as client  # noqa: PLC0415
    from coderack.fleet import inventory  # noqa: PLC0415
    from coderack.health import cluster as room  # noqa: PLC0415

    try:
        hosts = inventory.hosts_file(inventories, env)
        nodes = inventory.read(hosts).gpu_nodes
        if ssh is None:
            user, arguments = client.of_environment(hosts.parent)
            commands = {n.name: client.words(n.address, user, arguments, command.format(name=n.name)) for n in nodes}
        else:
            commands = {n.name: client.through(ssh, n.name, n.address, command.format(name=n.name)) for n in nodes}
    except (SpecError, client.NoConnection) as error:
        fail(Exit.BAD_INPUT, error)
    except (KeyError, IndexError, ValueError) as error:
        fail(
            Exit.BAD_INPUT,
            f"--ssh or --command: {error}; only {{name}} and {{address}} are filled in, write {{{{ for a brace",
        )
    except (inventory.NoInventory, OSError) as error:
        fail(Exit.UNKNOWN, error)
    begun = time.monotonic()
    answers = room.ask(commands, seconds, parallel)
    _report_cluster(env, answers, time.monotonic() - begun, as_json)


def _report_cluster(env: str, answers: "list[Answered]", seconds: float, as_json: bool) -> None:
    from coderack.health import cluster as room  # noqa: PLC0415
    from coderack.health.report import Report, verdict  # noqa: PLC0415

    between = room.between(answers)
    reports: list[Report] = [answer.report for answer in answers if answer.report is not None]
    every = [*between, *(finding for report in reports for finding in report.findings)]
    outcome = verdict(every)
    if as_json:
        body = {
            "env": env, "verdict": outcome, "seconds": round(seconds, 3),
            "nodes": [report.as_json() for report in reports],
            "findings": [finding.as_json() for finding in between],
        }  # fmt: skip
        print_json(room.CLUSTER_SCHEMA, body)
    else:
        rows = [(report.node, finding) for report in reports for finding in report.findings]
        _print_findings([("-", finding) for finding in between] + rows, with_node=True)
        for answer in answers:
            state = answer.report.verdict if answer.report else "no answer"
            typer.echo(f"{answer.name}: {state}")
        typer.echo(f"{env}: {outcome}, {len(answers)} nodes in {seconds:.1f} s")
    raise typer.Exit({"healthy": 0, "unhealthy": 1}.get(outcome, 3))


@app.command("profile")
def effective_profile(
    profile: ProfileOption = CONFIG,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a healthy node shows by this profile, every key and limit; 2 when it does not hold together.

    Example: coderack health profile --profile h100-sxm --set gpus.count=4
    """
    from coderack.health import expectations  # noqa: PLC0415

    try:
        wanted = expectations.load(profile, settings or ())
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)
    body = wanted.model_dump(mode="json")
    if as_json:
        print_json("coderack.health-profile/1", body)
        return
    import yaml  # noqa: PLC0415

    typer.echo(yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=120).rstrip())


@app.command()
def explain(
    what: Annotated[str, typer.Argument(metavar="XID|FINDING", help="xid-79, sxid-20034, 79, or a finding's id.")],
    as_json: JsonOption = False,
) -> None:
    """What a finding or an Xid means for serving, what to do, and where that is known from.

    Example: coderack health explain nvlink-down
    """
    from coderack.health.explain import explain as look_up  # noqa: PLC0415
    from coderack.health.explain import near  # noqa: PLC0415

    found = look_up(what)
    if found is None:
        fail(Exit.BAD_INPUT, f"{what} is no finding, Xid or SXid; near it: {', '.join(near(what)) or 'nothing'}")
    if as_json:
        print_json("coderack.health-explain/1", found)
        return
    for key, text in found.items():
        typer.echo(f"{key:9} {text}")


def _print_node(done: "Pass") -> None:
    report = done.report
    _print_findings([(report.node, finding) for finding in report.findings], with_node=False)
    answered = sum(1 for probe in report.probes if probe.complete)
    asked = sum(1 for probe in report.probes if probe.complete or probe.pid)
    typer.echo(
        f"{report.node}: {report.verdict} by profile {report.profile}; {len(report.findings)} findings, "
        f"{answered} of {asked} probes answered, {report.seconds:.2f} s"
    )


def _print_findings(rows: "list[tuple[str, Finding]]", with_node: bool) -> None:
    import sys  # noqa: PLC0415

    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in (*(["node"] if with_node else []), "severity", "finding", "about", "seen", "wanted", "action"):
        table.add_column(heading, overflow="fold")
    for name, finding in rows:
        cells = [
            finding.severity.value,
            finding.id,
            str(finding.subject),
            finding.seen,
            finding.wanted,
            finding.action.value,
        ]
        # Text: kernel log lines have brackets, which rich would take for its markup.
        table.add_row(*(Text(cell) for cell in ([name, *cells] if with_node else cells)))
    # A pipe has no width, and the default of 80 columns would fold what a script looks for.
    Console(width=None if sys.stdout.isatty() else 240).print(table)
