"""Files that are there as a whole or not at all."""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coderack.spec.checked import SpecError

# No writer takes this long; what is older was left by one that was killed.
_LEFT_BEHIND_S = 600


def is_there(path: Path) -> bool:
    """Raises SpecError for a directory, pipe, link or device: reading could wait for ever, writing destroy it."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise SpecError(str(path), ("is no regular file; move it away first",))
    return True


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Write `text` to `path` so that whoever reads sees the old content or the new one, also after a power cut."""
    _remove_left_behind(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path))
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Locked(Exception):
    """Another run holds the lock."""


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold `path` as a lock for this process; it goes with the process, however that ends. Raises Locked."""
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(f"{path} is held by another run of this command; wait until that has ended") from None
        yield


def _prefix(path: Path) -> str:
    # Ansible passes over what begins with a dot when it reads a folder of inventories.
    return f".{path.name}."


def _remove_left_behind(path: Path) -> None:
    for entry in path.parent.glob(f"{_prefix(path)}*"):
        try:
            if time.time() - entry.lstat().st_mtime > _LEFT_BEHIND_S:
                entry.unlink()
        except FileNotFoundError:
            continue
