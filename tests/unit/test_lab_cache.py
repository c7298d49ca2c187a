"""The lab's cache: whole entries or none, and no trust in half ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from coderack_lab import cache
from coderack_lab.errors import LabError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "CACHE", tmp_path)
    return tmp_path


def fill(partial: Path) -> None:
    (partial / "content").write_text("whole")


def test_an_entry_is_made_once(folder: Path) -> None:
    path = cache.entry("base", "0123456789ab")
    assert cache.build(path, fill) == path

    def never(_: Path) -> None:
        raise AssertionError("made again")

    assert cache.build(path, never) == path
    assert (path / "content").read_text() == "whole"


def test_a_build_that_fails_leaves_no_entry_and_the_next_one_clears_its_rest(folder: Path) -> None:
    path = cache.entry("base", "0123456789ab")

    def broken(partial: Path) -> None:
        fill(partial)
        raise LabError("no network")

    with pytest.raises(LabError, match="no network"):
        cache.build(path, broken)
    assert not cache.is_ready(path)
    cache.build(path, fill)
    assert [p.name for p in folder.iterdir()] == [path.name]


@pytest.mark.parametrize("stamp", [None, "", "not json", '{"entry": "base-ffffffffffff"}', "[]"])
def test_an_entry_without_a_right_stamp_is_refused_by_name(folder: Path, stamp: str | None) -> None:
    path = cache.entry("base", "0123456789ab")
    path.mkdir()
    if stamp is not None:
        (path / ".coderack-cache.json").write_text(stamp)
    with pytest.raises(LabError, match=r"half-built cache entry .*base-0123456789ab.*make lab-clean"):
        cache.is_ready(path)


def test_a_new_recipe_replaces_the_old_entry_of_its_kind_only(folder: Path) -> None:
    cache.build(cache.entry("models", "0123456789ab"), fill)
    cache.build(cache.entry("base", "0123456789ab"), fill)
    cache.build(cache.entry("base", "ba9876543210"), fill)
    assert sorted(p.name for p in folder.iterdir()) == ["base-ba9876543210", "models-0123456789ab"]
