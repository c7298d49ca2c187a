"""Runs probes, each in a child process of its own, until a deadline.

The parent never touches a driver. A child that hangs is left alone: it may sit in the kernel where no signal reaches
it, killing a process inside a driver call has frozen GPUs (dcgm-exporter #84), and probing again makes it worse. It is
remembered by process id and start time, and nothing of its name is started again while it lives. A child that can be
ended ends itself after HUNG_FOR seconds, so that a driver that came back is noticed.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coderack.health.readings import ANSWERED, CRASHED, HUNG, SKIPPED, Answer, Probe, from_json, to_json

HUNG_FOR = 600  # s
_MAX_OUTPUT = 8 << 20  # bytes; a whole GPU is about 30 kB

Step = Callable[[str], None]
Read = Callable[[Step], Mapping[str, Answer]]


@dataclass(frozen=True, slots=True)
class Hung:
    """A child that did not answer and may still live."""

    pid: int
    started: int  # clock ticks since boot, from /proc/PID/stat: a process id alone may be somebody else's by now
    since: float  # wall clock
    at: str

    def lives(self) -> bool:
        return _start_time(self.pid) == self.started


@dataclass
class _Child:
    name: str
    pid: int
    pipe: int
    begun: float
    buffer: bytearray = field(default_factory=bytearray)
    at: str = "start"
    probe: Probe | None = None


def run(
    probes: Mapping[str, Read], deadline: float, hung: Mapping[str, Hung], now: float
) -> tuple[dict[str, Probe], dict[str, Hung]]:
    """Run `probes` (name -> function) until the monotonic time `deadline`; `hung` are those of earlier passes.

    Returns how each ended, and the children that hang now. Takes no longer than the deadline, whatever they do.
    """
    done, still = _skip_hanging(probes, hung)
    # Collected once here, not in every child, where it would copy all pages.
    gc.collect()
    gc.freeze()
    try:
        children = {name: _start(name, read) for name, read in probes.items() if name not in done}
    finally:
        gc.unfreeze()
    _collect(children, deadline)
    for child in children.values():
        done[child.name] = child.probe or _overdue(child)
        if done[child.name].outcome == HUNG:
            still[child.name] = Hung(child.pid, _start_time(child.pid) or 0, now, child.at)
    return done, still


def _skip_hanging(probes: Mapping[str, Read], hung: Mapping[str, Hung]) -> tuple[dict[str, Probe], dict[str, Hung]]:
    still = {name: child for name, child in hung.items() if child.lives()}
    done = {
        name: Probe(name, SKIPPED, at=still[name].at, pid=still[name].pid, detail=str(int(still[name].since)))
        for name in probes
        if name in still
    }
    return done, still


def _start(name: str, read: Read) -> _Child:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(read, theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    return _Child(name, pid, ours, time.monotonic())


def _child(read: Read, pipe: int) -> None:
    """Never returns. Holds nothing of the parent: a caller must not wait for the end of our standard output."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(HUNG_FOR)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.closerange(3, pipe)
        os.closerange(pipe + 1, 1024)
        answers = read(lambda at: _send(pipe, {"at": at}))
        _send(pipe, {"answers": to_json(answers)})
        code = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            _send(pipe, {"failed": f"{type(error).__name__}: {error}"[:500]})
    finally:
        os._exit(code)


def _send(pipe: int, message: dict[str, Any]) -> None:
    data = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    while data:
        data = data[os.write(pipe, data) :]


def _collect(children: Mapping[str, _Child], deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        for child in children.values():
            selector.register(child.pipe, selectors.EVENT_READ, child)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                child = key.data
                if not _read_some(child):
                    selector.unregister(child.pipe)
                    _finish(child)
    for child in children.values():
        os.close(child.pipe)


def _read_some(child: _Child) -> bool:
    try:
        data = os.read(child.pipe, 1 << 16)
    except BlockingIOError:
        return True
    child.buffer += data
    *lines, rest = bytes(child.buffer).split(b"\n") if data.endswith(b"\n") or b"\n" in data else [bytes(child.buffer)]
    for line in lines:
        _take(child, line)
    child.buffer = bytearray(rest)
    return bool(data) and len(child.buffer) < _MAX_OUTPUT


def _take(child: _Child, line: bytes) -> None:
    try:
        message = json.loads(line)
    except ValueError:
        message = {"failed": "its answer cannot be read"}
    seconds = time.monotonic() - child.begun
    if "at" in message:
        child.at = str(message["at"])
    elif "answers" in message:
        child.probe = Probe(
            child.name, ANSWERED, from_json(message["answers"]), at=child.at, seconds=seconds, pid=child.pid
        )
    else:
        detail = str(message.get("failed", ""))
        child.probe = Probe(child.name, CRASHED, at=child.at, detail=detail, seconds=seconds, pid=child.pid)


def _finish(child: _Child) -> None:
    """Its pipe is closed: it ended, or is about to."""
    detail = "ended without an answer"
    for _ in range(100):
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            if os.WIFSIGNALED(status):
                detail = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            break
        time.sleep(0.001)
    if child.probe is None:
        seconds = time.monotonic() - child.begun
        child.probe = Probe(child.name, CRASHED, at=child.at, detail=detail, seconds=seconds, pid=child.pid)


def _overdue(child: _Child) -> Probe:
    return Probe(child.name, HUNG, at=child.at, seconds=time.monotonic() - child.begun, pid=child.pid)


def _start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when the process is gone or only waits to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
