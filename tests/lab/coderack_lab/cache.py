"""Entries of the lab's cache: made once, under a partial name, and renamed when whole.

An entry is a folder whose name ends in the hash of its recipe, so a changed recipe makes a new entry. The stamp in it
is written last; a final name without its stamp is not trusted and not silently replaced either.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from coderack_lab.errors import LabError
from coderack_lab.settings import CACHE

_STAMP = ".coderack-cache.json"


def recipe_hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def entry(kind: str, recipe: str) -> Path:
    return CACHE / f"{kind}-{recipe}"


def is_ready(path: Path) -> bool:
    """Whether an entry is there and whole.

    Raises LabError for a folder under the final name without a readable stamp: somebody or something cut it short.
    """
    if not path.exists():
        return False
    try:
        stamp = json.loads((path / _STAMP).read_text())
        if stamp["entry"] == path.name:
            return True
        seen = f"a stamp for {stamp['entry']}"
    except FileNotFoundError:
        seen = "no stamp"
    except (OSError, ValueError, KeyError, TypeError) as error:
        seen = f"an unreadable stamp ({error})"
    raise LabError(
        f"half-built cache entry {path}: {seen}, wanted {_STAMP} naming the entry. It cannot be trusted; "
        "`make lab-clean` removes the cache, then run again."
    )


def build(path: Path, make: Callable[[Path], None]) -> Path:
    """Return the entry, made by `make(partial folder)` when it is not there yet."""
    if is_ready(path):
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    remove_partials()
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.mkdir()
    make(partial)
    (partial / _STAMP).write_text(
        json.dumps({"entry": path.name, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    )
    partial.rename(path)
    _drop_old(path)
    return path


def remove_partials() -> None:
    """Remove what killed builds left. Only called under the lab's lock and after their processes were ended."""
    for partial in CACHE.glob("*.partial-*") if CACHE.exists() else ():
        shutil.rmtree(partial)


def _drop_old(path: Path) -> None:
    """Entries of the same kind with another recipe: nothing uses them any more."""
    kind = path.name.rpartition("-")[0]
    for other in CACHE.glob(f"{kind}-????????????"):
        if other != path:
            # A removal cut short must not leave a half entry under its final name.
            shutil.rmtree(other.rename(other.with_name(f"{other.name}.partial-{os.getpid()}")))


def remove_all() -> None:
    if CACHE.exists():
        shutil.rmtree(CACHE)
