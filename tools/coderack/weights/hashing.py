"""Checksums of large files, several at once. hashlib lets other threads run while it works, so threads are enough."""

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

# Large enough that Python's own share does not count, small enough to stay in a core's cache with its neighbours.
BLOCK = 1 << 20
# One core hashes 1 to 2 GB/s, an array of eight NVMe disks reads about ten times that; more cores are for the engines.
MOST_WORKERS = 16

Item = TypeVar("Item")
Result = TypeVar("Result")
Read = Callable[[int], None]


class Stopped(Exception):
    """Another thread has failed, or the user wants to end: what this one did is not needed any more."""


def default_workers() -> int:
    """Half of the cores this process may use: the node may be serving meanwhile."""
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // 2))


class Digests:
    """SHA-256, and git's SHA-1 of a blob of `size` bytes where that is asked for."""

    def __init__(self, size: int, git: bool = False) -> None:
        self._sha256 = hashlib.sha256()
        # Git's name for the content, not a protection: what it protects is small, and the source is trusted for it.
        self._git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if git else None

    def update(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def git_sha1(self) -> str | None:
        return self._git.hexdigest() if self._git else None


def feed(path: Path, digests: Digests, stop: threading.Event, read: Read = lambda _: None) -> int:
    """Run the whole file through `digests`; returns its bytes. Raises OSError, Stopped."""
    buffer = bytearray(BLOCK)
    view = memoryview(buffer)
    total = 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            if stop.is_set():
                raise Stopped
            digests.update(view[:count])
            total += count
            read(count)
    return total


def sha256(path: Path, stop: threading.Event, read: Read = lambda _: None) -> str:
    digests = Digests(0)
    feed(path, digests, stop, read)
    return digests.sha256


def each(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, stop: threading.Event
) -> Iterator[Result]:
    """The results of `work` for each item as they come, by so many threads; the first exception ends all of them.

    Sets `stop` when it ends early, also by Ctrl-C, so that no thread keeps the process alive for long.
    """
    results: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()

    def one(item: Item) -> None:
        try:
            results.put(work(item))
        except BaseException as error:
            results.put(error)

    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="weights")
    try:
        count = len([pool.submit(one, item) for item in items])
        for _ in range(count):
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
