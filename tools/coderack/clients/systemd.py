"""systemd as a program: one unit's state and the orders it takes, each call with an end."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

PROPERTIES = ("ActiveState", "SubState", "Result", "InvocationID", "Job", "ActiveEnterTimestampMonotonic", "LoadState")


class SystemdError(Exception):
    """systemctl failed, or did not answer in time."""


@dataclass(frozen=True)
class UnitState:
    """Properties of a unit, named as systemd names them."""

    active: str
    sub: str
    result: str
    invocation: str
    job: bool
    active_since: float | None  # seconds of the monotonic clock; None when it never was
    load: str


@dataclass(frozen=True)
class Systemd:
    """Calls `systemctl`; a call that takes longer than `timeout` seconds is killed."""

    systemctl: str = "systemctl"
    timeout: float = 10.0

    async def show(self, unit: str) -> UnitState:
        """Raises SystemdError. A unit that does not exist is inactive, with `load` not-found."""
        out = await self._call("show", "--property=" + ",".join(PROPERTIES), "--", unit)
        seen = dict(line.partition("=")[::2] for line in out.splitlines())
        if not seen.get("ActiveState"):
            raise SystemdError(f"systemctl show {unit} named no ActiveState: {out[:200]!r}")
        since = seen.get("ActiveEnterTimestampMonotonic", "0")
        return UnitState(
            active=seen["ActiveState"],
            sub=seen.get("SubState", ""),
            result=seen.get("Result", ""),
            invocation=seen.get("InvocationID", ""),
            job=seen.get("Job", "0") not in ("", "0"),
            active_since=int(since) / 1e6 if since.isdecimal() and int(since) else None,
            load=seen.get("LoadState", ""),
        )

    async def start(self, unit: str) -> None:
        """Queue a start, after forgetting earlier crashes, which would count against the unit's start limit."""
        with contextlib.suppress(SystemdError):  # a unit that is not loaded has nothing to forget
            await self._call("reset-failed", "--", unit)
        await self._call("start", "--no-block", "--", unit)

    async def stop(self, unit: str) -> None:
        await self._call("stop", "--no-block", "--", unit)

    async def kill(self, unit: str) -> None:
        """SIGKILL to every process of the unit."""
        await self._call("kill", "--signal=SIGKILL", "--", unit)

    async def _call(self, *arguments: str) -> str:
        command: Sequence[str] = (self.systemctl, "--no-ask-password", *arguments)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise SystemdError(f"{self.systemctl} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(self.timeout):
                out, err = await process.communicate()
        except TimeoutError:
            raise SystemdError(f"systemctl {arguments[0]} has not answered in {self.timeout:g} s") from None
        finally:
            # Also when this task is cancelled. Not waited for without an end: what hangs in the kernel would hang us.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, TimeoutError):
                    process.kill()
                    async with asyncio.timeout(1):
                        await process.wait()
        if process.returncode != 0:
            said = err.decode(errors="replace").strip() or f"exit code {process.returncode}"
            raise SystemdError(f"systemctl {arguments[0]}: {said[:400]}")
        return out.decode(errors="replace")


def notify(message: str) -> None:
    """Tell the service manager, e.g. READY=1 or WATCHDOG=1; nothing where there is none (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(message.encode())
