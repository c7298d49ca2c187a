"""Pack the coderack package and its locked dependencies for one kind of node, on the controller.

Nodes then need neither pip nor a way to a package index, and all get the same files. Reads `Wanted` as JSON from
standard input; prints {fingerprint, path, built}. The fingerprint covers everything that goes in, so that an unchanged
bundle is recognised without making it. Exit 0: the bundle is at `path` (or would be made, with build false); 1: pip
could not.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

# What a node starts. -I: neither the caller's directory nor PYTHONPATH has a say in what root runs.
_PROGRAM = """#!{python} -I
import sys

sys.path.insert(0, "{folder}/lib")
from coderack.cli.main import app

sys.exit(app())
"""


@dataclass(frozen=True)
class Wanted:
    source: str  # folder of the package, tools/coderack
    lock: str  # pip requirements with hashes
    python: str  # the node's interpreter, a path
    version: str  # its version, such as 3.11
    machine: str  # as `uname -m` says
    install: str  # folder on the node under which bundles lie
    out: str  # folder on the controller
    pip: list[str]  # further arguments for pip
    build: bool = True

    @property
    def files(self) -> list[Path]:
        found = Path(self.source).rglob("*")
        return sorted(file for file in found if file.is_file() and "__pycache__" not in file.parts)

    @property
    def fingerprint(self) -> str:
        total = hashlib.sha256()
        parts = [self.python, self.version, self.machine, self.install, _PROGRAM, Path(self.lock).read_text()]
        for part in parts:
            total.update(part.encode() + b"\0")
        for file in self.files:
            total.update(str(file.relative_to(self.source)).encode() + b"\0" + file.read_bytes() + b"\0")
        return total.hexdigest()[:12]


def pip_arguments(wanted: Wanted, target: Path) -> list[str]:
    """For another machine than this one: only wheels, and only those that run there."""
    platforms = [f"manylinux_2_{glibc}_{wanted.machine}" for glibc in (34, 28, 17)]
    platforms += [f"manylinux2014_{wanted.machine}", f"linux_{wanted.machine}"]
    return [
        *(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-input",
            "--quiet",
            "--no-compile",
        ),
        *("--target", str(target), "--require-hashes", "--no-deps", "--only-binary=:all:"),
        *("--implementation", "cp", "--python-version", wanted.version),
        *(word for platform in platforms for word in ("--platform", platform)),
        *wanted.pip,
        *("--requirement", wanted.lock),
    ]


def make(wanted: Wanted, path: Path) -> None:
    """Raises CalledProcessError when pip fails."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        tree = Path(scratch) / "tree"
        lib = tree / "lib"
        subprocess.run(pip_arguments(wanted, lib), check=True, capture_output=True, text=True)
        shutil.rmtree(lib / "bin", ignore_errors=True)  # programs that would start this machine's Python
        for file in wanted.files:
            target = lib / "coderack" / file.relative_to(wanted.source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        program = tree / "bin/coderack"
        program.parent.mkdir()
        program.write_text(_PROGRAM.format(python=wanted.python, folder=f"{wanted.install}/{wanted.fingerprint}"))
        program.chmod(0o755)
        packed = Path(scratch) / "bundle.tar.gz"
        with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
            archive.add(tree, arcname=".", filter=_anybodys)
        packed.rename(path)


def _anybodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def main() -> int:
    wanted = Wanted(**json.load(sys.stdin))
    out = Path(wanted.out)
    path = out / f"coderack-{wanted.fingerprint}.tar.gz"
    built = False
    if wanted.build:
        out.mkdir(parents=True, exist_ok=True)
        # Hosts of one kind come at the same time; the first one makes the bundle, the others find it.
        with (out / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                try:
                    make(wanted, path)
                except subprocess.CalledProcessError as error:
                    print(f"{Path(wanted.lock).name}: {error.stderr.strip()[-800:]}")
                    return 1
                built = True
    print(json.dumps({"fingerprint": wanted.fingerprint, "path": str(path), "built": built}))
    return 0


sys.exit(main())
