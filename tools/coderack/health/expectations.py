"""Which profile a node is judged by: one of this package, or a file of the inventory that builds on one.

The profiles are package data and not files of an inventory, because a node has the package and no checkout; what is
particular to an environment comes as a small file that names a profile and overrides some of its keys.
"""

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from coderack.spec.checked import SpecError, validate
from coderack.spec.gpu import GpuProfile

_BASE = "profile"


def names() -> list[str]:
    return sorted(path.name.removesuffix(".yml") for path in _directory().iterdir() if path.name.endswith(".yml"))


def load(name_or_file: str, settings: Iterable[str] = ()) -> GpuProfile:
    """The profile of that name or file, with `settings` such as `gpus.count=4` on top. Raises SpecError."""
    what = f"GPU profile {name_or_file}"
    data = _named(name_or_file) if name_or_file in names() else _file(name_or_file, what)
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise SpecError(what, (f"setting {setting!r}, wanted KEY=VALUE such as gpus.count=4",))
        data = _merged(data, _nested(key.split("."), _value(value, what)))
    return validate(GpuProfile, data, what)


def built(data: Mapping[str, Any], what: str) -> GpuProfile:
    """The profile of a file with this content: a name under `profile`, and keys on top. Raises SpecError."""
    return validate(GpuProfile, _based(dict(data), what), what)


def _named(name: str) -> dict[str, Any]:
    text = (_directory() / f"{name}.yml").read_text(encoding="utf-8")
    data: dict[str, Any] = _parse(text)
    return data


def _file(name: str, what: str) -> dict[str, Any]:
    path = Path(name)
    try:
        data = _parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(what, (f"neither a file nor one of {', '.join(names())}",)) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(what, (f"cannot be read: {' '.join(str(error).split())}",)) from error
    if not isinstance(data, dict):
        raise SpecError(what, (f"is a {type(data).__name__}, wanted keys and values",))
    return _based(data, what)


def _based(data: dict[str, Any], what: str) -> dict[str, Any]:
    base = data.pop(_BASE, None)
    if base is None:
        return data
    if base not in names():
        raise SpecError(what, (f"profile is {base!r}, wanted one of {', '.join(names())}",))
    return _merged(_named(base), data)


def _value(text: str, what: str) -> Any:
    try:
        return _parse(text)
    except yaml.YAMLError as error:
        raise SpecError(what, (f"value {text!r} is not YAML: {' '.join(str(error).split())}",)) from error


def _parse(text: str) -> Any:
    # libyaml is ten times as fast, and not in every build.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (both are safe loaders)


def _nested(keys: list[str], value: Any) -> dict[str, Any]:
    return {keys[0]: value if len(keys) == 1 else _nested(keys[1:], value)}


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _directory() -> Any:
    return resources.files("coderack.health") / "profiles"
