"""The simulated node's state: readings by key, as the simulated NVML reads them (../../gpu_sim/README.md)."""

from __future__ import annotations

import os
import re
import time
from itertools import product
from pathlib import Path

from coderack_lab.errors import BadInput

Value = str | int | float | bool

_KEY = re.compile(r"[\w*-]+(\.[\w*-]+)*")


def error(code: str | int) -> str:
    """A reading that answers with a return code of NVML: `error("NOT_SUPPORTED")`."""
    return f"error {code}"


def rising(start: int, per_second: float) -> str:
    """A counter that stands at `start` when the state was made and rises from then on."""
    return f"{start} + {per_second:g}/s"


class State:
    """Keys and values of one simulated node. `*` stands for any segment; the more exact key wins, from the left."""

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self._values = dict(values or {})
        self._values.setdefault("epoch", f"{time.time():.3f}")

    def set(self, path: str, value: Value) -> State:
        """Set one reading and return the state, so that faults can be chained.

        Raises BadInput for a key or a value that the library could not read.
        """
        if not _KEY.fullmatch(path):
            raise BadInput(f"state key {path!r}; wanted: words with dots between them, such as gpu.3.link.5.state")
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if "\n" in text or not text.strip():
            raise BadInput(f"state value {text!r} of {path}; wanted: one line that is not empty")
        self._values[path] = text.strip()
        return self

    def unset(self, path: str) -> State:
        """Take a key away; without any key a reading answers NOT_SUPPORTED."""
        self._values.pop(path, None)
        return self

    def get(self, path: str) -> str | None:
        """The value that holds for a path, by the same rule as the library's."""
        choices = [(part, "*") for part in path.split(".")]
        for candidate in product(*choices):
            if (value := self._values.get(".".join(candidate))) is not None:
                return value
        return None

    def copy(self) -> State:
        return State(self._values)

    def slots(self) -> list[int]:
        return [int(slot) for slot in (self.get("slots") or "").split()]

    def remove_gpu(self, slot: int) -> State:
        """The GPU is no longer there for NVML; those after it move up by one index."""
        return self.set("slots", " ".join(str(other) for other in self.slots() if other != slot) or "none")

    def text(self) -> str:
        return "".join(f"{key} = {value}\n" for key, value in self._values.items())

    def write(self, file: Path) -> Path:
        """Write the state whole or not at all: the library may be reading it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.partial-{os.getpid()}")
        partial.write_text(self.text())
        partial.rename(file)
        return file

    @classmethod
    def read(cls, file: Path) -> State:
        lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
        return cls({key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)})
