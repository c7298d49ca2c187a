"""SIGKILL at any moment of a fetch: it goes on where the bytes end, and nothing unverified is ever to be found."""

import hashlib
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coderack.weights import store
from coderack.weights.store import Model

from .cloud import CREDENTIALS
from .weights import (
    COMMIT,
    NAME,
    OLD,
    Served,
    content,
    from_bucket_and_use,
    from_hub_and_use,
    hub,
    manifest_of,
    published,
    upload,
)

KILLS = 20
# Bytes that a server has sent and a killed client has not written: what was in the sockets' buffers.
LOST_PER_CONNECTION = 16 << 10

# Processes that have imported everything, so that a fetch begins at once; none of this process's threads is in them.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([from_hub_and_use.__module__])


@contextmanager
def watched(model: Model, truth: Mapping[str, Mapping[str, bytes]]) -> Iterator[list[str]]:
    """Look at the store as fast as possible, as an engine would; yields the list of whatever was wrong."""
    digests = {
        revision: {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
        for revision, files in truth.items()
    }
    wrong: list[str] = []
    looks = 0
    ended = threading.Event()

    def look() -> None:
        nonlocal looks
        while not ended.is_set():
            current = model.current.readlink().name
            for revision in {current, *model.revisions()}:
                folder = model.revision(revision)
                for path, digest in digests[revision].items():
                    try:
                        data = (folder / path).read_bytes()
                    except OSError as error:
                        wrong.append(f"{revision}/{path}: {error}")
                        continue
                    if hashlib.sha256(data).hexdigest() != digest:
                        wrong.append(f"{revision}/{path}: {len(data)} bytes that are not the right ones")
            looks += 1
            ended.wait(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield wrong
    finally:
        ended.set()
        thread.join()
    assert looks > KILLS


def killed(
    work: Callable[..., None], arguments: tuple[Any, ...], after_s: float, begun: Callable[[], bool] = lambda: True
) -> bool:
    """Run it in a process and kill that, so long after it has begun; returns whether it was still at work."""
    process = PROCESSES.Process(target=work, args=arguments, daemon=True)
    process.start()
    until = time.monotonic() + 10
    while not begun() and time.monotonic() < until:
        process.join(0.001)
    process.join(after_s)
    alive = process.is_alive()
    process.kill()
    process.join()
    return alive


def finish(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    process = PROCESSES.Process(target=work, args=arguments, daemon=True)
    process.start()
    process.join(30)
    assert process.exitcode == 0


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1  # it has come that far, or the test proves nothing
    path.write_bytes(data)


def test_twenty_kills_and_two_corrupt_shards_cost_bounded_bytes_and_are_never_served(tmp_path: Path) -> None:
    old, new = content(shards=2, size=1 << 10, seed=2), content(shards=4, size=2 << 20)
    first, second, *_ = [path for path in new if path.endswith(".safetensors")]
    whole, again = sum(map(len, new.values())), len(new[first]) + len(new[second])
    model = published(tmp_path, old, OLD)
    moments = random.Random(7)  # noqa: S311
    with hub(Served(new, bytes_per_s=2e6)) as served, watched(model, {OLD: old, COMMIT: new}) as wrong:
        arguments = (served.url, tmp_path)
        for kill in range(KILLS):
            # By what has come, not by time, so that a slow machine gets as far; one in four before the first byte.
            served.asked.clear()
            at = served.sent.total() + moments.choice((0, 1, 1, 1)) * moments.uniform(0, 0.08) * whole
            begun = partial(reached, served, at)
            assert killed(from_hub_and_use, arguments, moments.uniform(0, 0.01), begun)
            if kill == KILLS // 2:
                # On this node's disk, in what has been fetched; and on the way, in the last byte of another shard.
                flip(model.partial(COMMIT) / first)
                served.corrupt[second] = 99
        assert model.current_revision() == OLD
        served.bytes_per_s = 0
        served.corrupt[second] = 1
        finish(from_hub_and_use, arguments)
    assert wrong == []
    assert model.current_revision() == COMMIT
    # Both shards came twice, at most; all else once, but for what was under way at the moments of the kills.
    assert served.sent.total() - whole - again <= KILLS * 4 * LOST_PER_CONNECTION
    assert served.sent[first] > len(new[first])
    assert served.sent[second] > len(new[second])


def reached(served: Served, sent: float) -> bool:
    return bool(served.asked) and served.sent.total() >= sent


@pytest.mark.usefixtures("aws")
def test_a_fetch_from_s3_that_is_killed_goes_on_and_serves_nothing_unverified(aws: str, tmp_path: Path) -> None:
    old, new = content(shards=2, size=1 << 10, seed=2), content(shards=6, size=4 << 20)
    model = published(tmp_path / "store", old, OLD)
    digest = upload(new)
    environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": aws}
    arguments = (environment, f"s3://weights/{NAME}", tmp_path / "store", digest)
    moments = random.Random(7)  # noqa: S311
    with watched(model, {OLD: old, COMMIT: new}) as wrong:
        alive = [killed(from_bucket_and_use, arguments, moments.uniform(0.05, 0.4)) for _ in range(5)]
        for path in list(model.partial(COMMIT).rglob("*-00001-of-*.safetensors")):
            flip(path)
        finish(from_bucket_and_use, arguments)
    assert any(alive)
    assert wrong == []
    assert model.current_revision() == COMMIT
    assert store.check(model.current, COMMIT, digest).manifest == manifest_of(new)
