"""The pinned SSH host keys of an environment: `inventories/<env>/known_hosts`, OpenSSH's own format."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coderack.clients.ssh_keys import TYPES, Keys, fingerprint, is_key
from coderack.fleet import files
from coderack.spec.checked import SpecError

MARK = "# Pinned by `coderack fleet host-keys`"
_HEADER = f"{MARK}: a key that differs from the one here is refused. Do not edit.\n"

Pins = Mapping[str, Keys]  # host as known_hosts writes it -> its keys


@dataclass(frozen=True)
class Change:
    """A host that shows other keys than the pinned ones."""

    host: str
    pinned: tuple[str, ...]
    seen: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.host}: pinned {' '.join(self.pinned)}, seen {' '.join(self.seen)}"


def read(path: Path) -> dict[str, dict[str, str]]:
    """The pins in `path`, none when it is not there. Raises SpecError when `write` did not make it."""
    if not files.is_there(path):
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(str(path), (f"not UTF-8 text: {error}",)) from error
    if not text.startswith(MARK):
        problem = "exists and was not written by `coderack fleet host-keys`; move it away first"
        raise SpecError(str(path), (problem,))
    pins: dict[str, dict[str, str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        words = line.split(" ")
        if len(words) != 3 or words[1] not in TYPES or not is_key(words[1], words[2]):
            problem = f"line {number} is no host, type and key; put back the committed file, or remove it and pin again"
            raise SpecError(str(path), (problem,))
        pins.setdefault(words[0], {})[words[1]] = words[2]
    return pins


def changes(pinned: Pins, seen: Pins) -> list[Change]:
    """Hosts of `seen` that are pinned and do not prove to be the same."""
    return [
        Change(host, _fingerprints(pinned[host]), _fingerprints(keys))
        for host, keys in sorted(seen.items())
        if host in pinned and not _same(pinned[host], keys)
    ]


def merge(pinned: Pins, seen: Pins, members: set[str]) -> dict[str, dict[str, str]]:
    """Pins after `seen` was accepted: of `members` only, so that a node that is gone leaves nothing behind.

    A key type that a host no longer shows stays pinned, unless the host has changed: then only what was seen counts.
    """
    merged = {host: dict(keys) for host, keys in pinned.items() if host in members}
    for host, keys in seen.items():
        same = host in pinned and _same(pinned[host], keys)
        merged[host] = {**(merged[host] if same else {}), **keys}
    return merged


def render(pins: Pins) -> str:
    lines = [f"{host} {kind} {key}\n" for host, keys in sorted(pins.items()) for kind, key in sorted(keys.items())]
    return _HEADER + "".join(lines)


def write(path: Path, pins: Pins) -> bool:
    """Write the pins as a whole or not at all; return whether anything changed."""
    text = render(pins)
    if files.is_there(path) and path.read_text(encoding="utf-8") == text:
        return False
    files.replace(path, text)
    return True


def _same(pinned: Keys, seen: Keys) -> bool:
    """One key in common and none that differs. Other types alone prove nothing: anybody can make those."""
    common = pinned.keys() & seen.keys()
    return bool(common) and all(pinned[kind] == seen[kind] for kind in common)


def _fingerprints(keys: Keys) -> tuple[str, ...]:
    return tuple(f"{kind} {fingerprint(key)}" for kind, key in sorted(keys.items()))
