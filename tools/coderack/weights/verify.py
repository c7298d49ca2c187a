"""Read a whole folder against its manifest, or make the manifest of a folder that somebody else has filled."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from coderack.spec.checked import SpecError
from coderack.weights import hashing, store
from coderack.weights import manifest as m
from coderack.weights.fetch import Progress, Silent
from coderack.weights.manifest import Entry, Manifest
from coderack.weights.store import Verified, Wrong

FIRST_SIGHT = "first sight: made from the files themselves"


@dataclass(frozen=True)
class Report:
    """`problems` has a line for each; bytes that were read, and those passed over since their files look as before."""

    manifest: Manifest
    problems: tuple[str, ...]
    read: int
    passed_over: int
    seconds: float


def verify(
    folder: Path,
    *,
    digest: str | None = None,
    quick: bool = False,
    workers: int = 0,
    state: Path = store.STATE,
    progress: Progress | None = None,
) -> Report:
    """Hash every file; with `quick` only those whose size, time or inode have changed. Raises Wrong, NotKnown, OSError.

    A folder that passes gets a new record, so that times which changed without the content are known the next time.
    """
    found = store.read_verified(folder, state)
    if digest is not None and found.manifest.digest != digest:
        raise Wrong(f"{folder} was verified against manifest {found.manifest.digest}, wanted {digest}")
    problems, present = _sizes(found)
    untouched = {path for path in present if quick and store.look(found.folder / path) == found.record.files.get(path)}
    begun = time.monotonic()
    wrong = _hash(found, [path for path in present if path not in untouched], workers, progress or Silent())
    problems += wrong
    problems += [
        f"{found.folder / path} is in no manifest; an engine might load it. Move it away"
        for path in store.unexpected(found.folder, found.manifest)
    ]
    sizes = {entry.path: entry.size for entry in found.manifest.files}
    skipped = sum(sizes[path] for path in untouched)
    if not problems and not quick:
        store.write_record(found.folder, found.manifest, found.record.source, found.kept_in)
    read = sum(sizes[path] for path in present) - skipped
    return Report(found.manifest, tuple(problems), read, skipped, time.monotonic() - begun)


def from_files(
    folder: Path, model: str, revision: str, *, workers: int = 0, progress: Progress | None = None
) -> Manifest:
    """The manifest of whatever is in the folder. Raises SpecError, Wrong, OSError."""
    if not folder.is_dir():
        raise SpecError(str(folder), ("is no folder; wanted: one with a model's files",))
    shown, stop = progress or Silent(), threading.Event()
    paths = sorted(store.walk(folder))
    if not paths:
        raise SpecError(str(folder), ("holds no file; wanted: a model's files",))
    try:
        m.check_paths(paths)
    except ValueError as error:
        raise SpecError(str(folder), (str(error),)) from None
    sizes = {path: store.look(folder / path).size for path in paths}
    shown.total(sum(sizes.values()), len(sizes))

    def one(path: str) -> Entry:
        digest = hashing.sha256(folder / path, stop, lambda count: shown.moved(count, local=True))
        return Entry(path=path, size=sizes[path], sha256=digest)

    ordered = sorted(paths, key=lambda path: -sizes[path])
    return m.make(model, revision, hashing.each(one, ordered, workers or hashing.default_workers(), stop))


def record(
    folder: Path, manifest: Manifest, *, state: Path = store.STATE, replace: bool = False, source: str = FIRST_SIGHT
) -> None:
    """Note what an image brought, outside of its folder, to be held to from now on. Raises Wrong if it is another."""
    real = store.real_folder(folder)
    place = store.kept_in(folder, state)
    if not replace and (place / store.RECORD).exists():
        before = store.read_verified(folder, state).manifest
        if before.digest != manifest.digest:
            raise Wrong(
                f"{folder} was revision {before.revision} with manifest {before.digest}, now it makes "
                f"{manifest.revision} with {manifest.digest}. If somebody meant to change it: --replace"
            )
    store.write_record(real, manifest, source, place)


def _sizes(found: Verified) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    present = []
    for entry in found.manifest.files:
        if problem := store.size_problem(found.folder / entry.path, entry.size):
            problems += problem
        else:
            present.append(entry.path)
    return problems, present


def _hash(found: Verified, paths: list[str], workers: int, progress: Progress) -> list[str]:
    entries = {entry.path: entry for entry in found.manifest.files}
    stop = threading.Event()
    progress.total(sum(entries[path].size for path in paths), len(paths))

    def one(path: str) -> str | None:
        seen = hashing.sha256(found.folder / path, stop, lambda count: progress.moved(count, local=True))
        if seen == entries[path].sha256:
            return None
        return (
            f"{found.folder / path} has SHA-256 {seen}, wanted {entries[path].sha256}. Fetch it again: "
            "coderack weights fetch --repair"
        )

    ordered = sorted(paths, key=lambda path: -entries[path].size)
    results = hashing.each(one, ordered, workers or hashing.default_workers(), stop)
    return sorted(result for result in results if result is not None)
