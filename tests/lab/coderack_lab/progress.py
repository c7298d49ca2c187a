"""Telling the person at the terminal what is going on: one line a step, with elapsed time, and where it failed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_QUIET_SECONDS = 20.0  # without a terminal: a sign of life at this interval


class Progress:
    """Prints numbered steps. On a terminal the line counts the seconds; elsewhere it reports now and then."""

    def __init__(self, total: int, logs: Path) -> None:
        self._total, self._logs, self._number = total, logs, 0
        self._start = time.monotonic()
        self.current = ""
        self.log: Path | None = None

    @contextmanager
    def step(self, title: str, log_name: str) -> Iterator[Path]:
        """Run one step; gives the path of its log. The step's result is printed whether it ends well or not."""
        self._number += 1
        self.current, self.log = title, self._logs / f"{self._number:02d}-{log_name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        label = f"[{self._number:2d}/{self._total}] {title}"
        started, done = time.monotonic(), threading.Event()
        ticker = threading.Thread(target=_tick, args=(label, started, done), daemon=True)
        ticker.start()
        result = "FAILED"
        try:
            yield self.log
            result = "done"
        finally:
            done.set()
            ticker.join()
            clear = "\r\x1b[K" if sys.stdout.isatty() else ""
            print(f"{clear}{label} ... {result} in {time.monotonic() - started:.0f} s", flush=True)

    def elapsed(self) -> float:
        """Seconds since the first step began."""
        return time.monotonic() - self._start


def _tick(label: str, started: float, done: threading.Event) -> None:
    terminal = sys.stdout.isatty()
    if not terminal:
        print(f"{label} ...", flush=True)
    while not done.wait(1.0 if terminal else _QUIET_SECONDS):
        elapsed = time.monotonic() - started
        text = (
            f"\r\x1b[K{label} ... {elapsed:.0f} s" if terminal else f"{label} ... still at it after {elapsed:.0f} s\n"
        )
        print(text, end="", flush=True)
