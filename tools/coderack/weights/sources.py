"""Where weights come from. Each source says which files there are and gives an address for each; fetch moves the bytes.

What is trusted without a pinned manifest digest: of a Hub its TLS certificate and its list of checksums for the commit;
of a bucket whoever may write to it. Another node is trusted for nothing: there a digest is required.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from coderack.clients import aws
from coderack.spec.checked import SpecError
from coderack.weights import manifest as m
from coderack.weights.manifest import Manifest, Wanted
from coderack.weights.store import OWN, NotKnown, Wrong
from coderack.weights.transport import Broken, Direct, Transport, Web

DEFAULT_ENDPOINT = "https://huggingface.co"
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/((?:[A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+)/?")
# A manifest of 100,000 files has 20 MB.
_LARGEST_LIST = 64 << 20
# Signed for one request at a time, which begins at once.
_SIGNED_FOR_S = 900
Headers = Mapping[str, str]


@dataclass(frozen=True)
class Listing:
    """The files of a revision. `manifest` is None while small files have no SHA-256 yet, as on a Hub."""

    files: tuple[Wanted, ...]
    manifest: Manifest | None
    trusted: str


class Source(Protocol):
    name: str
    transport: Transport

    def commit_of(self, revision: str) -> str:
        """What to use instead of a name that can move, in words."""
        ...

    def listing(self, revision: str) -> Listing: ...

    def address(self, revision: str, path: str) -> tuple[str, Headers]: ...


class Hub:
    """A Hugging Face Hub or a mirror that has its API: <endpoint>/api/models and <endpoint>/<repository>/resolve."""

    def __init__(self, web: Web, repository: str, endpoint: str, token: str | None) -> None:
        if not _REPOSITORY.fullmatch(repository) or ".." in repository:
            raise SpecError("--hub", (f"is {repository[:80]!r}; wanted: owner/name, as in Qwen/Qwen3-Coder-30B",))
        self.transport: Transport = web
        self._repository = repository
        self._endpoint = checked_url(endpoint, "endpoint")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.name = f"{self._endpoint}/{repository}"

    def listing(self, revision: str) -> Listing:
        """Raises SpecError for a revision that is not there, NotKnown."""
        data = self._look_up(revision, "?blobs=true")
        if data.get("sha") != revision:
            raise NotKnown(
                f"{self.name}: asked for {revision}, the answer is about {data.get('sha')}; is this the Hub's API?"
            )
        trusted = f"the list of checksums of {self._endpoint} for commit {revision}"
        if self._endpoint.startswith("http:"):
            trusted += ", which anybody on the way could change: it comes without TLS"
        return Listing(self._files(data), None, trusted)

    def commit_of(self, revision: str) -> str:
        try:
            return f"today it is {self._look_up(revision, '')['sha']}: put that into the profile (model.revision)"
        except (NotKnown, SpecError, LookupError) as error:
            return f"it could not be looked up ({error})"

    def _look_up(self, revision: str, query: str) -> Mapping[str, Any]:
        url = f"{self._endpoint}/api/models/{self._repository}/revision/{quote(revision, safe='')}{query}"
        return _json(_get(self.transport, url, self._headers, f"{self.name} at {revision}"), self.name)

    def address(self, revision: str, path: str) -> tuple[str, Headers]:
        return f"{self._endpoint}/{self._repository}/resolve/{revision}/{quote(path)}", self._headers

    def _files(self, data: Mapping[str, Any]) -> tuple[Wanted, ...]:
        with _shape(self.name):
            found = tuple(_wanted(one) for one in data["siblings"] if not _hidden(one["rfilename"]))
            m.check_paths(file.path for file in found)
        lacking = [file.path for file in found if file.sha256 is None and file.git_sha1 is None]
        if lacking or not found:
            what = f"no checksum for {lacking[0]}" if lacking else "no file"
            raise NotKnown(
                f"{self.name}: the list has {what}; what cannot be checked is not fetched. Ask the Hub, or a bucket"
            )
        return found


class Bucket:
    """A folder of an S3 bucket: s3://bucket/prefix/<revision>/, with the manifest beside the files."""

    def __init__(self, web: Web, url: str, region: str | None, digest: str | None) -> None:
        match = _BUCKET.fullmatch(url)
        if match is None:
            raise SpecError("--s3", (f"is {url[:80]!r}; wanted: s3://bucket/folder, whose folders are revisions",))
        self._bucket, self._prefix = match.groups()
        self.transport: Transport = web
        self._digest = digest
        # Version 4: S3 refuses older signatures for objects that are encrypted with a key of KMS.
        self._client = aws.client("s3", region, signature="s3v4")
        self.name = f"s3://{self._bucket}/{self._prefix}"

    def commit_of(self, revision: str) -> str:
        return "or pin what is in the bucket with --manifest-sha256"

    def listing(self, revision: str) -> Listing:
        text = _get(self.transport, *self.address(revision, m.FILE_NAME), f"{self.name}/{revision}/{m.FILE_NAME}")
        return _by_manifest(text, revision, self._digest, f"whoever may write to {self.name}", self.name)

    def address(self, revision: str, path: str) -> tuple[str, Headers]:
        key = {"Bucket": self._bucket, "Key": f"{self._prefix}/{revision}/{path}"}
        with aws.errors(f"{self.name}/{revision}/{path}"):
            return str(self._client.generate_presigned_url("get_object", Params=key, ExpiresIn=_SIGNED_FOR_S)), {}


