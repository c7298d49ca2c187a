"""The token probe as a service: round after round, told in files, to systemd and over HTTP, until SIGTERM."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from coderack.clients import textfile
from coderack.liveness import tokens_report as report
from coderack.liveness.tokens import Limits, Start, State, Status, after, first_status
from coderack.liveness.tokens_ask import Prober, Target

_LOG = logging.getLogger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SYSTEMCTL_S = 2.0
# A health check sends a few hundred bytes, and is there in an instant.
_REQUEST_BYTES = 8 * 1024
_CLIENT_S = 2.0
_CLIENTS = 32
_LISTEN_AGAIN_S = 5.0
# Even a round that meets a hanging server has long ended by then.
_STALE_ROUNDS = 4


@dataclass(frozen=True)
class Watch:
    """interval_s: from the start of a round to the start of the next. unit: the server's, asked while the port is shut.

    out, textfile: where the document and the metrics go. listen: address and port of the HTTP face.
    """

    target: Target
    limits: Limits
    interval_s: float = 3.0
    out: Path | None = None
    textfile: Path | None = None
    listen: tuple[str, int] | None = None
    unit: str | None = None

    @property
    def stale_after_s(self) -> float:
        return _STALE_ROUNDS * max(self.interval_s, 1.5 * self.target.timeout_s)


async def run(watch: Watch, *, clock: Callable[[], float] = time.time) -> None:
    """Until SIGTERM or SIGINT; no fault of the server, of a file or of the HTTP face ends it."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    teller = _Teller(watch, clock)
    face = asyncio.create_task(_serve(watch.listen, teller)) if watch.listen else None
    async with Prober(watch.target) as prober:
        teller.tell(teller.status)
        notify("READY=1")
        await _rounds(watch, prober, teller, stop)
    notify("STOPPING=1")
    if face is not None:
        face.cancel()
        await asyncio.gather(face, return_exceptions=True)
    teller.tell(replace(teller.status, state=State.STOPPED, since=time.monotonic()))


async def _rounds(watch: Watch, prober: Prober, teller: "_Teller", stop: asyncio.Event) -> None:
    stopping = asyncio.create_task(stop.wait())
    while not stop.is_set():
        begun = time.monotonic()
        one = asyncio.create_task(_round(watch, prober, teller))
        await asyncio.wait({one, stopping}, return_when=asyncio.FIRST_COMPLETED)
        one.cancel()
        for error in await asyncio.gather(one, return_exceptions=True):
            if isinstance(error, Exception):
                # Nothing was told, so readers see that it gets old. The next round may well succeed.
                _LOG.error("a round failed: %r", error)
        notify("WATCHDOG=1")
        rest = max(0.05 * watch.interval_s, begun + watch.interval_s - time.monotonic())
        await asyncio.wait({stopping}, timeout=rest)
    stopping.cancel()


async def _round(watch: Watch, prober: Prober, teller: "_Teller") -> None:
    start = await look_at_unit(watch.unit) if watch.unit and not teller.status.listening else None
    teller.tell(after(teller.status, await prober.round(start), watch.limits))


