"""What an agent keeps on disk: whole or not at all, and never acted on before it is there."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coderack.fleet import files
from coderack.liveness.group.decide import moved_to_this_boot
from coderack.liveness.group.model import Record, State

STATE, MEMBER = "state.json", "member.json"
_SCHEMA = "coderack.group-state/1"
_MAX_BYTES = 1 << 20
_STATE: TypeAdapter[State] = TypeAdapter(State)
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def load_state(directory: Path, boot: str) -> tuple[State | None, str]:
    """The head's state in this boot's time, and why there is none."""
    body, problem = _load(directory / STATE)
    if body is None:
        return None, problem
    try:
        state = _STATE.validate_python(body["state"])
        if body["boot"] != boot:
            state = moved_to_this_boot(state, float(body["at"]), time.monotonic())
    except (ValidationError, KeyError, TypeError, ValueError, OverflowError) as error:
        return None, f"{directory / STATE} is damaged ({str(error).splitlines()[0]})"
    return state, ""


def save_state(directory: Path, state: State, boot: str) -> None:
    """Raises OSError."""
    _save(directory / STATE, {"boot": boot, "at": time.monotonic(), "state": asdict(state)})


def load_record(directory: Path) -> tuple[Record | None, str]:
    """The member's record, and why there is none."""
    body, problem = _load(directory / MEMBER)
    if body is None:
        return None, problem
    try:
        return _RECORD.validate_python(body["record"]), ""
    except (ValidationError, KeyError, TypeError) as error:
        return None, f"{directory / MEMBER} is damaged ({str(error).splitlines()[0]})"


def save_record(directory: Path, record: Record) -> None:
    """Raises OSError."""
    _save(directory / MEMBER, {"record": asdict(record)})


def _load(path: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_MAX_BYTES))
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{path} is damaged (no JSON)"
    if not isinstance(body, dict) or body.get("schema") != _SCHEMA:
        return None, f"{path} is damaged (no {_SCHEMA})"
    return body, ""


def _save(path: Path, body: dict[str, Any]) -> None:
    files.replace(path, json.dumps({"schema": _SCHEMA, **body}, indent=1) + "\n", mode=0o600)
