"""Which files a revision of a model consists of, with size and SHA-256 each; pure.

The manifest's own digest stands for all of them: who pins it has pinned every byte.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StrictInt, StrictStr, StringConstraints, field_validator

from coderack.spec.checked import Frozen, SpecError, validate

# Beside the weights, in the folder and in the bucket. No program that loads models looks at a name it does not know.
FILE_NAME = "coderack-manifest.json"
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# Names of folders, and parts of addresses: nothing that a shell, a URL or a path would read as something else.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# What a listing of half a million files would be: not a model.
_MOST_FILES = 100_000
# One wrong field is wrong in every file; a screen full of them says no more.
_MOST_PROBLEMS = 10


@dataclass(frozen=True)
class Wanted:
    """A file as its source describes it. `sha256` or `git_sha1` (of git's blob) is what it has to match."""

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None


class Entry(Frozen):
    """One file; `path` is relative to the model's folder, `size` in bytes."""

    path: StrictStr
    size: StrictInt = Field(ge=0)
    sha256: Sha256

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        return checked_path(path)


class Manifest(Frozen):
    schema_: Literal["coderack.weights-manifest/1"] = Field(default="coderack.weights-manifest/1", alias="schema")
    model: StrictStr
    revision: StrictStr
    files: tuple[Entry, ...] = Field(min_length=1, max_length=_MOST_FILES)

    @field_validator("files")
    @classmethod
    def _consistent(cls, files: tuple[Entry, ...]) -> tuple[Entry, ...]:
        check_paths(entry.path for entry in files)
        return files

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest as `render` writes it."""
        return hashlib.sha256(render(self).encode()).hexdigest()

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        return tuple(Wanted(entry.path, entry.size, entry.sha256) for entry in self.files)


def make(model: str, revision: str, files: Iterable[Entry]) -> Manifest:
    ordered = tuple(sorted(files, key=lambda entry: entry.path))
    return Manifest(model=model, revision=revision, files=ordered)


def render(manifest: Manifest) -> str:
    """The one way to write it, so that equal manifests have equal digests."""
    return json.dumps(manifest.model_dump(by_alias=True), indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def parse(text: str, what: str) -> Manifest:
    """Raises SpecError; `what` names where the text came from."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(what, (f"is no JSON ({error}); wanted: what `coderack weights manifest` writes",)) from None
    files = data.get("files") if isinstance(data, dict) else None
    # Before it is validated, which takes a hundred times the memory of the text.
    if isinstance(files, list) and len(files) > _MOST_FILES:
        raise SpecError(what, (f"has {len(files)} files; wanted: those of a model, {_MOST_FILES} at most",))
    try:
        return validate(Manifest, data, what)
    except SpecError as error:
        more = len(error.problems) - _MOST_PROBLEMS
        if more <= 0:
            raise
        raise SpecError(what, (*error.problems[:_MOST_PROBLEMS], f"and {more} problems more")) from None


def checked_path(path: str) -> str:
    """The path if it is a plain one below the model's folder. Raises ValueError."""
    parts = PurePosixPath(path).parts
    plain = path == "/".join(parts) and path.isprintable() and "\\" not in path and len(path) <= 1024
    if not plain or not parts or path.startswith("/") or ".." in parts or any(len(part) > 255 for part in parts):
        raise ValueError(f"path {path[:80]!r} is not a plain one below the model's folder, so it is not written")
    return path


def check_paths(paths: Iterable[str]) -> None:
    """Raises ValueError where two entries want the same place."""
    seen: set[str] = set()
    for path in paths:
        checked_path(path)
        if path in seen:
            raise ValueError(f"path {path!r} is there twice, wanted once")
        seen.add(path)
    for path in seen:
        parent = path
        while parent := parent.rpartition("/")[0]:
            if parent in seen:
                raise ValueError(f"path {parent} is a file and the folder of {path}")


def check_name(name: str, what: str) -> str:
    """Raises SpecError for what cannot be the name of a folder in the store."""
    if not _NAME.fullmatch(name) or name.endswith(".partial") or name == "current":
        wish = "letters, digits, dots, dashes and underscores; not `current`, and no .partial"
        raise SpecError(what, (f"is {name[:80]!r}; wanted: {wish}",))
    return name


def is_commit(revision: str) -> bool:
    """Whether the revision is a whole commit hash, which cannot move."""
    return _COMMIT.fullmatch(revision) is not None
