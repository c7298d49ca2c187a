"""Building the simulated NVML."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from coderack_lab.errors import LabError
from coderack_lab.gpu import library


def test_a_library_is_compiled_once_for_its_source(tmp_path: Path) -> None:
    built = library.build_library(tmp_path)
    first = built.stat()
    assert built.name == "libnvidia-ml.so.1"
    assert library.build_library(tmp_path).stat() == first
    assert [path.name for path in built.parent.iterdir()] == [built.name]  # no half-written one beside it


def test_the_source_compiles_without_a_warning() -> None:
    sources = [str(source) for source in library.SOURCES.glob("*.c")]
    command = ["gcc", *library.FLAGS, "-fsyntax-only", *sources]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


def test_without_a_compiler_the_packages_to_install_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="gcc and libc6-dev"):
        library.build_library(tmp_path)


def test_what_the_compiler_says_is_passed_on_and_leaves_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/broken.c").write_text("int f(void) { return }\n")
    monkeypatch.setattr(library, "SOURCES", tmp_path / "source")
    with pytest.raises(LabError, match=r"(?s)does not compile: .*broken\.c:1"):
        library.build_library(tmp_path / "built")
    assert not list((tmp_path / "built").rglob(library.SONAME))
