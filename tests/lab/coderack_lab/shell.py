"""Starting other programs: with a log, with a deadline, and never outliving the lab command that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from coderack_lab.errors import Interrupted, LabError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_TAIL_LINES = 15


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal when the parent goes (also by SIGKILL). Runs in the child, before exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it went before the request was made
        os._exit(1)


class CommandFailed(LabError):
    """A program ended with an error. Carries the end of its output and where the whole of it lies."""

    def __init__(self, command: Sequence[str], code: int, log: Path | None, tail: str) -> None:
        self.command, self.code, self.log, self.tail = list(command), code, log, tail
        where = f"; whole output: {log}" if log else ""
        super().__init__(f"{' '.join(command[:6])} ended with exit code {code}{where}\n{tail}")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"    | {line}" for line in lines[-_TAIL_LINES:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a program and everything in its process group; SIGKILL what is still there after ten seconds."""
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()  # takes a leader's exit, so that it no longer counts as part of the group
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return


def run(
    command: Sequence[str],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    check: bool = True,
    cgroup: Callable[[], None] | None = None,
) -> int:
    """Run a program to its end, its output appended to `log` (or thrown away).

    Raises CommandFailed on a non-zero exit (unless `check` is false) or when `timeout` seconds have passed, and
    Interrupted, after the program was stopped, when this process is told to stop.
    """

    parent = os.getpid()

    def in_child() -> None:
        die_with_parent(parent)
        if cgroup:
            cgroup()

    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
    with (log or Path(os.devnull)).open("ab") as sink:
        sink.write(f"$ {' '.join(command)}\n".encode())
        sink.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=in_child,  # noqa: PLW1509  only async-signal-safe calls: prctl and a write
        )
        deadline = time.monotonic() + timeout if timeout else None
        try:
            while process.poll() is None:
                if deadline and time.monotonic() > deadline:
                    _stop(process)
                    raise CommandFailed(command, 124, log, f"    | no end after {timeout:.0f} s")
                time.sleep(0.05)
        except (KeyboardInterrupt, Interrupted):
            _stop(process)
            raise
    if check and process.returncode != 0:
        raise CommandFailed(command, process.returncode, log, _tail(log) if log else "")
    return process.returncode


def output(command: Sequence[str], *, timeout: float = 30.0, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a short program. Raises CommandFailed with its standard error."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env} if env else None,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(command, 124, None, f"    | no end after {timeout:.0f} s") from error
    if done.returncode != 0:
        raise CommandFailed(command, done.returncode, None, done.stderr.strip())
    return done.stdout


def succeeds(command: Sequence[str], *, timeout: float = 30.0) -> bool:
    """Whether a short program ends with 0 in time."""
    try:
        output(command, timeout=timeout)
    except CommandFailed:
        return False
    return True


def stop_on_signals() -> None:
    """Turn SIGTERM and SIGHUP into the same exception as Ctrl-C, so that every `finally` runs."""

    def interrupt(number: int, _frame: object) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, interrupt)
