"""What `coderack health explain` says: one entry for every finding, Xid, SXid and comparison."""

import difflib
import re

from coderack.health.compare import COMPARED
from coderack.health.kinds import KINDS
from coderack.health.xid import LINES, SXIDS, XIDS, Meaning, meaning

_NUMBER = re.compile(r"(?:(s?xid)[- ]?)?(\d{1,6})", re.IGNORECASE)


def explain(what: str) -> dict[str, str] | None:
    """Fields to print, or None when there is no such thing. A bare number from 10000 on is an SXid."""
    if match := _NUMBER.fullmatch(what.strip()):
        number = int(match.group(2))
        kind = (match.group(1) or ("sxid" if number >= 10000 else "xid")).lower()
        return _of_log(f"{kind}-{number}", meaning(kind, str(number)))
    if what in LINES:
        return _of_log(what, LINES[what])
    if what.startswith("nodes-differ-") and (fact := what.removeprefix("nodes-differ-").replace("-", "_")) in COMPARED:
        name, severity, impact = COMPARED[fact]
        base = KINDS["nodes-differ"]
        return {
            "finding": what,
            "means": f"nodes of one group differ in: {name}",
            "severity": severity.value,
            "serving": impact,
            "action": base.action.value,
            "do": base.remedy,
            "source": base.source,
        }
    if what not in KINDS:
        return None
    found = KINDS[what]
    return {
        "finding": what,
        "means": found.title,
        "severity": found.severity.value,
        "serving": found.impact,
        "action": found.action.value,
        "do": found.remedy,
        "source": found.source,
    }


def near(what: str) -> list[str]:
    return difflib.get_close_matches(what, names(), n=4, cutoff=0.4)


def names() -> list[str]:
    numbers = [*(f"xid-{number}" for number in XIDS), *(f"sxid-{number}" for number in SXIDS)]
    return [*KINDS, *LINES, *numbers, *(f"nodes-differ-{fact.replace('_', '-')}" for fact in COMPARED)]


def _of_log(name: str, found: Meaning) -> dict[str, str]:
    keep = "until the next boot" if found.keep == float("inf") else f"for {found.keep / 3600:.0f} h"
    return {
        "finding": name,
        "means": found.name,
        "severity": found.severity.value,
        "serving": found.impact,
        "action": found.action.value,
        "do": found.remedy,
        "source": found.source,
        "stays": f"{keep}, or until `coderack health node --acknowledge {name}`",
    }
