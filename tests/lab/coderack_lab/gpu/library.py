"""Builds the simulated `libnvidia-ml.so.1` and says how a process comes to load it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from coderack_lab.errors import LabError
from coderack_lab.gpu.state import State
from coderack_lab.settings import ROOT

SOURCES = Path(__file__).resolve().parents[2] / "gpu_sim"
SONAME = "libnvidia-ml.so.1"
FLAGS = (
    *("-std=c11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-shared", f"-Wl,-soname,{SONAME}", "-Wl,-z,defs"),
)


def _recipe() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted((*SOURCES.glob("*.c"), *SOURCES.glob("*.h"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def build_library(into: Path | None = None) -> Path:
    """Path of the library, compiled if this exact source has not been compiled into that folder yet (about a second).

    Without a folder it goes to the clone's build folder, so that all its tests share it. Raises LabError with the
    compiler's words.
    """
    folder = (into or ROOT / ".build" / "gpu-sim") / f"nvml-{_recipe()}"
    library = folder / SONAME
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{SONAME}.partial-{os.getpid()}"
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    command = ["gcc", *FLAGS, "-o", str(partial), *sources, "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError("gcc is not there; wanted: gcc and libc6-dev, for the simulated NVML. Install them.") from None
    if done.returncode != 0:
        raise LabError(f"the simulated NVML does not compile: {done.stderr.strip()}")
    partial.rename(library)
    return library


def simulated(state: State, folder: Path, library: Path | None = None) -> dict[str, str]:
    """Write the state to `folder/state` and return what a child process needs in its environment to see that node."""
    file = state.write(folder / "state")
    return {"LD_LIBRARY_PATH": str((library or build_library()).parent), "CODERACK_LAB_NVML_STATE": str(file)}


def without_library(folder: Path) -> dict[str, str]:
    """The environment of a process that cannot load NVML, whatever the host has: the file there is no library."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SONAME).write_bytes(b"")
    return {"LD_LIBRARY_PATH": str(folder)}