class _Teller:
    """Tells a status to everybody, and logs what changed. A file that cannot be written keeps nobody else waiting."""

    def __init__(self, watch: Watch, clock: Callable[[], float]) -> None:
        self._watch = watch
        self._clock = clock
        self._boot_id = _boot_id()
        self._failing: set[Path] = set()
        self.status = first_status(watch.target.ranks, time.monotonic())

    def tell(self, status: Status) -> None:
        # The first failure often says more than those after it: the server that named the fault has gone by then.
        failures = {rank.consecutive_failures for rank in status.ranks}
        news = not failures.isdisjoint({1, self._watch.limits.failures}) and status.state is not State.STARTING
        if status.state is not self.status.state or news:
            level = logging.INFO if status.state in (State.UP, State.STOPPED, State.STARTING) else logging.WARNING
            _LOG.log(level, "%s (was %s)", report.headline(status), self.status.state)
        self.status = status
        clocks = self._clocks()
        if self._watch.out is not None:
            self._write(self._watch.out, self._json(status, clocks))
        if self._watch.textfile is not None:
            self._write(self._watch.textfile, report.metrics(status, clocks))
        notify(f"STATUS={report.headline(status)}")

    def page(self) -> tuple[bool, str]:
        """Whether the server gives tokens, and the document."""
        status = self.status
        age = float("inf") if status.at is None else time.monotonic() - status.at
        if age > self._watch.stale_after_s and status.state is not State.STOPPED:
            status = replace(status, state=State.UNKNOWN)
        return status.state is State.UP, self._json(status, self._clocks())

    def _clocks(self) -> report.Clocks:
        return report.Clocks(time.monotonic(), self._clock())

    def _json(self, status: Status, clocks: report.Clocks) -> str:
        target = self._watch.target
        body = report.document(status, clocks, url=target.url, model=target.model, boot_id=self._boot_id)
        return json.dumps({"schema": report.SCHEMA, **body}) + "\n"

    def _write(self, path: Path, text: str) -> None:
        try:
            textfile.write(path, text)
        except OSError as error:
            if path not in self._failing:
                _LOG.error("%s is not written: %s; readers will find it stale", path, error.strerror or error)
            self._failing.add(path)
        else:
            if path in self._failing:
                _LOG.info("%s is written again", path)
            self._failing.discard(path)


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip().replace("-", "")
    except OSError:
        return None


async def _serve(address: tuple[str, int], teller: _Teller) -> None:
    """The HTTP face, as soon as the address can be had: it may be there late, or taken by another process."""
    face = _Face(teller.page)
    complained = False
    while True:
        try:
            server = await asyncio.start_server(face.answer, *address, limit=_REQUEST_BYTES, backlog=_CLIENTS)
        except OSError as error:
            if not complained:
                _LOG.error("nothing is served at %s:%d: %s; trying on", *address, error.strerror or error)
            complained = True
            await asyncio.sleep(_LISTEN_AGAIN_S)
            continue
        try:
            async with server:
                await server.serve_forever()
        finally:
            face.hang_up()


class _Face:
    """200 or 503 with the document, whatever is asked: the only thing a health check wants.

    Whoever is slow is hung up on, and so is everybody who comes while `_CLIENTS` are being served.
    """

    def __init__(self, page: Callable[[], tuple[bool, str]]) -> None:
        self._page = page
        self._clients: set[asyncio.StreamWriter] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _CLIENTS:
            writer.transport.abort()
            return
        self._clients.add(writer)
        try:
            async with asyncio.timeout(_CLIENT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._whole(with_body=not head.startswith(b"HEAD ")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._clients.discard(writer)
            writer.transport.abort()

    def hang_up(self) -> None:
        for writer in list(self._clients):
            writer.transport.abort()

    def _whole(self, *, with_body: bool) -> bytes:
        good, text = self._page()
        body = text.encode()
        head = (
            f"HTTP/1.1 {'200 OK' if good else '503 Service Unavailable'}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (body if with_body else b"")


async def look_at_unit(unit: str) -> Start | None:
    """Whether `unit` runs or is being started, and since when; None where systemd does not say."""
    words = ("systemctl", "show", "--property=ActiveState,ActiveEnterTimestampMonotonic,InactiveExitTimestampMonotonic")
    process = None
    try:
        async with asyncio.timeout(_SYSTEMCTL_S):
            process = await asyncio.create_subprocess_exec(
                *words, unit, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            output, _ = await process.communicate()
        return read_unit(output.decode(errors="replace"))
    except (OSError, TimeoutError):
        return None
    finally:
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


def read_unit(output: str) -> Start | None:
    values = dict(line.partition("=")[::2] for line in output.splitlines())
    try:
        state = values["ActiveState"]
        # A unit that is being started has no time of becoming active yet, or an old one.
        which = "ActiveEnter" if state in ("active", "reloading") else "InactiveExit"
        at = int(values[f"{which}TimestampMonotonic"]) / 1e6
    except (KeyError, ValueError):
        return None
    return Start(under_way=state in ("active", "reloading", "activating"), at=at)


def notify(message: str) -> None:
    """Tell systemd, where it wants to know (man sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_systemd:
        to_systemd.settimeout(1.0)
        to_systemd.sendto(message.encode(errors="replace"), address)
