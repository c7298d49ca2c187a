"""Files for node_exporter's textfile collector, in Prometheus' text format."""

import errno
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

# Name, labels, value.
Series = tuple[str, Mapping[str, str], float]


def page(types: Mapping[str, tuple[str, str]], series: Iterable[Series]) -> str:
    """The whole file. `types`: name to kind and help text; a name without series has no lines, which absent() finds."""
    by_name: dict[str, list[Series]] = {name: [] for name in types}
    for one in series:
        by_name[one[0]].append(one)
    lines = []
    for name, (kind, help_text) in types.items():
        if by_name[name]:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [_line(*one) for one in by_name[name]]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Whole or not at all: the reader may come at any moment. Raises OSError, also for what is no regular file."""
    if path.exists() and not path.is_file():
        # A rename would put a file in the place of the device, /dev/null for everybody.
        raise FileExistsError(errno.EEXIST, "is there and is no regular file", str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    number = str(int(value)) if value == int(value) else repr(value)
    return f"{name}{{{inner}}} {number}" if inner else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
