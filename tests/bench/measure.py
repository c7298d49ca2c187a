"""Runs a program and says what it cost."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Cost:
    """Of one process with those it waited for: wall and CPU time in seconds, the largest resident size in MiB."""

    wall_s: float
    cpu_s: float
    rss_mib: float

    def __str__(self) -> str:
        return f"{self.wall_s:6.2f} s wall, {self.cpu_s:5.2f} s own CPU, {self.rss_mib:4.0f} MiB"


def run(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Cost:
    """Run `command` to its end; a failure ends the benchmark with what the program said."""
    output = directory / "output"
    with output.open("wb") as file:
        begin = time.monotonic()
        process = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        said = output.read_text(encoding="utf-8", errors="replace")[-2000:]
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def program(name: str) -> str:
    """A program of the project's environment."""
    return str(Path(sys.executable).with_name(name))


def verdict(claims: Mapping[str, bool]) -> int:
    """Print which claims hold; 0 if all do, otherwise 1."""
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {claim}")
    return 0 if all(claims.values()) else 1
