"""Bring a revision into the store: many files at once, each resumed where its bytes end and checked, then one rename.

A partial file's length is all that is remembered of it. So nothing has to be written down while bytes flow, and a
process that is killed at any moment loses only what the kernel had not handed to it. What an earlier process left is
read and hashed again before more is appended.
"""

import os
import random
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coderack.weights import hashing, store
from coderack.weights import manifest as m
from coderack.weights.hashing import Digests, Stopped
from coderack.weights.manifest import Entry, Manifest, Wanted
from coderack.weights.sources import Source, check_revision, refused
from coderack.weights.store import Model, NotKnown, Wrong
from coderack.weights.transport import Answer, Broken

DEFAULT_PARALLEL = 16
# GB that stay free on the store's disk.
DEFAULT_KEEP_FREE = 10.0
_PAUSES_S = (1, 2, 4, 8, 16, 32)
_LONGEST_PAUSE_S = 120.0


class Progress(Protocol):
    """What the caller wants to hear, from any thread."""

    def total(self, size: int, files: int) -> None: ...

    def moved(self, count: int, *, local: bool) -> None:
        """So many bytes more are done; negative where they have to come again. `local`: they were there already."""

    def note(self, text: str) -> None: ...


class Silent:
    def total(self, size: int, files: int) -> None:
        pass

    def moved(self, count: int, *, local: bool) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True)
class Fetched:
    folder: Path
    manifest: Manifest
    trusted: str
    already_there: bool
    network_bytes: int
    refetched: tuple[str, ...]


@dataclass
class Job:
    """One fetch. Use `fetch`, which holds the lock."""

    source: Source
    model: Model
    revision: str
    digest: str | None = None
    parallel: int = DEFAULT_PARALLEL
    keep_free: float = DEFAULT_KEEP_FREE
    repair: bool = False
    dry_run: bool = False
    progress: Progress = field(default_factory=Silent)
    pauses: tuple[float, ...] = _PAUSES_S

    def __post_init__(self) -> None:
        self.stop = threading.Event()
        self.received = 0
        self.refetched: list[str] = []
        self.lock = threading.Lock()


def fetch(job: Job) -> Fetched:
    """Raises Wrong, NotKnown, SpecError, files.Locked, OSError. The store changes by whole revisions only."""
    check_revision(job.source, job.revision, job.digest)
    if job.dry_run:
        return _look(job)
    with job.model.locked():
        if not job.repair and (done := _already_there(job)) is not None:
            return done
        listing = job.source.listing(job.revision)
        partial = _partial(job)
        _check_space(job, listing.files, partial)
        store.remove_all_but(partial, [file.path for file in listing.files])
        job.progress.total(sum(file.size for file in listing.files), len(listing.files))
        entries = {}
        # Small files whose SHA-256 nobody states come first: with them the manifest is complete, so that a wrong one is
        # refused before half a terabyte has been fetched for nothing.
        unknown = [file for file in listing.files if file.sha256 is None]
        entries.update(_bring(job, partial, unknown))
        manifest = listing.manifest or _complete_manifest(job, listing.files, entries)
        if job.digest is not None and manifest.digest != job.digest:
            raise Wrong(f"{job.source.name} at {job.revision} makes manifest {manifest.digest}, pinned is {job.digest}")
        _bring(job, partial, [file for file in listing.files if file.sha256 is not None])
        _open_folders(partial)
        folder = store.publish(job.model, manifest, job.source.name)
        return Fetched(folder, manifest, listing.trusted, False, job.received, tuple(job.refetched))


def _look(job: Job) -> Fetched:
    """What a fetch begins with: whether it is there, what the source has, whether there is room. Changes nothing."""
    if not job.repair and (done := _already_there(job)) is not None:
        return done
    listing = job.source.listing(job.revision)
    _check_space(job, listing.files, job.model.partial(job.revision))
    manifest = listing.manifest or m.make(
        job.model.name,
        job.revision,
        [Entry(path=f.path, size=f.size, sha256=f.sha256 or "0" * 64) for f in listing.files],
    )
    return Fetched(job.model.revision(job.revision), manifest, listing.trusted, False, 0, ())


def _already_there(job: Job) -> Fetched | None:
    final = job.model.revision(job.revision)
    if not final.is_dir():
        return None
    try:
        found = store.check(final, job.revision, job.digest)
    except Wrong as problem:
        job.progress.note(f"{final} is there and not whole, so it is fetched again: {str(problem).splitlines()[0]}")
        return None
    return Fetched(final, found.manifest, "what was verified before", True, 0, ())


def _partial(job: Job) -> Path:
    """The folder to fetch into; a finished one that has to be repaired becomes it again, so that its bytes are used."""
    final, partial = job.model.revision(job.revision), job.model.partial(job.revision)
    if final.is_dir():
        if users := store.in_use(final):
            raise NotKnown(
                f"{final} is to be fetched again, but {', '.join(users)} reads it; stop that first (`make stop`)"
            )
        if partial.exists():
            shutil.rmtree(partial)
        final.rename(partial)
        store.sync(job.model.folder)
    partial.mkdir(parents=True, exist_ok=True)
    return partial


def _check_space(job: Job, files: Iterable[Wanted], partial: Path) -> None:
    lacking = 0
    for file in files:
        path = partial / file.path
        there = path.stat().st_size if path.is_file() else 0
        lacking += file.size - (there if there <= file.size else 0)
    disk = os.statvfs(next(folder for folder in (partial, *partial.absolute().parents) if folder.is_dir()))
    free, kept = disk.f_bavail * disk.f_frsize, int(job.keep_free * 1e9)
    if lacking and lacking + kept > free:
        raise Wrong(
            f"{job.model.store} has {free / 1e9:.1f} GB free; wanted: {lacking / 1e9:.1f} GB for {job.revision} and "
            f"{kept / 1e9:.1f} GB to stay free. Remove old revisions (coderack weights prune), or use a larger disk"
        )


def _complete_manifest(job: Job, files: Iterable[Wanted], known: dict[str, Entry]) -> Manifest:
    entries = [
        known.get(file.path) or Entry(path=file.path, size=file.size, sha256=file.sha256 or "") for file in files
    ]
    return m.make(job.model.name, job.revision, entries)


def _bring(job: Job, partial: Path, files: list[Wanted]) -> dict[str, Entry]:
    # Largest first: the last one to end should not be one that began late.
    ordered = sorted(files, key=lambda file: -file.size)
    job.stop.clear()
    return {
        entry.path: entry
        for entry in hashing.each(lambda file: _one(job, partial, file), ordered, job.parallel, job.stop)
    }


def _one(job: Job, partial: Path, file: Wanted) -> Entry:
    path = partial / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    for again in (False, True):
        digests = _complete(job, path, file)
        if _matches(digests, file):
            return Entry(path=file.path, size=file.size, sha256=digests.sha256)
        path.unlink()
        job.progress.moved(-file.size, local=True)
        wanted, seen = (file.sha256, digests.sha256) if file.sha256 else (file.git_sha1, digests.git_sha1)
        problem = f"{file.path}: checksum {seen}, wanted {wanted}"
        if again:
            raise Wrong(
                f"{problem}, twice. {job.source.name} holds a bad copy, or this node's disk or memory corrupts data; "
                "nothing was switched. Look at the source's file, then at the kernel log (dmesg)"
            )
        job.progress.note(f"{problem}; it is fetched again")
        with job.lock:
            job.refetched.append(file.path)
    raise AssertionError


def _matches(digests: Digests, file: Wanted) -> bool:
    return digests.sha256 == file.sha256 if file.sha256 else digests.git_sha1 == file.git_sha1


def _complete(job: Job, path: Path, file: Wanted) -> Digests:
    """Bring the file to its size; returns the digests of all that is in it."""
    digests = Digests(file.size, git=file.sha256 is None)
    with path.open("ab", buffering=0) as output:
        if os.fstat(output.fileno()).st_size > file.size:
            output.truncate(0)
        at = hashing.feed(path, digests, job.stop, lambda count: job.progress.moved(count, local=True))
        failures = 0
        while at < file.size:
            try:
                begun = at
                for chunk in _stream(job, file, at):
                    output.write(chunk)
                    digests.update(chunk)
                    at += len(chunk)
                    job.progress.moved(len(chunk), local=False)
                if at < file.size:
                    raise Broken("the answer ended early")
            except Broken as error:
                failures = 1 if at > begun else failures + 1
                _pause(job, file, failures, error)
        # Readable by the engine's own user, whatever the umask is; with the bytes on disk before anybody finds it.
        os.fchmod(output.fileno(), 0o644)
        os.fsync(output.fileno())
    return digests


def _stream(job: Job, file: Wanted, at: int) -> Iterable[bytes]:
    url, headers = job.source.address(job.revision, file.path)
    with job.source.transport.get(url, {**headers, "Range": f"bytes={at}-"}) as answer:
        _check_answer(job, file, at, answer)
        # A server that knows no ranges begins anew; what is there already is passed over.
        skip = at if answer.status == 200 else 0
        left = file.size - at
        for chunk in answer.chunks:
            if job.stop.is_set():
                raise Stopped
            # Not before: an answer that is read to its end leaves a connection for the next file.
            if not left:
                break
            with job.lock:
                job.received += len(chunk)
            if skip:
                passed = min(skip, len(chunk))
                skip -= passed
                chunk = chunk[passed:]  # noqa: PLW2901 - the rest of it
            # Bytes beyond the stated size are of no use; the checksum says whether the others are right.
            if chunk:
                yield chunk[:left]
                left -= min(left, len(chunk))


def _check_answer(job: Job, file: Wanted, at: int, answer: Answer) -> None:
    what = f"{job.source.name} at {job.revision}: {file.path}"
    if answer.status in (408, 425, 429) or answer.status >= 500:
        after = answer.headers.get("retry-after", "")
        raise Broken(f"HTTP {answer.status}", min(float(after), _LONGEST_PAUSE_S) if after.isdecimal() else None)
    if answer.status == 416:
        raise Wrong(f"{what} is shorter than the {file.size} bytes of the list; the source is not whole")
    if answer.status not in (200, 206):
        raise refused(answer.status, what)
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise NotKnown(
            f"{what}: comes as {answer.headers['content-encoding']}, wanted: as it is. Is a proxy in between?"
        )
    if answer.status == 206:
        span = answer.headers.get("content-range", "")
        if not span.startswith(f"bytes {at}-") or not span.endswith((f"/{file.size}", "/*")):
            raise Wrong(f"{what}: the server sends {span or 'an unknown part'}, wanted bytes from {at} of {file.size}")


def _pause(job: Job, file: Wanted, failures: int, error: Broken) -> None:
    if failures > len(job.pauses):
        raise NotKnown(
            f"{job.source.name}: {file.path} failed {failures} times in a row ({error}); "
            "what is there is kept, run this again"
        ) from error
    seconds = error.pause_s or job.pauses[failures - 1] * random.uniform(0.8, 1.2)  # noqa: S311
    job.progress.note(f"{file.path}: {error}; again in {seconds:.0f} s")
    if job.stop.wait(seconds):
        raise Stopped


def _open_folders(folder: Path) -> None:
    for where, _, _ in os.walk(folder):
        Path(where).chmod(0o755)
