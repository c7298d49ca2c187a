"""The store's folders on disk: what is there, what is being served, and the only ways in which that changes.

    STORE/MODEL/REVISION            verified; made under the name below and renamed: there as a whole or not at all
    STORE/MODEL/REVISION.partial    being fetched, never looked at by anybody else
    STORE/MODEL/current             link to a revision, replaced by rename
    STORE/MODEL/.removing.NAME      what a removal that was killed has left of one of them
    STORE/MODEL/.lock               held by whoever changes any of them

A folder that was verified carries a record: the manifest's digest, and what each file looked like then. Folders that an
image brings may be read-only, so their records lie in a folder for state.
"""

import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, StrictInt, StrictStr

from coderack.fleet import files
from coderack.spec.checked import Frozen, SpecError, validate
from coderack.weights import manifest as m
from coderack.weights.manifest import Manifest

RECORD = "coderack-verified.json"
CURRENT = "current"
PARTIAL = ".partial"
REMOVING = ".removing."
STATE = Path("/var/lib/coderack/weights")
OWN = (RECORD, m.FILE_NAME)


class Wrong(Exception):
    """What is there is not what it should be: exit code 1. One line for each problem."""


class Unverified(Wrong):
    """Nobody has verified this folder yet."""


class NotKnown(Exception):
    """It could not be found out: exit code 3."""


class Seen(Frozen):
    """What a file looked like when its checksum was right."""

    size: StrictInt
    mtime_ns: StrictInt
    inode: StrictInt


class Record(Frozen):
    schema_: Literal["coderack.weights-verified/1"] = Field(default="coderack.weights-verified/1", alias="schema")
    folder: StrictStr
    manifest_sha256: m.Sha256
    source: StrictStr
    verified_at: StrictStr
    files: dict[str, Seen]


@dataclass(frozen=True)
class Verified:
    """A folder with the manifest and record of its verification, and where these two lie."""

    folder: Path
    manifest: Manifest
    record: Record
    kept_in: Path


@dataclass(frozen=True)
class Model:
    """One model of a store."""

    store: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.store / self.name

    @property
    def current(self) -> Path:
        return self.folder / CURRENT

    def revision(self, revision: str) -> Path:
        return self.folder / revision

    def partial(self, revision: str) -> Path:
        return self.folder / f"{revision}{PARTIAL}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Raises files.Locked, OSError."""
        for place in (self.store, self.folder):
            if not place.is_dir():
                place.mkdir(parents=True)
                # The engine runs as a user of its own, and root's umask may be strict.
                place.chmod(0o755)
        with files.lock(self.folder / ".lock"):
            yield

    def current_revision(self) -> str | None:
        """What `current` points at. Raises Wrong where it is no link."""
        try:
            return self.current.readlink().name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Wrong(
                f"{self.current} is no link ({error.strerror}); wanted: a link to a revision. Move it away"
            ) from error

    def revisions(self) -> list[str]:
        """All finished ones, by name."""
        if not self.folder.is_dir():
            return []
        names = (entry.name for entry in self.folder.iterdir() if entry.is_dir() and not entry.is_symlink())
        return sorted(name for name in names if not name.endswith(PARTIAL) and not name.startswith("."))

    def partials(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        names = (entry.name for entry in self.folder.iterdir() if entry.is_dir() and not entry.is_symlink())
        return sorted(name for name in names if name.endswith(PARTIAL) and not name.startswith("."))

    def remains(self) -> list[str]:
        """Of removals that were killed: nobody uses them, and they take room."""
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in self.folder.iterdir() if entry.name.startswith(REMOVING))


def publish(model: Model, manifest: Manifest, source: str) -> Path:
    """Make the partial folder the revision's: records first, all on disk, then one rename."""
    partial, final = model.partial(manifest.revision), model.revision(manifest.revision)
    write_record(partial, manifest, source, partial, final)
    sync_tree(partial)
    partial.rename(final)
    sync(model.folder)
    return final


