"""`coderack weights`: a model's files on this node, fetched by revision, verified, switched to as a whole."""

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, print_table
from coderack.clients.aws import AwsError, NoRegion
from coderack.fleet.files import Locked
from coderack.spec.checked import SpecError
from coderack.weights import manifest as m
from coderack.weights import store
from coderack.weights.store import Model, NotKnown, Wrong

if TYPE_CHECKING:
    from coderack.weights.sources import Source

# What only some of the verbs need (HTTP, hashing of folders) is imported by them: `check` runs before each start.
app = typer.Typer(
    help="Bring a model's weights to this node, prove them, and switch between revisions.\n\n"
    "Exit codes: 0 it holds, 1 it does not (checksum, revision, space), 2 bad input, 3 could not find out.",
    no_args_is_help=True,
    add_completion=False,
)

_STORE = Path("/srv/weights")
_EVERY_S = 10.0

StoreOption = Annotated[
    Path, typer.Option("--store", metavar="DIR", envvar="CODERACK_WEIGHTS_STORE", help="Where models lie.")
]
StateOption = Annotated[
    Path,
    typer.Option("--state", metavar="DIR", help="Records of folders that an image brought, which are not written to."),
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model's folder in the store.")]
RevisionArgument = Annotated[str, typer.Argument(metavar="REVISION", help="A whole commit hash.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The model's folder, or a link to it.")]
DigestOption = Annotated[
    str | None,
    typer.Option("--manifest-sha256", metavar="DIGEST", help="The manifest's SHA-256, which pins every byte."),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token; for a Hub HF_TOKEN is taken as well."),
]
WorkersOption = Annotated[
    int, typer.Option("--workers", metavar="N", min=0, max=256, help="Files hashed at once; 0 for half of the cores.")
]


@app.command()
def fetch(
    model: ModelArgument,
    revision: RevisionArgument,
    *,
    hub: Annotated[
        str | None, typer.Option("--hub", metavar="OWNER/NAME", help="From a Hugging Face Hub or a mirror of it.")
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="URL", envvar="HF_ENDPOINT", help="The Hub, or a mirror.")
    ] = "https://huggingface.co",
    s3: Annotated[
        str | None,
        typer.Option("--s3", metavar="S3://BUCKET/FOLDER", help="From a bucket: FOLDER/REVISION/ with its manifest."),
    ] = None,
    region: Annotated[str | None, typer.Option("--region", metavar="REGION", help="AWS region of the bucket.")] = None,
    peer: Annotated[
        str | None, typer.Option("--peer", metavar="URL", help="From a node on which `coderack weights serve` runs.")
    ] = None,
    token_file: TokenOption = None,
    manifest_sha256: DigestOption = None,
    directory: StoreOption = _STORE,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=256, help="Files at once, a connection for each.")
    ] = 16,
    keep_free: Annotated[
        float, typer.Option("--keep-free", metavar="GB", min=0, help="What has to stay free on the store's disk.")
    ] = 10.0,
    switch: Annotated[bool, typer.Option("--use", help="Point `current` at it when it is verified.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the source and look at the disk; change nothing.")
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Read a finished one again, fetch what is wrong.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a revision. Run it again after any interruption: it goes on where the bytes end.

    It appears under its name only when every file has its checksum. One fetch of a model at a time.

    Example: coderack weights fetch qwen3-coder-480b-fp8 $COMMIT --s3 s3://bucket/qwen3-coder-480b-fp8 --use
    """
    from coderack.weights import fetch as room  # noqa: PLC0415

    with _outcomes(f"{model} {revision}"):
        place = Model(directory, m.check_name(model, "MODEL"))
        m.check_name(revision, "REVISION")
        digest = _digest(manifest_sha256)
        with _Progress() as progress:
            source = _source(parallel, hub, endpoint, s3, region, peer, token_file, digest)
            job = room.Job(source, place, revision, digest, parallel, keep_free, repair, dry_run, progress)
            begun = time.monotonic()
            done = room.fetch(job)
            seconds = time.monotonic() - begun
            if switch and not dry_run:
                with place.locked():
                    store.use(place, revision)
        current = place.current_revision() == revision
    body = {
        "model": model, "revision": revision, "folder": str(done.folder), "manifest_sha256": done.manifest.digest,
        "bytes": done.manifest.size, "files": len(done.manifest.files), "already_there": done.already_there,
        "dry_run": dry_run,
        "network_bytes": done.network_bytes, "refetched": list(done.refetched), "trusted": done.trusted,
        "seconds": round(seconds, 3), "current": current,
    }  # fmt: skip
    if as_json:
        print_json("coderack.weights-fetch/1", body)
        return
    if dry_run and not done.already_there:
        typer.echo(f"{done.folder}: would fetch {_amount(done.manifest)}, to be checked against {done.trusted}")
        return
    how = "was there already" if done.already_there else f"fetched in {seconds:.0f} s"
    typer.echo(f"{done.folder}: {_amount(done.manifest)}, {how}; checked against {done.trusted}")
    typer.echo(f"manifest {done.manifest.digest}: pin it to hold every node to these bytes")


@app.command()
def verify(
    folder: FolderArgument,
    *,
    manifest_sha256: DigestOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Pass over files whose size, time and inode are as before.")
    ] = False,
    workers: WorkersOption = 0,
    state: StateOption = store.STATE,
    as_json: JsonOption = False,
) -> None:
    """Read every file and compare checksums.

    Example: coderack weights verify /srv/models/qwen3-coder-480b-fp8
    """
    from coderack.weights import verify as room  # noqa: PLC0415

    with _outcomes(str(folder)), _Progress() as progress:
        report = room.verify(
            folder, digest=_digest(manifest_sha256), quick=quick, workers=workers, state=state, progress=progress
        )
    speed = report.read / max(report.seconds, 1e-6) / 1e6
    if as_json:
        body = {
            "folder": str(folder), "revision": report.manifest.revision, "manifest_sha256": report.manifest.digest,
            "holds": not report.problems, "problems": list(report.problems), "bytes_read": report.read,
            "bytes_passed_over": report.passed_over, "seconds": round(report.seconds, 3), "mb_per_s": round(speed),
        }  # fmt: skip
        print_json("coderack.weights-verify/1", body)
    elif not report.problems:
        typer.echo(
            f"{folder}: revision {report.manifest.revision}, {_amount(report.manifest)}; "
            f"{report.read / 1e9:.1f} GB read at {speed:.0f} MB/s, {report.passed_over / 1e9:.1f} GB passed over"
        )
    if report.problems:
        fail(Exit.DOES_NOT_HOLD, "\n".join(report.problems))


@app.command()
def check(
    folder: FolderArgument,
    *,
    revision: Annotated[str, typer.Option("--revision", metavar="REVISION", help="What it has to be.")],
    manifest_sha256: DigestOption = None,
    state: StateOption = store.STATE,
    as_json: JsonOption = False,
) -> None:
    """Whether the folder is the verified revision and no file is missing or short. Fast: contents are not read.

    Example: coderack weights check /srv/models/qwen3-coder-480b-fp8 --revision $COMMIT
    """
    with _outcomes("weights"):
        try:
            found = store.check(folder, revision, _digest(manifest_sha256), state)
        except Wrong as error:
            if as_json:
                problems, known = str(error).splitlines(), not isinstance(error, store.Unverified)
                body = {"folder": str(folder), "holds": False, "ever_verified": known, "problems": problems}
                print_json("coderack.weights-check/1", body)
            raise
    if as_json:
        body = {
            "folder": str(folder), "revision": revision, "manifest_sha256": found.manifest.digest, "holds": True,
            "ever_verified": True, "problems": [], "bytes": found.manifest.size, "files": len(found.manifest.files),
            "source": found.record.source, "verified_at": found.record.verified_at,
        }  # fmt: skip
        print_json("coderack.weights-check/1", body)
    else:
        typer.echo(f"{folder}: revision {revision}, {_amount(found.manifest)}, verified {found.record.verified_at}")


@app.command()
def manifest(
    folder: FolderArgument,
    *,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Name to write; the folder's otherwise.")] = "",
    revision: Annotated[str, typer.Option("--revision", metavar="REVISION", help="Revision that the files are of.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help=f"Where to write it, e.g. {m.FILE_NAME} in a bucket."),
    ] = None,
    note: Annotated[
        bool, typer.Option("--record", help="Hold the folder to it from now on: for weights that an image brings.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="With --record: also where another one is noted.")] = False,
    workers: WorkersOption = 0,
    state: StateOption = store.STATE,
    as_json: JsonOption = False,
) -> None:
    """Make the manifest of a folder from its files. It proves nothing about where they came from.

    Example: coderack weights manifest ./qwen3-coder-480b-fp8 --revision $COMMIT --output coderack-manifest.json
    """
    from coderack.fleet import files  # noqa: PLC0415
    from coderack.weights import verify as room  # noqa: PLC0415

    with _outcomes(str(folder)):
        name = m.check_name(model or folder.absolute().name, "--model")
        m.check_name(revision, "--revision")
        with _Progress() as progress:
            made = room.from_files(folder, name, revision, workers=workers, progress=progress)
        if output is not None:
            files.is_there(output)
            files.replace(output, m.render(made))
        if note:
            room.record(folder, made, state=state, replace=replace)
    if as_json:
        body = {"folder": str(folder), "model": name, "revision": revision, "manifest_sha256": made.digest,
                "bytes": made.size, "files": len(made.files)}  # fmt: skip
        print_json("coderack.weights-made/1", body)
    else:
        typer.echo(f"{folder}: {_amount(made)}, manifest {made.digest}")


@app.command("list")
def list_(directory: StoreOption = _STORE, as_json: JsonOption = False) -> None:
    """What the store holds: models, revisions, which is current, what was left half fetched.

    Example: coderack weights list
    """
    with _outcomes(str(directory)):
        if not directory.is_dir():
            raise NotKnown(f"{directory} is not there; wanted: the store. Is its disk mounted?")
        rows = [
            row
            for entry in sorted(directory.iterdir())
            if entry.is_dir()
            for row in _rows(Model(directory, entry.name))
        ]
        disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if as_json:
        print_json("coderack.weights-list/1", {"store": str(directory), "free_bytes": free, "revisions": rows})
        return
    if rows:
        cells = [
            (
                row["model"],
                row["revision"],
                row["state"],
                "current" if row["current"] else "",
                f"{row['bytes'] / 1e9:.1f}",
            )
            for row in rows
        ]
        print_table(("model", "revision", "state", "", "GB"), cells, folded=("state",))
    typer.echo(f"{directory}: {len(rows)} revisions, {free / 1e9:.1f} GB free")


@app.command()
def use(
    model: ModelArgument, revision: RevisionArgument, *, directory: StoreOption = _STORE, as_json: JsonOption = False
) -> None:
    """Point `current` at a revision that is there and verified, in one step. A running engine keeps what it has loaded.

    Do not switch while an engine loads: it would read files of both. `coderack weights fetch --use` does both in order.

    Example: coderack weights use qwen3-coder-480b-fp8 $COMMIT
    """
    with _outcomes(f"{model} {revision}"):
        place = Model(directory, m.check_name(model, "MODEL"))
        _must_be_there(place)
        with place.locked():
            before = place.current_revision()
            store.use(place, m.check_name(revision, "REVISION"))
    if as_json:
        print_json("coderack.weights-use/1", {"model": model, "before": before, "current": revision})
    else:
        typer.echo(f"{place.current}: {revision} (was {before or 'nothing'})")


@app.command()
def prune(
    model: ModelArgument,
    revisions: Annotated[
        list[str] | None, typer.Argument(metavar="[REVISION]...", help="Which ones; all that may go otherwise.")
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; otherwise they are only named.")] = False,
    directory: StoreOption = _STORE,
    as_json: JsonOption = False,
) -> None:
    """Remove old revisions and what was left half fetched or removed; never the current nor one that a process reads.

    Example: coderack weights prune qwen3-coder-480b-fp8 --yes
    """
    with _outcomes(model):
        place = Model(directory, m.check_name(model, "MODEL"))
        _must_be_there(place)
        with place.locked():
            doomed, kept = _doomed(place, revisions or [])
            sizes = {
                name: store.remove(place, name) if yes else store.folder_size(place.folder / name) for name in doomed
            }
    if as_json:
        print_json("coderack.weights-prune/1", {"model": model, "removed": yes, "revisions": sizes, "kept": kept})
    else:
        for name, reason in kept.items():
            typer.echo(f"kept {name}: {reason}")
        for name, size in sizes.items():
            typer.echo(f"{'removed' if yes else 'would remove'} {name}: {size / 1e9:.1f} GB")
        if doomed and not yes:
            typer.echo("nothing was removed; --yes does it")
    refused = {name: reason for name, reason in kept.items() if name in (revisions or [])}
    if refused:
        fail(Exit.DOES_NOT_HOLD, "\n".join(f"{name} stays: {reason}" for name, reason in refused.items()))


@app.command()
def serve(
    folder: FolderArgument,
    *,
    address: Annotated[str, typer.Option("--address", metavar="IP", help="The node's private address; not 0.0.0.0.")],
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65535)] = 13380,
    token_file: Annotated[
        Path, typer.Option("--token-file", metavar="FILE", help="Token that the other node has, too.")
    ],
    idle: Annotated[
        float, typer.Option("--idle", metavar="SECONDS", min=0.1, help="End after so long without a request.")
    ] = 120.0,
    state: StateOption = store.STATE,
    as_json: JsonOption = False,
) -> None:
    """Let another node copy a verified folder, over the private network, by a token. Ends by itself.

    Example: coderack weights serve /srv/models/qwen3-coder-480b-fp8 --address 10.0.0.11 --token-file FILE
    """
    import ipaddress  # noqa: PLC0415

    from coderack.weights.serve import Server  # noqa: PLC0415

    with _outcomes(str(folder)):
        try:
            where = ipaddress.ip_address(address)
        except ValueError:
            raise SpecError("--address", (f"is {address[:60]!r}; wanted: the node's private address",)) from None
        if where.is_unspecified or where.version != 4 or not where.is_private:
            raise SpecError(
                "--address", (f"is {address}; wanted: one private IPv4 address, so that no other network is served",)
            )
        token = _token(token_file, 16)
        found = store.read_verified(folder, state)
        found = store.check(folder, found.manifest.revision, None, state)
        server = Server(address, port, found, token)
        typer.echo(f"serving {found.folder} ({_amount(found.manifest)}) on {address}:{port}", err=True)
        sent = server.run(idle)
    if as_json:
        print_json("coderack.weights-serve/1", {"folder": str(folder), "bytes_sent": sent})
    else:
        typer.echo(f"{sent / 1e9:.1f} GB sent; nobody has asked for {idle:.0f} s")


def _source(
    parallel: int, hub: str | None, endpoint: str, s3: str | None, region: str | None, peer: str | None,
    token_file: Path | None, digest: str | None,
) -> "Source":  # fmt: skip
    from coderack.weights import sources  # noqa: PLC0415
    from coderack.weights.transport import Web  # noqa: PLC0415

    given = [name for name, value in (("--hub", hub), ("--s3", s3), ("--peer", peer)) if value is not None]
    if len(given) != 1:
        raise SpecError("source", (f"{' and '.join(given) or 'nothing'} given, wanted one of --hub, --s3, --peer",))
    token = _token(token_file) if token_file is not None else None
    if hub is not None:
        return sources.Hub(Web(parallel), hub, endpoint, token or os.environ.get("HF_TOKEN"))
    if s3 is not None:
        return sources.Bucket(Web(parallel), s3, region, digest)
    assert peer is not None  # noqa: S101 - for mypy; counted above
    return sources.Peer(peer, token, digest)


def _token(path: Path, least: int = 1) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError("--token-file", (f"{path} cannot be read: {error}",)) from error
    if len(text) < least or not text.isascii() or not text.isprintable() or " " in text:
        raise SpecError(
            "--token-file", (f"{path} holds no token; wanted: one line of at least {least} plain characters",)
        )
    return text


def _digest(digest: str | None) -> str | None:
    if digest is not None and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        raise SpecError("--manifest-sha256", (f"is {digest[:80]!r}; wanted: 64 hexadecimal digits",))
    return digest


def _must_be_there(model: Model) -> None:
    if not model.folder.is_dir():
        raise SpecError("MODEL", (f"{model.name} is not in {model.store}; see coderack weights list",))


def _rows(model: Model) -> list[dict[str, Any]]:
    current = model.current_revision()
    rows = []
    for name in [*model.revisions(), *model.partials(), *model.remains()]:
        state, folder = "half fetched", model.folder / name
        if name.startswith(store.REMOVING):
            state = "half removed"
        elif not name.endswith(store.PARTIAL):
            try:
                state = f"verified {store.check(folder, name).record.verified_at}"
            except (Wrong, NotKnown, SpecError) as problem:
                state = str(problem).splitlines()[0]
        rows.append(
            {
                "model": model.name,
                "revision": name,
                "state": state,
                "current": name == current,
                "bytes": store.folder_size(folder),
            }
        )
    return rows


def _doomed(model: Model, wanted: list[str]) -> tuple[list[str], dict[str, str]]:
    there = [*model.revisions(), *model.partials(), *model.remains()]
    if unknown := [name for name in wanted if name not in there]:
        raise SpecError("REVISION", tuple(f"{name} is not in {model.folder}" for name in unknown))
    current = model.current_revision()
    repaired = f"{current}{store.PARTIAL}" if current not in there else None
    kept = {}
    for name in wanted or there:
        if name == current:
            kept[name] = "it is the current one"
        elif name == repaired:
            kept[name] = "it is the current one, half repaired; fetch it again"
        elif users := store.in_use(model.folder / name):
            kept[name] = f"{', '.join(users)} reads it"
    return [name for name in wanted or there if name not in kept], kept


def _amount(made: m.Manifest) -> str:
    return f"{len(made.files)} files, {made.size / 1e9:.1f} GB"


@contextmanager
def _outcomes(what: str) -> Iterator[None]:
    try:
        yield
    except Wrong as error:
        fail(Exit.DOES_NOT_HOLD, error)
    except (SpecError, NoRegion) as error:
        fail(Exit.BAD_INPUT, error)
    except (NotKnown, AwsError, Locked) as error:
        fail(Exit.UNKNOWN, error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fail(
                Exit.DOES_NOT_HOLD,
                f"{what}: the disk is full ({error.filename or error}); make room, then run this again",
            )
        fail(Exit.UNKNOWN, f"{what}: {error}")
    except KeyboardInterrupt:
        fail(Exit.UNKNOWN, f"{what}: interrupted; run it again, what is there is kept")


class _Progress:
    """On a terminal a bar, elsewhere a line every ten seconds; both on stderr, since stdout is for the result."""

    def __init__(self) -> None:
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._size = self._done = self._fetched = self._files = 0
        self._bar: Any = None
        self._task: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        if sys.stderr.isatty():
            self._start_bar()
        else:
            self._thread = threading.Thread(target=self._lines, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()
        if self._thread is not None:
            self._thread.join()

    def total(self, size: int, files: int) -> None:
        with self._lock:
            self._size, self._files = size, files
        if self._bar is not None:
            self._bar.update(self._task, total=size, description=f"{files} files")

    def moved(self, count: int, *, local: bool) -> None:
        with self._lock:
            self._done += count
            self._fetched += 0 if local else count
        if self._bar is not None:
            self._bar.update(self._task, advance=count)

    def note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            typer.echo(text, err=True)

    def _start_bar(self) -> None:
        from rich import progress  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415

        columns = (
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn(),
            progress.TransferSpeedColumn(), progress.TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task("looking", total=None)

    def _lines(self) -> None:
        last = 0
        while not self._ended.wait(_EVERY_S):
            with self._lock:
                done, size, fetched, files = self._done, self._size, self._fetched, self._files
            share = f"{100 * done / size:.0f} %" if size else "looking"
            typer.echo(
                f"{share}: {done / 1e9:.1f} of {size / 1e9:.1f} GB of {files} files, "
                f"{fetched / 1e9:.1f} GB over the network, {(done - last) / _EVERY_S / 1e6:.0f} MB/s",
                err=True,
            )
            last = done
