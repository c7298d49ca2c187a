"""Measurement files: figures of one's own in place of the planner's assumptions, and times to judge it by.

Two ship with the package, for the H200 (measured on one) and the H100 (public figures). All are YAML or JSON:

    version: 1
    name: two nodes in rack 7
    source: nccl-tests and a day of production, January 2027
    gpu: h100-sxm                # optional: refused for another GPU
    assumptions:
      fabric_us: 62              # no range: it was measured
      memory_share: {expected: 0.85, best: 0.90, worst: 0.80}
    observed:                    # optional: the planner says how far off it is
      - {what: tpot_ms, value: 24.1, gpus: 16, tensor_parallel: 4, expert_parallel: true, concurrency: 32, prompt: 8192,
         output: 150}
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, StringConstraints, field_validator, model_validator

from coderack.plan.assumptions import NAMES, Assumption
from coderack.plan.models import shipped_models
from coderack.spec.checked import Frozen, SpecError, validate

_SHIPPED = files("coderack.plan") / "calibrations"
# Some hundred observed times have some 20 kB.
_LIMIT_BYTES = 2**20

Figure = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
Line = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
# Dividing by these, or by a range around them, must stay possible.
_ABOVE_ZERO = tuple(name for name in NAMES if name.endswith(("_share", "_per_second")) or name == "corner")


class Spread(Frozen):
    """A figure with a range."""

    expected: Figure
    best: Figure
    worst: Figure

    @model_validator(mode="after")
    def _expected_lies_between(self) -> Self:
        low, high = sorted((self.best, self.worst))
        if not low <= self.expected <= high:
            raise ValueError(f"expected is {self.expected:g}, wanted from best {self.best:g} to worst {self.worst:g}")
        return self


class Observed(Frozen):
    """One measured time or rate, and of what. `layers` is for a model cut short, None for all of them.

    `step_ms`: from token to token, no prompt in between. `tpot_ms`, `ttft_ms`, `output_tokens_per_s`: under a steady
    load of that concurrency. `burst_ttft_ms`: the last of all first tokens when that many requests come at once.
    """

    what: Literal["step_ms", "tpot_ms", "ttft_ms", "burst_ttft_ms", "output_tokens_per_s"]
    value: Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
    gpus: Count
    gpus_per_node: Annotated[int, Field(strict=True, ge=1, le=16)] = 8
    tensor_parallel: Count
    expert_parallel: bool
    concurrency: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    prompt: Count
    output: Count
    batched_tokens: Count = 8192
    layers: Annotated[int, Field(strict=True, ge=1, le=1000)] | None = None
    note: Line | None = None

    @model_validator(mode="after")
    def _ranks_are_whole(self) -> Self:
        if self.gpus % self.tensor_parallel:
            raise ValueError(f"gpus is {self.gpus}, wanted a multiple of tensor_parallel = {self.tensor_parallel}")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise ValueError(f"gpus is {self.gpus}, wanted whole nodes of gpus_per_node = {self.gpus_per_node}")
        return self


class Measurements(Frozen):
    """One file. `model` is the shipped config of which `observed` speaks."""

    version: Literal[1]
    name: Line
    source: Line
    gpu: Line | None = None
    model: Line = "qwen3-coder-480b-fp8"
    assumptions: dict[str, Figure | Spread] = Field(default_factory=dict)
    observed: tuple[Observed, ...] = ()

    @field_validator("version", mode="before")
    @classmethod
    def _version_is_a_number(cls, value: object) -> object:
        # Literal[1] compares, and True == 1.0 == 1.
        if type(value) is not int:
            raise ValueError(f"version is {value!r:.80}, wanted the number 1")
        return value

    @model_validator(mode="after")
    def _assumptions_are_known(self) -> Self:
        problems = [
            f"assumptions.{name:.80} is not a known key; wanted one of {', '.join(NAMES)}"
            for name in self.assumptions
            if name not in NAMES
        ]
        if self.model not in shipped_models():
            problems.append(f"model is {self.model}, wanted one of {', '.join(shipped_models())}")
        for name in _ABOVE_ZERO:
            given = self.assumptions.get(name)
            values = (given,) if not isinstance(given, Spread) else (given.expected, given.best, given.worst)
            problems += [f"assumptions.{name} is 0, wanted more than that" for value in values if value == 0]
        if problems:
            raise ValueError("; ".join(problems))
        return self


@dataclass(frozen=True)
class Applied:
    """Assumptions with figures of `given` in place of some; other files only say what was observed."""

    table: Mapping[str, Assumption]
    given: tuple[Measurements, ...]

    @property
    def observed(self) -> tuple[tuple[Measurements, Observed], ...]:
        return tuple((one, row) for one in self.given for row in one.observed)


def apply(table: Mapping[str, Assumption], given: tuple[Measurements, ...], gpu: str) -> Applied:
    """Put the figures of `given` into `table`, later ones over earlier ones. SpecError where one is for another GPU."""
    result = dict(table)
    for one in given:
        if one.gpu is not None and one.gpu != gpu:
            raise SpecError(
                f"measurements {one.name}", (f"are of gpu {one.gpu}, wanted {gpu}; plan that GPU, or remove the key",)
            )
        for name, value in one.assumptions.items():
            spread = value if isinstance(value, Spread) else Spread(expected=value, best=value, worst=value)
            result[name] = replace(result[name], **spread.model_dump(), source=f"{one.name}: {one.source}")
    return Applied(result, given)


def shipped_for(gpu: str) -> tuple[Measurements, ...]:
    """The measurements that come with the package for this GPU: none or one."""
    path = _SHIPPED / f"{gpu}.yml"
    return (_checked(path.read_text(encoding="utf-8"), f"{gpu}.yml"),) if path.is_file() else ()


def load(path: Path) -> Measurements:
    """Read a measurement file. Raises SpecError with every problem found in it."""
    try:
        with path.open("rb") as file:
            content = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise SpecError(str(path), (f"cannot be read ({error.strerror}); wanted a measurement file",)) from None
    if len(content) > _LIMIT_BYTES:
        raise SpecError(str(path), (f"has more than {_LIMIT_BYTES} bytes; wanted a measurement file",))
    return _checked(content.decode(errors="replace"), str(path))


def _checked(text: str, what: str) -> Measurements:
    try:
        # libyaml is ten times as fast, and not in every build.
        data: Any = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (both are safe)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(what, (f"is not YAML: {' '.join(str(error).split()):.200}",)) from None
    if not isinstance(data, dict):
        raise SpecError(what, (f"is {'empty' if data is None else type(data).__name__}, wanted keys and values",))
    return validate(Measurements, data, what)
