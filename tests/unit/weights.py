"""A model in small, a Hub that serves it as slowly and as badly as a test wants, and fetches that can be killed."""

import hashlib
import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from coderack.weights import manifest as m
from coderack.weights import store
from coderack.weights.fetch import Fetched, Job, fetch
from coderack.weights.manifest import Entry, Manifest
from coderack.weights.sources import Bucket, Hub
from coderack.weights.store import Model
from coderack.weights.transport import Web

REPOSITORY = "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"
COMMIT, OLD = "1" * 40, "0" * 40
NAME = "qwen3-coder-480b-fp8"


def content(shards: int = 4, size: int = 1 << 20, seed: int = 1) -> dict[str, bytes]:
    """Files as in a repository: shards of weights and small ones."""
    source = random.Random(seed)  # noqa: S311
    files = {f"model-{n:05}-of-{shards:05}.safetensors": source.randbytes(size) for n in range(1, shards + 1)}
    return {"config.json": b'{"architectures": ["Qwen3MoeForCausalLM"]}', "original/params.json": b"{}", **files}


def manifest_of(files: Mapping[str, bytes], revision: str = COMMIT) -> Manifest:
    entries = [Entry(path=p, size=len(d), sha256=hashlib.sha256(d).hexdigest()) for p, d in files.items()]
    return m.make(NAME, revision, entries)


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def published(root: Path, files: Mapping[str, bytes], revision: str = COMMIT, *, current: bool = True) -> Model:
    """A store with this revision in it, verified."""
    model = Model(root, NAME)
    write(model.partial(revision), files)
    store.publish(model, manifest_of(files, revision), "test")
    if current:
        store.use(model, revision)
    return model


def upload(files: Mapping[str, bytes]) -> str:
    """Fill a bucket of the emulator as an operator would; returns the manifest's digest."""
    import boto3  # noqa: PLC0415 - this file also runs where it is not

    s3 = boto3.client("s3", region_name="us-west-2")
    s3.create_bucket(Bucket="weights", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    made = manifest_of(files)
    for path, data in {**files, m.FILE_NAME: m.render(made).encode()}.items():
        s3.put_object(Bucket="weights", Key=f"{NAME}/{COMMIT}/{path}", Body=data)
    return made.digest


@dataclass
class Served:
    """What the Hub does. `sent` counts bytes of files by path, as the server handed them to the kernel."""

    files: dict[str, bytes]
    commit: str = COMMIT
    bytes_per_s: float = 0.0
    ranges: bool = True
    checksums: bool = True
    # By path: how many answers have a wrong byte, end early, or are an error with this status.
    corrupt: Counter[str] = field(default_factory=Counter)
    # Bytes come without a length and without an end.
    endless: bool = False
    cut: Counter[str] = field(default_factory=Counter)
    busy: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, str]] = field(default_factory=list)
    listing: Any = None
    # Where files really are, as on a Hub whose files lie in a store of their own.
    elsewhere: str = ""
    tokens: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def take(self, faults: Counter[str], path: str) -> bool:
        with self.lock:
            faults[path] -= 1
            return faults[path] >= 0


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that are killed are what this is for; anything else is a bug in this file.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def hub(served: Served, port: int = 0) -> Iterator[Served]:
    server = _Server(("127.0.0.1", port), _handler(served))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def siblings(served: Served) -> list[dict[str, Any]]:
    """The list as huggingface.co gives it with ?blobs=true: LFS files have a SHA-256, others git's name of the blob."""
    found = []
    for path, data in served.files.items():
        entry: dict[str, Any] = {"rfilename": path, "size": len(data)}
        if path.endswith(".safetensors"):
            if served.checksums:
                entry["blobId"] = git_name(b"pointer")
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
        else:
            entry["blobId"] = git_name(data)
        found.append(entry)
    return [*found, {"rfilename": ".gitattributes", "size": 1, "blobId": "0" * 40}]


def _handler(served: Served) -> type[BaseHTTPRequestHandler]:
    api = f"/api/models/{REPOSITORY}/revision/"
    files = f"/{REPOSITORY}/resolve/{served.commit}/"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            # What is in the kernel's hands when a client dies counts as sent; there should be little of it.
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            super().setup()

        def do_GET(self) -> None:
            served.asked.append((self.path, self.headers.get("Range", "")))
            served.tokens.append(self.headers.get("Authorization", ""))
            try:
                if self.path.startswith(api):
                    known = self.path.removeprefix(api).split("?")[0] in (served.commit, "main")
                    body = {"sha": served.commit, "siblings": siblings(served)}
                    self._whole(200 if known else 404, json.dumps(served.listing or body).encode())
                else:
                    self._file(self.path.removeprefix(files))
            except ConnectionError:
                self.close_connection = True

        def _whole(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _file(self, path: str) -> None:
            if served.elsewhere:
                self.send_response(302)
                self.send_header("Location", f"{served.elsewhere}{files}{path}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if served.take(served.busy, path):
                self._whole(503, b"")
                return
            data = served.files.get(path)
            if data is None:
                self._whole(404, b"")
                return
            if served.take(served.corrupt, path):
                data = data[:-1] + bytes([data[-1] ^ 1])
            if served.endless:
                self.send_response(200)
                self.end_headers()
                while True:
                    self._body(path, data)
            first = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if served.ranges else 0
            self.send_response(206 if served.ranges else 200)
            self.send_header("Content-Length", str(len(data) - first))
            if served.ranges:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            end = (first + len(data)) // 2 if served.take(served.cut, path) else len(data)
            self._body(path, data[first:end])
            if end < len(data):
                self.close_connection = True

        def _body(self, path: str, data: bytes) -> None:
            step = 4096 if served.bytes_per_s else 1 << 20
            for at in range(0, len(data), step):
                piece = data[at : at + step]
                self.wfile.write(piece)
                with served.lock:
                    served.sent[path] += len(piece)
                if served.bytes_per_s:
                    time.sleep(len(piece) / served.bytes_per_s)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def from_hub(url: str, root: Path, *, parallel: int = 4, digest: str | None = None, repair: bool = False) -> Fetched:
    source = Hub(Web(parallel), REPOSITORY, url, None)
    job = Job(source, Model(root, NAME), COMMIT, digest, parallel, 0.0, repair, pauses=(0.01, 0.01, 0.01))
    return fetch(job)


def from_hub_and_use(url: str, root: Path) -> None:
    """In a process of its own, which may be killed."""
    from_hub(url, root)
    store.use(Model(root, NAME), COMMIT)


def from_bucket_and_use(environment: Mapping[str, str], url: str, root: Path, digest: str) -> None:
    """In a process of its own, which may be killed."""
    os.environ.update(environment)
    fetch(Job(Bucket(Web(2), url, "us-west-2", digest), Model(root, NAME), COMMIT, digest, 2, 0.0))
    store.use(Model(root, NAME), COMMIT)


if __name__ == "__main__":
    # As a program of its own, on the port that is given, for the role's scenario.
    with hub(Served(content(shards=2, size=100_000)), int(sys.argv[1])):
        threading.Event().wait()
