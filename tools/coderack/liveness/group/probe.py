"""Reads what the token probe leaves in its file, and says how long it has said so."""

import json
import math
from dataclasses import replace
from pathlib import Path

from coderack.liveness.group.model import Probe, ProbeState

_MAX_BYTES = 1 << 20


def read(
    path: Path, before: Probe, stamp: float | None, max_age: float, now: float, wall: float
) -> tuple[Probe, float | None]:
    """The probe's word, and the stamp to give back next time. Never raises: what is not understood is UNKNOWN.

    Its age is taken by this agent's own monotonic clock, from the moment at which its `time` was seen to change; only
    the first time it has to be believed. A clock that jumps makes nothing old or new.
    """
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_MAX_BYTES))
        said, state = _finite(body["time"]), ProbeState(body["state"])
        ago = _token_ago(body.get("ranks"), said)
    except FileNotFoundError:
        return _unknown(before, f"there is no {path}", now), stamp
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        return _unknown(before, f"{path} is not to be understood ({type(error).__name__})", now), stamp
    news = abs(wall - said) <= max_age if stamp is None else said != stamp
    updated = now if news else before.updated
    if now - updated > max_age or (stamp is None and not news):
        return replace(_unknown(before, f"{path} is older than {max_age:g} s", now), updated=before.updated), said
    since = before.since if before.state is state else now
    return Probe(state, since, updated, "", None if ago is None else updated - ago), said


def _token_ago(ranks: object, said: float) -> float | None:
    """Seconds from the last token of the rank that is furthest behind to `said`; infinity for a rank without one."""
    if not isinstance(ranks, list) or not ranks or not all("last_token" in rank for rank in ranks):
        return None
    return max(math.inf if rank["last_token"] is None else said - _finite(rank["last_token"]) for rank in ranks)


def _finite(value: str | float) -> float:
    """Python's JSON knows NaN, which differs from itself and would be news for ever."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no time")
    return number


def _unknown(before: Probe, why: str, now: float) -> Probe:
    since = before.since if before.state is ProbeState.UNKNOWN else now
    return Probe(ProbeState.UNKNOWN, since, before.updated, why)