class Peer:
    """Another node on which `coderack weights serve` runs."""

    def __init__(self, url: str, token: str | None, digest: str | None) -> None:
        if digest is None or token is None:
            lacking = "--manifest-sha256" if digest is None else "--token-file"
            raise SpecError("--peer", (f"needs {lacking}: what another node sends is trusted for nothing else",))
        self.transport: Transport = Direct()
        self._digest = digest
        self._headers = {"Authorization": f"Bearer {token}"}
        self.name = checked_url(url, "--peer")
        if urlsplit(self.name).scheme != "http":
            raise SpecError("--peer", (f"is {self.name}; wanted: http://, as `coderack weights serve` speaks it",))

    def commit_of(self, revision: str) -> str:
        return "or pin what the other node has with --manifest-sha256"

    def listing(self, revision: str) -> Listing:
        text = _get(self.transport, *self.address(revision, m.FILE_NAME), f"{self.name} at {revision}")
        return _by_manifest(text, revision, self._digest, "", self.name)

    def address(self, revision: str, path: str) -> tuple[str, Headers]:
        return f"{self.name}/{quote(revision)}/{quote(path)}", self._headers


def check_revision(source: Source, revision: str, digest: str | None) -> None:
    """Raises SpecError for a name that can mean other files tomorrow."""
    if m.is_commit(revision) or (digest is not None and not isinstance(source, Hub)):
        return
    problem = (
        f"{revision[:80]!r} is a branch, a tag or part of a hash; it can move, so that two nodes would serve two "
        f"models under one name. Wanted: the whole commit hash; {source.commit_of(revision)}"
    )
    raise SpecError("revision", (problem,))


def checked_url(url: str, what: str) -> str:
    """Without a closing slash. Raises SpecError."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.username
        good = good and url.isprintable() and " " not in url
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise SpecError(what, (f"is {url[:80]!r}; wanted: http(s)://host, without user, password or query",))
    return url.rstrip("/")


def refused(status: int, what: str) -> Exception:
    """What an HTTP status other than 200 means for the user."""
    if status == 404:
        return SpecError(what, ("is not there (HTTP 404); correct the source or the revision",))
    if status in (401, 403):
        return NotKnown(f"{what}: refused (HTTP {status}); wanted: a token or role that may read it, see --token-file")
    return NotKnown(f"{what}: the server answers HTTP {status}; try again later")


def _get(transport: Transport, url: str, headers: Headers, what: str) -> str:
    try:
        with transport.get(url, headers) as answer:
            if answer.status != 200:
                raise refused(answer.status, what)
            data = bytearray()
            for chunk in answer.chunks:
                data += chunk
                if len(data) > _LARGEST_LIST:
                    raise NotKnown(
                        f"{what}: the list is longer than {_LARGEST_LIST >> 20} MiB; is this the right address?"
                    )
            return data.decode()
    except Broken as error:
        raise NotKnown(f"{what}: cannot be reached ({error})") from error
    except UnicodeDecodeError as error:
        raise NotKnown(f"{what}: the answer is no text") from error


def _by_manifest(text: str, revision: str, digest: str | None, otherwise: str, source: str) -> Listing:
    if digest is not None and (seen := hashlib.sha256(text.encode()).hexdigest()) != digest:
        raise Wrong(f"{source}: the manifest of {revision} has SHA-256 {seen}, pinned is {digest}; nothing was fetched")
    found = m.parse(text, f"manifest of {source}")
    if found.revision != revision:
        raise Wrong(f"{source}: the manifest is of revision {found.revision}, wanted {revision}")
    return Listing(found.wanted, found, f"the pinned manifest {digest}" if digest else otherwise)


def _json(text: str, source: str) -> Mapping[str, Any]:
    with _shape(source):
        data = json.loads(text)
        return {**data}


def _wanted(one: Mapping[str, Any]) -> Wanted:
    lfs = one.get("lfs")
    sha256 = None if lfs is None else lfs.get("sha256") or lfs["oid"].removeprefix("sha256:")
    git = one.get("blobId") if lfs is None else None
    size = one["size"] if lfs is None else lfs["size"]
    if not isinstance(size, int) or size < 0 or (sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", sha256)):
        raise ValueError(f"size {size!r} or SHA-256 {sha256!r} of {one['rfilename']!r} is none")
    return Wanted(str(one["rfilename"]), size, sha256, git)


def _hidden(path: str) -> bool:
    """Of git and of tools, and our own: not the model's."""
    parts = path.split("/")
    return path in OWN or (any(part.startswith(".") for part in parts) and ".." not in parts)


@contextmanager
def _shape(source: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        seen = f"{type(error).__name__}: {error}"[:300]
        raise NotKnown(
            f"{source}: the answer is not the Hub's ({seen}); is a proxy or another service in between?"
        ) from None
