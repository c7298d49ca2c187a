"""Serving profiles on disk, by name or by path."""

from pathlib import Path

import yaml

from coderack.plan.files import read_bytes
from coderack.spec.checked import SpecError, validate
from coderack.spec.profile import ServingProfile

_LIMIT_BYTES = 2**20
# Of a checkout that this package is run from.
_CHECKOUT = Path(__file__).resolve().parents[3] / "inventories" / "profiles"
_USUAL = Path("inventories/profiles")


def load_profile(name: str, folder: Path | None = None) -> ServingProfile:
    """Return the profile `name`: a file when it has a slash or ends in .yml, otherwise one of `folder`.

    Raises SpecError that names the file and every problem, and the known names when there is no such profile.
    """
    if "/" in name or name.endswith((".yml", ".yaml")):
        path = Path(name)
    else:
        folder = folder or usual_folder()
        path = folder / f"{name}.yml"
        if not path.is_file():
            known = ", ".join(profile_names(folder)) or "none"
            raise SpecError(f"profile {name:.80}", (f"{path} is not there; wanted the path of a profile, or a name in "
                                                    f"{folder}: {known}",))  # fmt: skip
    return validate(ServingProfile, _read(path), str(path))


def usual_folder() -> Path:
    """inventories/profiles here, or that of the checkout in which this package lies."""
    return _USUAL if _USUAL.is_dir() or not _CHECKOUT.is_dir() else _CHECKOUT


def profile_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yml")))


def _read(path: Path) -> object:
    content = read_bytes(path, _LIMIT_BYTES, "a serving profile")
    try:
        return yaml.safe_load(content.decode())
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(str(path), (f"is not YAML ({first}); wanted a serving profile",)) from None
