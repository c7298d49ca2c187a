"""The model of a serving profile: from a `config.json` on disk, or from one that ships with this package."""

import json
from importlib.resources import files
from pathlib import Path

from coderack.plan.files import read_bytes
from coderack.spec.checked import SpecError
from coderack.spec.model import ModelSpec, read_config
from coderack.spec.profile import ServingProfile

_SHIPPED = files("coderack.spec") / "models"
# The largest known config.json has some 100 kB.
_LIMIT_BYTES = 4 * 2**20


def model_of(profile: ServingProfile, config: Path | None = None) -> ModelSpec:
    """Return the model that `profile` serves.

    `config` names a config.json; without it the shipped one is taken whose name is the last part of model.path, so
    that a plan needs no weights. Raises SpecError when there is none or it cannot be read.
    """
    if config is not None:
        return read_config(_parse(_read(config), str(config)), str(config))
    name = profile.model.path.rpartition("/")[2]
    if name not in shipped_models():
        raise SpecError(
            f"profile {profile.name}",
            (
                f"model.path ends in {name}, of which no config.json is shipped ({', '.join(shipped_models())}); "
                "give the one that lies beside the weights with --model-config",
            ),
        )
    return shipped_model(name)


def shipped_model(name: str) -> ModelSpec:
    """Return one of `shipped_models`."""
    what = f"{name}.json"
    return read_config(_parse((_SHIPPED / what).read_text(encoding="utf-8"), what), what)


def shipped_models() -> tuple[str, ...]:
    names = (one.name for one in _SHIPPED.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def _read(path: Path) -> str:
    return read_bytes(path, _LIMIT_BYTES, "the model's config.json").decode(errors="replace")


def _parse(text: str, what: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(what, (f"is not JSON ({error}); wanted the model's config.json",)) from None
