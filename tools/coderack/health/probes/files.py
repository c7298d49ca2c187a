"""Reading sysfs and proc: every file gives an answer or an error, never an exception and never an empty value."""

from pathlib import Path

from coderack.health.readings import ABSENT, Answer

_ERRORS = {1: "NO_PERMISSION", 2: ABSENT, 5: "IO_ERROR", 13: "NO_PERMISSION", 19: ABSENT, 22: "INVALID_ARGUMENT"}


def text(path: Path) -> Answer:
    try:
        content = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return Answer(error=_ERRORS.get(error.errno or 0, f"ERRNO_{error.errno}"))
    return Answer(content) if content else Answer(error="EMPTY")


def number(path: Path, base: int = 10) -> Answer:
    answer = text(path)
    if answer.error is not None:
        return answer
    content = str(answer.value)
    try:
        return Answer(int(content, base))
    except ValueError:
        # "N/A (no PMA)" in place of a counter: node_exporter #966.
        return Answer(error=f"NOT_A_NUMBER: {content[:40]}")


def names(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []
