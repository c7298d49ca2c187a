"""Keeps the history on disk: one file of lines, each with a checksum, appended to and now and then rewritten whole.

A line torn by a crash or a full disk costs that line only. The file is bounded: beyond MAX_BYTES it is replaced by the
fewest lines that say the same.
"""

import contextlib
import fcntl
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coderack.health.history import History

FILE = "history"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Loaded:
    history: History
    damaged: int = 0  # lines that could not be read
    problem: str = ""  # why the file as a whole could not be


def load(directory: Path) -> Loaded:
    """The history in `directory`; an empty one when there is no file yet."""
    path = directory / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Loaded(History())
    except OSError as error:
        return Loaded(History(), problem=f"{path} cannot be read: {error.strerror}")
    history, damaged = History(), 0
    for line in data.split(b"\n"):
        if line and not _take(history, line):
            damaged += 1
    return Loaded(history, damaged)


def _take(history: History, line: bytes) -> bool:
    checksum, _, body = line.partition(b" ")
    if checksum != _checksum(body):
        return False
    try:
        history.advance(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        # In full, and yet no record of ours: another version's.
        return False
    return True


def append(directory: Path, records: Iterable[Mapping[str, Any]], history: History, rewrite: bool = False) -> None:
    """Add `records`; raises OSError when that is not possible. `history` already contains them.

    `rewrite` replaces the file even when it is small: after damage, so that it is reported once.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    path = directory / FILE
    data = b"".join(_line(record) for record in records)
    if rewrite or _size(path) + len(data) > MAX_BYTES:
        _replace(path, b"".join(_line(record) for record in history.records()))
        return
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        # A line without an end is a torn one: ours must not be glued to it.
        if not _ends_with_newline(path):
            data = b"\n" + data
        written = os.write(handle, data)
        if written != len(data):
            raise OSError(28, f"only {written} of {len(data)} bytes were written")
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(directory: Path, seconds: float = 0.0) -> Iterator[bool]:
    """Whether this process has the history to itself; two passes at once would count increases twice."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError:
        yield True  # nothing can be written there, and that is reported where it is tried
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return _checksum(body) + b" " + body + b"\n"


def _checksum(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o640)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
