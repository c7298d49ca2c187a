"""Services, packages and the clock, by asking systemctl, dpkg-query and chronyc.

Keys: `unit.NAME.active`, `.sub`, `.loaded`, `.result`; `package.NAME`; `clock.leap`, `clock.offset`.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coderack.health.processes import Step
from coderack.health.readings import ABSENT, Answer

UNITS = ("nvidia-fabricmanager.service", "nvidia-persistenced.service")
# Archive and NVIDIA repository name them differently, with and without the branch.
PACKAGES = ("nvidia-fabricmanager*", "libnvidia-nscq*", "libnccl2", "nvidia-driver-*", "nvidia-open*")
_PROPERTIES = "Id,LoadState,ActiveState,SubState,Result"

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "units": ("systemctl", "show", f"--property={_PROPERTIES}", *UNITS),
    "packages": ("dpkg-query", "-W", "-f=${db:Status-Abbrev}\t${Package}\t${Version}\n", *PACKAGES),
    "clock": ("chronyc", "-n", "-c", "tracking"),
}


@dataclass(frozen=True, slots=True)
class Output:
    text: str = ""
    error: str | None = None


def run_all(commands: Mapping[str, Sequence[str]], seconds: float) -> dict[str, Output]:
    """Start all at once; each has until `seconds` from now. One that does not end is left behind, not waited for."""
    deadline = time.monotonic() + seconds
    started: dict[str, subprocess.Popen[str] | Output] = {}
    for name, words in commands.items():
        try:
            started[name] = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            started[name] = Output(error="NOT_INSTALLED")
        except OSError as error:
            started[name] = Output(error=f"ERRNO_{error.errno}")
    return {name: _output(process, deadline) for name, process in started.items()}


def _output(process: subprocess.Popen[str] | Output, deadline: float) -> Output:
    if isinstance(process, Output):
        return process
    try:
        text, _ = process.communicate(timeout=max(0.01, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return Output(error="TIMEOUT")
    # dpkg-query ends with 1 when one of the patterns matches nothing, and still lists the others.
    return Output(text) if process.returncode in (0, 1) else Output(error=f"EXIT_{process.returncode}")


def read(seconds: float, clock: bool, gpus: bool, step: Step) -> dict[str, Answer]:
    step("systemctl, dpkg-query and chronyc")
    wanted = {"clock": clock, "units": gpus, "packages": True}
    outputs = run_all({name: words for name, words in COMMANDS.items() if wanted[name]}, seconds)
    return interpret(outputs)


def interpret(outputs: Mapping[str, Output]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    if "units" in outputs:
        answers |= _units(outputs["units"])
    if "packages" in outputs:
        answers |= _packages(outputs["packages"])
    if "clock" in outputs:
        answers |= _clock(outputs["clock"])
    return answers


def _units(output: Output) -> dict[str, Answer]:
    if output.error is not None:
        return {f"unit.{name}.active": Answer(error=output.error) for name in UNITS}
    answers: dict[str, Answer] = {f"unit.{name}.active": Answer(error=ABSENT) for name in UNITS}
    for block in output.text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name = values.get("Id")
        if name not in UNITS or "ActiveState" not in values:
            continue
        if values.get("LoadState") == "not-found":
            continue
        fields = {"active": "ActiveState", "sub": "SubState", "loaded": "LoadState", "result": "Result"}
        answers |= {f"unit.{name}.{key}": Answer(values.get(field, "")) for key, field in fields.items()}
    return answers


def _packages(output: Output) -> dict[str, Answer]:
    """Installed packages only; `packages` says whether the question was answered at all."""
    if output.error is not None:
        return {"packages": Answer(error=output.error)}
    answers = {"packages": Answer(1)}
    for line in output.text.splitlines():
        status, _, rest = line.partition("\t")
        name, _, version = rest.partition("\t")
        if status.strip() in ("ii", "hi") and version:
            answers[f"package.{name.split(':')[0]}"] = Answer(version)
    return answers


def upstream(version: str) -> str:
    """`580.159.04` of a Debian version `1:580.159.04-0ubuntu1`."""
    return version.rpartition(":")[2].split("-")[0].split("+")[0]


def _clock(output: Output) -> dict[str, Answer]:
    """chronyc's comma-separated tracking: field 5 is the offset in seconds, the last the leap status."""
    if output.error is not None:
        return {"clock.leap": Answer(error=output.error)}
    fields = output.text.strip().split(",")
    if len(fields) < 14:
        return {"clock.leap": Answer(error="NO_ANSWER")}
    try:
        offset = float(fields[4])
    except ValueError:
        return {"clock.leap": Answer(error="NO_ANSWER")}
    return {"clock.leap": Answer(fields[13]), "clock.offset": Answer(offset)}
