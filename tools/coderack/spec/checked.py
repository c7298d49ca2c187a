"""The base of every model in this room, and validation whose errors an operator can act on."""

import reprlib
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails


class Frozen(BaseModel):
    """Immutable, and a key it does not know is an error: a misspelt option must not be ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SpecError(ValueError):
    """Input that is not what it should be. `problems` holds one sentence each; str() has one line each."""

    def __init__(self, what: str, problems: tuple[str, ...]) -> None:
        self.what = what
        self.problems = problems
        super().__init__("\n".join(f"{what}: {problem}" for problem in problems))


Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], data: object, what: str) -> Model:
    """Return `data` as a `model`, or raise SpecError with every problem found; `what` names the input."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = tuple(_sentence(detail, data) for detail in error.errors(include_url=False))
        raise SpecError(what, problems) from None


def _sentence(detail: ErrorDetails, data: object) -> str:
    path = _path(detail["loc"], data)
    match detail["type"]:
        case "value_error":
            # Our own checks name field, value and wish themselves.
            return str(detail["ctx"]["error"])
        case "missing":
            return f"{path} is missing"
        case "extra_forbidden":
            return f"{path} is not a known key; remove it or correct its spelling"
        case _:
            wish = detail["msg"][0].lower() + detail["msg"][1:]
            return f"{path} is {_seen(detail['input'])}: {wish}" if path else f"{wish}, got {_seen(detail['input'])}"


# Bounded in depth and width, since the value may be anything.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def _seen(value: object) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _path(loc: tuple[int | str, ...], data: object) -> str:
    """Render a location as `nodes[gpu-a].gpus.count`: list items by their name where they have one."""
    path = ""
    here: object = data
    for step in loc:
        here = _descend(here, step)
        if isinstance(step, int):
            name = here.get("name") if isinstance(here, Mapping) else None
            path += f"[{_short(name) if isinstance(name, str) else step}]"
        else:
            path += f".{_short(step)}" if path else _short(step)
    return path


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:77]}..."


def _descend(here: object, step: int | str) -> object:
    if isinstance(here, Mapping):
        return here.get(step)
    if isinstance(here, (list, tuple)) and isinstance(step, int) and step < len(here):
        return here[step]
    return None
