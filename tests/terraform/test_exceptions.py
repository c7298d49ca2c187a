"""What checkov is told to overlook (`make scan`): few things, each with its reason beside it."""

import re
from pathlib import Path

import yaml

from .runner import REPOSITORY

CONFIGURATION = REPOSITORY / ".checkov.yml"
INLINE = re.compile(r"checkov:skip=(CKV2?_[A-Z]+_[0-9]+)(.*)")
MOST = 10


def inline_exceptions() -> list[tuple[Path, str, str]]:
    """File, check and the rest of the line of every exception in the code."""
    files = sorted((REPOSITORY / "terraform").rglob("*.tf"))
    return [(file, *found) for file in files for found in INLINE.findall(file.read_text(encoding="utf-8"))]


def general_exceptions() -> list[str]:
    return list(yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["skip-check"])


def test_exceptions_are_few() -> None:
    assert len(inline_exceptions()) + len(general_exceptions()) <= MOST


def test_every_exception_in_the_code_has_its_reason() -> None:
    bare = [(file.name, check) for file, check, rest in inline_exceptions() if len(rest.strip(": ")) < 15]
    assert bare == []


def test_every_general_exception_has_its_reason() -> None:
    lines = CONFIGURATION.read_text(encoding="utf-8").splitlines()
    bare = [
        check for check in general_exceptions() if "# " not in lines[lines.index(f"  - {check}") - 1]
    ]  # the line above is a comment
    assert bare == []
