"""Makes NVML calls through the real nvidia-ml-py, in a process of its own: one that loads the simulated library.

As a program it reads batches of requests from standard input, one a line, and answers each with a line, both JSON;
answers have the form of the capture from a real GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from coderack_lab.gpu import State, profile, simulated

NODE_CALLS = (
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystem",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleBy",
    "nvmlErrorString",
)

Request = tuple[str, list[Any]]
Answer = dict[str, Any]


def ask(environment: dict[str, str], requests: list[Request], *, gpu: int = 0, timeout: float = 30) -> list[Answer]:
    """The answers of one process that runs nvmlInit and then the requests, for the GPU with that NVML index."""
    process = start(environment, requests, gpu=gpu)
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    answers: list[Answer] = json.loads(out)
    return answers


def start(environment: dict[str, str], requests: list[Request], *, gpu: int = 0) -> subprocess.Popen[str]:
    """A process at work on one batch; `communicate` gets the answers."""
    process = _process(environment)
    assert process.stdin is not None
    process.stdin.write(_line(gpu, requests))
    process.stdin.flush()
    return process


def _process(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve())],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _line(gpu: int, requests: list[Request]) -> str:
    return json.dumps({"gpu": gpu, "requests": requests}) + "\n"


class Node:
    """A simulated node and one process that has loaded its library and sees every change of its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = _process(simulated(profile("none"), folder))
        self.values(profile("none"), ("nvmlInit", []))

    def close(self) -> None:
        self._process.communicate(timeout=20)

    def answers(self, state: State, requests: list[Request], slot: int) -> list[Answer]:
        simulated(state, self.folder)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_line(slot, requests))
        self._process.stdin.flush()
        answers: list[Answer] = json.loads(self._process.stdout.readline())
        return answers

    def values(self, state: State, *requests: Request, slot: int = 0) -> list[Any]:
        """Value of each request, or the name of its error, for the GPU with that NVML index."""
        found = self.answers(state, list(requests), slot)
        return [answer["value"] if answer["error"] is None else answer["error"] for answer in found]

    def value(self, state: State, call: str, *args: Any, slot: int = 0) -> Any:
        return self.values(state, (call, list(args)), slot=slot)[0]

    def field(self, state: State, number: int, scope: int = 0, slot: int = 0) -> tuple[int, int, int]:
        """Return code, type and bits of one field."""
        (item,) = self.value(state, "fields", [number, scope], slot=slot)
        return item["ret"], item["type"], item["ull"]


def _plain(value: Any) -> Any:
    if isinstance(value, ctypes.Structure):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, ctypes.Array):
        return bytes(value).hex()
    return vars(value) if hasattr(value, "__dict__") else value  # nvidia-ml-py's friendly objects


def _fields(nvml: Any, handle: Any, wanted: list[Any]) -> list[Any]:
    items = nvml.nvmlDeviceGetFieldValues(handle, [(field, scope) for field, scope in wanted])
    # The type says which member holds the value; a signed int lies in the lower half, the rest of the union is zero.
    return [{"id": i.fieldId, "ret": i.nvmlReturn, "type": i.valueType, "ull": i.value.ullVal} for i in items]


def _fabric(nvml: Any, handle: Any, struct: str) -> Any:
    info = getattr(nvml, struct)()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return _plain(info)


def _sram(nvml: Any, handle: Any) -> Any:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return _plain(status)


def _one(nvml: Any, gpu: int, call: str, args: list[Any]) -> Any:
    if call.startswith(NODE_CALLS):
        return getattr(nvml, call)(*args)
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
    if call == "fields":
        return _fields(nvml, handle, args)
    if call == "fabric":
        return _fabric(nvml, handle, *args)
    if call == "sram":
        return _sram(nvml, handle)
    if call in ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"):
        args = [nvml.nvmlDeviceGetHandleByIndex(args[0]), *args[1:]]
    return getattr(nvml, call)(handle, *args)


def _answer(nvml: Any, gpu: int, call: str, args: list[Any]) -> Answer:
    try:
        value = _one(nvml, gpu, call, args)
    except nvml.NVMLError as error:
        return {"value": None, "error": f"{type(error).__name__}:{error.value}"}
    opaque = call.startswith("nvmlDeviceGetHandleBy")
    return {"value": None if opaque else _plain(value), "error": None}


def main() -> None:
    nvml: Any = importlib.import_module("pynvml")
    _answer(nvml, 0, "nvmlInit", [])
    for line in sys.stdin:
        wanted = json.loads(line)
        answers = [_answer(nvml, wanted["gpu"], call, args) for call, args in wanted["requests"]]
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
