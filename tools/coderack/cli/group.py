"""`coderack group`: the nodes of a fused group as one, seen and steered from any of them."""

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, print_table
from coderack.spec.checked import SpecError

if TYPE_CHECKING:
    from coderack.liveness.group.config import GroupConfig

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="The nodes of a fused group start and stop as one.\n\nRun it on a node of the group, as root.",
)

ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE", envvar="CODERACK_GROUP_CONFIG", help="Written by role vllm_group.")
]
WaitOption = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait for it to be so; 0 only gives the order.")
]
CONFIG = Path("/etc/coderack/group.json")
_ASK_S = 5.0
_EXIT = {"running": Exit.HOLDS, "not-running": Exit.DOES_NOT_HOLD, "unknown": Exit.UNKNOWN}


def _load(path: Path, *, with_secret: bool = True) -> "tuple[GroupConfig, bytes]":
    from coderack.liveness.group import config  # noqa: PLC0415

    try:
        loaded = config.load(path)
        return loaded, config.secret(loaded.secret_file) if with_secret else b""
    except SpecError as error:
        fail(Exit.BAD_INPUT, error)


@app.command()
def agent(
    config: ConfigOption = CONFIG,
    check: Annotated[bool, typer.Option("--check", help="Only check the configuration, without the secret.")] = False,
) -> None:
    """Run this node's agent, as coderack-group.service does. Ending it leaves the engine alone.

    Example: coderack group agent --config /etc/coderack/group.json
    """
    if check:
        _load(config, with_secret=False)
        return
    from coderack.fleet.files import Locked  # noqa: PLC0415
    from coderack.liveness.group.agent import Agent  # noqa: PLC0415

    loaded, secret = _load(config)

    async def run() -> None:
        task = asyncio.ensure_future(Agent(loaded, secret, typer.echo).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        asyncio.run(run())
    except Locked:
        fail(Exit.DOES_NOT_HOLD, f"another agent runs on {loaded.state_dir}; wanted one on each node")
    except OSError as error:
        fail(Exit.UNKNOWN, f"the agent cannot run: {error}")


@app.command()
def status(config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Whether the group runs as one, why it last restarted, and how many restarts are left.

    Exit code 0: every engine runs for the same epoch and answers. 1: not so. 3: the head or the probe does not say.

    Example: coderack group status --json
    """
    from coderack.liveness.group.status import SCHEMA  # noqa: PLC0415

    loaded, secret = _load(config)
    seen = _ask(loaded, secret, "/status", {})
    body = {key: value for key, value in seen.items() if key not in ("challenge", "taken")}
    if as_json:
        print_json(SCHEMA, body)
    else:
        _print(body)
    raise typer.Exit(_EXIT.get(str(body.get("verdict")), Exit.UNKNOWN))


@app.command()
def start(config: ConfigOption = CONFIG, wait: WaitOption = 0, as_json: JsonOption = False) -> None:
    """Start a group that an operator has stopped; no longer wait for the pause after a failure.

    Example: coderack group start --wait 2700
    """
    _command(config, "start", wait, as_json)


@app.command()
def stop(config: ConfigOption = CONFIG, wait: WaitOption = 0, as_json: JsonOption = False) -> None:
    """Stop every engine, the head's first, and keep them stopped, over reboots too.

    Example: coderack group stop --wait 300
    """
    _command(config, "stop", wait, as_json)


@app.command()
def restart(config: ConfigOption = CONFIG, wait: WaitOption = 0, as_json: JsonOption = False) -> None:
    """Stop every engine, then start all. Does not count as a failure.

    Example: coderack group restart --wait 2700
    """
    _command(config, "restart", wait, as_json)


@app.command()
def resume(config: ConfigOption = CONFIG, wait: WaitOption = 0, as_json: JsonOption = False) -> None:
    """Let a group that has given up try again, with a full budget of restarts.

    Example: coderack group resume --wait 2700
    """
    _command(config, "resume", wait, as_json)


def _command(path: Path, verb: str, wait: float, as_json: bool) -> None:
    loaded, secret = _load(path)
    challenge = _ask(loaded, secret, "/status", {}).get("challenge")
    answer = _ask(loaded, secret, "/command", {"verb": verb, "challenge": challenge})
    done = bool(answer.get("done"))
    state = str(answer.get("state", "unknown"))
    text = str(answer.get("text", "the head took no command"))
    wanted = "stopped" if verb == "stop" else "running"
    reached = state == wanted and not answer.get("changed")
    if done and wait > 0:
        reached, state = _wait(loaded, secret, wanted, wait)
    if as_json:
        body = {"verb": verb, "done": done, "changed": bool(answer.get("changed")), "text": text, "state": state}
        print_json("coderack.group-command/1", body)
    else:
        typer.echo(f"{text}; the group is {state}")
    raise typer.Exit(Exit.HOLDS if done and (reached or not wait) else Exit.DOES_NOT_HOLD)


def _wait(loaded: "GroupConfig", secret: bytes, wanted: str, seconds: float) -> tuple[bool, str]:
    end = time.monotonic() + seconds
    while True:
        time.sleep(min(loaded.timing.poll, max(0.0, end - time.monotonic())))
        state = str(_ask(loaded, secret, "/status", {}).get("state"))
        if state in (wanted, "given_up") or time.monotonic() >= end:
            return state == wanted, state


def _ask(loaded: "GroupConfig", secret: bytes, path: str, body: dict[str, Any]) -> dict[str, Any]:
    from coderack.liveness.group import wire  # noqa: PLC0415

    try:
        return asyncio.run(wire.ask(loaded.head.address, loaded.port, path, body, secret, _ASK_S))
    except (wire.NotReached, wire.NotTrusted) as error:
        _unknown(loaded, str(error))


def _unknown(loaded: "GroupConfig", why: str) -> NoReturn:
    from coderack.liveness.group.agent import own_notes  # noqa: PLC0415

    notes = own_notes(loaded.state_dir)
    known = f"; this node's last epoch is {notes.seen}" if notes else ""
    fail(
        Exit.UNKNOWN,
        f"the head {loaded.head.name} does not say ({why}){known}. Look at `systemctl status coderack-group` there",
    )


def _print(body: dict[str, Any]) -> None:
    last, budget, probe = body.get("last_restart"), body["budget"], body["probe"]
    typer.echo(
        f"group {body['group']} is {body['state']} for {body['for_seconds']:.0f} s, epoch {body['epoch']}, "
        f"token probe: {probe['state']}{' (' + probe['why'] + ')' if probe['why'] else ''}"
    )
    if body["pause_seconds"]:
        typer.echo(f"next start in {body['pause_seconds']:.0f} s")
    if last:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last["time"]))
        typer.echo(f"last stop {when}: {last['reason']}: {last['text']}")
    typer.echo(f"restarts left: {budget['left']} of {budget['restarts']} in {budget['window_seconds']:.0f} s")
    print_table(
        ["member", "up", "unit", "epoch", "heard", ""],
        [
            [
                member["name"] + (" (head)" if member["name"] == body["head"] else ""),
                "yes" if member["up"] else "no",
                member["unit"] or "?",
                str(member["epoch"]) if member["epoch"] is not None else "?",
                "never" if member["heard_seconds"] is None else f"{member['heard_seconds']:.0f} s ago",
                member["note"],
            ]
            for member in body["members"]
        ],
        folded=[""],
    )
