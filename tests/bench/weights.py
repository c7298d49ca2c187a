"""How fast `coderack weights` reads, fetches and checks, on the disk below DIR.

    .build/venv/bin/python tests/bench/weights.py [--directory DIR] [--gib 4] [--workers 2]

Prints MB/s (10^6 bytes) of: reading the files alone, hashing memory on so many cores, `verify` with a cold page cache,
and a fetch from another process by `serve` on the loopback interface, which shares the cores with its server;
and the seconds of `verify --quick` and `check`.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / path) for path in ("tools", "tests")]

from bench.measure import verdict  # noqa: E402

from coderack.weights import verify  # noqa: E402
from coderack.weights.hashing import BLOCK  # noqa: E402

COMMIT, NAME, FILES = "1" * 40, "bench", 8
PORT = 13381


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--gib", type=float, default=4.0)
    options.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0))))
    wanted = options.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.directory) as name:
        return measure(Path(name), int(wanted.gib * (1 << 30)), wanted.workers)


def measure(root: Path, size: int, workers: int) -> int:
    model, state = fill(root / "image", size), ["--state", str(root / "state")]
    cpu = speed("hashing memory, all workers", size, lambda: hash_memory(size, workers))
    cold(model)
    disk = speed("reading alone, cold", size, lambda: read_all(model, workers))
    run("manifest", str(model), "--revision", COMMIT, "--model", NAME, "--record", *state)
    cold(model)
    # By its own clock: without the start of Python, which takes half a second and does not grow with the model.
    report = json.loads(run("verify", str(model), "--workers", str(workers), "--json", *state))
    print(f"{'verify, cold':36} {report['mb_per_s']:6} MB/s")
    quick = timed("verify --quick", lambda: run("verify", str(model), "--quick", *state))
    check = timed("check", lambda: run("check", str(model), "--revision", COMMIT, *state))
    copy(root, model, size, state)
    possible = min(cpu, disk)
    return verdict(
        {
            f"verify reads at 70 % or more of what disk and cores allow ({possible:.0f} MB/s)": report["mb_per_s"]
            >= 0.7 * possible,
            "check and verify --quick take at most 1.5 s": max(quick, check) <= 1.5,
        }
    )


def fill(folder: Path, size: int) -> Path:
    folder.mkdir()
    block = os.urandom(64 << 20)
    for number in range(FILES):
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            for _ in range(max(1, size // FILES // len(block))):
                file.write(block)
            os.fsync(file.fileno())
    return folder


def cold(folder: Path) -> None:
    """Drop the folder's pages, so that the disk is read."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_all(folder: Path, workers: int) -> None:
    def one(path: Path) -> None:
        buffer = bytearray(BLOCK)
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, folder.iterdir()))


def hash_memory(size: int, workers: int) -> None:
    block = os.urandom(BLOCK)

    def one(_: int) -> None:
        digest = hashlib.sha256()
        for _ in range(size // workers // BLOCK):
            digest.update(block)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(workers)))


def copy(root: Path, model: Path, size: int, state: list[str]) -> None:
    """From a process that runs `serve`, as the second node does."""
    digest = verify.from_files(model, NAME, COMMIT).digest
    token = root / "token"
    token.write_text("a-token-of-the-bench")
    words = ["serve", str(model), "--address", "127.0.0.1", "--port", str(PORT), "--idle", "3", *state]
    server = subprocess.Popen([*program(), *words, "--token-file", str(token)], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    server.stderr.readline()
    drained = threading.Thread(target=server.stderr.read, daemon=True)
    drained.start()
    source = ["--peer", f"http://127.0.0.1:{PORT}", "--token-file", str(token), "--manifest-sha256", digest]
    place = ["--store", str(root / "store"), "--keep-free", "0"]
    answer = json.loads(run("fetch", NAME, COMMIT, *source, *place, "--json"))
    print(f"{'fetch from serve, with fsync':36} {size / answer['seconds'] / 1e6:6.0f} MB/s")
    server.wait()


def speed(name: str, size: int, work: Callable[[], None]) -> float:
    begun = time.monotonic()
    work()
    result = size / (time.monotonic() - begun) / 1e6
    print(f"{name:36} {result:6.0f} MB/s")
    return result


def timed(name: str, work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    print(f"{name:36} {seconds:6.2f} s")
    return seconds


def program() -> list[str]:
    return [sys.executable, "-m", "coderack.cli.main", "weights"]


def run(*words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}
    done = subprocess.run([*program(), *words], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"weights {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