def use(model: Model, revision: str) -> None:
    """Point `current` at a verified revision in one step. Raises Wrong, NotKnown."""
    check(model.revision(revision), revision)
    model.current_revision()  # refuses what is no link before anything is written
    fresh = model.folder / ".current.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(revision)
    fresh.replace(model.current)
    sync(model.folder)


def write_record(folder: Path, manifest: Manifest, source: str, into: Path, final: Path | None = None) -> Record:
    """Note that `folder` was verified against `manifest`; the two files are written to `into`."""
    record = Record(
        folder=str(final or folder),
        manifest_sha256=manifest.digest,
        source=source,
        verified_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        files={entry.path: look(folder / entry.path) for entry in manifest.files},
    )
    into.mkdir(parents=True, exist_ok=True)
    files.replace(into / m.FILE_NAME, m.render(manifest))
    files.replace(into / RECORD, json.dumps(record.model_dump(by_alias=True)) + "\n")
    return record


def look(path: Path) -> Seen:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Wrong(f"{path} is no regular file; wanted: one of the model's files")
    return Seen(size=found.st_size, mtime_ns=found.st_mtime_ns, inode=found.st_ino)


def real_folder(folder: Path) -> Path:
    """Where the folder's links lead. Raises Wrong where they lead in a circle."""
    try:
        return folder.resolve()
    except RuntimeError:
        # pathlib's sign for it, before Python 3.13.
        raise Wrong(f"{folder} is a link that leads to itself; wanted: the model's folder, or a link to it") from None


def kept_in(folder: Path, state: Path = STATE) -> Path:
    """Where manifest and record of a folder lie: in it, or for one that an image brought below `state`."""
    real = real_folder(folder)
    if (real / RECORD).exists():
        return real
    # One to one, so that two folders never share a record.
    return state / "".join(char if re.match(r"[A-Za-z0-9.-]", char) else f"_{ord(char):x}_" for char in str(real))


def read_verified(folder: Path, state: Path = STATE) -> Verified:
    """Raises Wrong where there is no folder or no record of it, NotKnown where one cannot be read."""
    real = real_folder(folder)
    if not real.is_dir():
        raise Wrong(
            f"{folder} is not there{_leads_to(folder, real)}; wanted: the model's. Fetch it: coderack weights fetch"
        )
    place = kept_in(folder, state)
    try:
        manifest = m.parse(_read(place / m.FILE_NAME, folder), str(place / m.FILE_NAME))
        record = _record(_read(place / RECORD, folder), str(place / RECORD))
    except SpecError as error:
        # Not the caller's input: a disk that lost it, or another version of this program.
        anew = "fetch --repair" if place == real else "manifest --record --replace"
        raise Wrong(f"{str(error).splitlines()[0]}. It proves nothing any more: coderack weights {anew}") from None
    if record.manifest_sha256 != manifest.digest:
        raise Wrong(
            f"{place / m.FILE_NAME} has SHA-256 {manifest.digest}, verified was {record.manifest_sha256}: "
            "it was changed. Fetch the revision again: coderack weights fetch --repair"
        )
    return Verified(real, manifest, record, place)


def check(folder: Path, revision: str, digest: str | None = None, state: Path = STATE) -> Verified:
    """Whether the folder is this revision, was verified, and still has every file in full. Reads no file's content.

    Raises Wrong with one line for each problem, NotKnown.
    """
    found = read_verified(folder, state)
    problems = []
    if found.manifest.revision != revision:
        problems.append(
            f"{folder} is revision {found.manifest.revision}, wanted {revision}; fetch it and switch: "
            "coderack weights fetch --use, or correct model.revision of the profile"
        )
    if digest is not None and found.manifest.digest != digest:
        problems.append(f"{folder} was verified against manifest {found.manifest.digest}, wanted {digest}")
    for entry in found.manifest.files:
        problems += size_problem(found.folder / entry.path, entry.size)
    if problems:
        raise Wrong("\n".join(problems))
    return found


def size_problem(path: Path, size: int) -> list[str]:
    """Raises NotKnown for what cannot be looked at."""
    try:
        seen = look(path)
    except FileNotFoundError:
        return [f"{path} is missing; wanted: {size} bytes. Fetch the revision again"]
    except OSError as error:
        raise NotKnown(f"{path} cannot be looked at: {error.strerror}") from error
    if seen.size != size:
        return [f"{path} has {seen.size} bytes, wanted {size}. Fetch the revision again"]
    return []


def unexpected(folder: Path, manifest: Manifest) -> list[str]:
    """Files that nobody has verified; an engine may load whatever has the right ending."""
    known = {entry.path for entry in manifest.files}
    return sorted(path for path in walk(folder) if path not in known)


def walk(folder: Path) -> Iterator[str]:
    """Relative paths of all files but our own and those that git and download tools keep in hidden folders."""
    for where, folders, names in os.walk(folder, followlinks=False, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        # A link to a folder is not followed, so that what is behind it is not verified: it counts as a strange file.
        for name in [*names, *(name for name in folders if (Path(where) / name).is_symlink())]:
            path = (Path(where) / name).relative_to(folder).as_posix()
            if path not in OWN and not name.startswith("."):
                yield path


def remove(model: Model, name: str) -> int:
    """Delete a revision or partial folder; returns its bytes. It loses its name first: nobody finds half of it."""
    doomed = model.folder / name
    size = folder_size(doomed)
    hidden = doomed
    if not name.startswith(REMOVING):
        hidden = model.folder / f"{REMOVING}{name}"
        shutil.rmtree(hidden, ignore_errors=True)
        doomed.rename(hidden)
        sync(model.folder)
    shutil.rmtree(hidden)
    return size


def folder_size(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        total += sum((Path(where) / name).lstat().st_size for name in names)
    return total


def in_use(folder: Path, proc: Path = Path("/proc")) -> list[str]:
    """Processes that have files below `folder` open or mapped, as `name (pid)`. Raises NotKnown if any is hidden."""
    prefix = f"{folder.resolve()}/"
    found = []
    for process in proc.iterdir():
        # Init reads no weights, and in a container not even root may look at it.
        if not process.name.isdigit() or process.name == "1":
            continue
        try:
            if any(path.startswith(prefix) for path in _opened(process)):
                found.append(f"{(process / 'comm').read_text().strip()} ({process.name})")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError as error:
            raise NotKnown(f"files of process {process.name} cannot be seen; wanted: root") from error
    return sorted(found)


def _opened(process: Path) -> Iterator[str]:
    # An engine may have mapped a shard and closed it.
    for line in (process / "maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            yield fields[5]
    for handle in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(handle.readlink())


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Every folder below, so that the names of the files are on disk too. The files are the caller's."""
    for where, _, _ in os.walk(folder, topdown=False):
        sync(Path(where))


def remove_all_but(folder: Path, keep: Iterable[str]) -> None:
    """What an earlier attempt with another list of files left in a partial folder."""
    wanted = set(keep)
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where) / name
            if path.relative_to(folder).as_posix() not in wanted:
                path.unlink()


def _record(text: str, what: str) -> Record:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(what, (f"is no JSON ({error})",)) from None
    return validate(Record, data, what)


def _read(path: Path, folder: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Unverified(
            f"{folder} has never been verified ({path} is not there). For a folder that the image brings: "
            "coderack weights manifest; otherwise fetch it: coderack weights fetch"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NotKnown(f"{path} cannot be read: {error}") from error


def _leads_to(folder: Path, real: Path) -> str:
    return f" (it leads to {real})" if folder.is_symlink() else ""


def _raise(error: OSError) -> None:
    raise error
