"""All nodes at once: `coderack health node --json` on each over SSH, then a comparison of what they answered."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

from coderack.health.compare import compare
from coderack.health.findings import Action, Finding, Severity, Subject, ordered
from coderack.health.report import SCHEMA, Report
from coderack.health.rules.common import finding

CLUSTER_SCHEMA = "coderack.health-cluster/1"


@dataclass(frozen=True, slots=True)
class Answered:
    """What one host said: a report, or why there is none."""

    name: str
    report: Report | None = None
    problem: Finding | None = None


def ask(commands: Mapping[str, Sequence[str]], seconds: float, parallel: int) -> list[Answered]:
    """Run each node's command (its whole argument list), at most `parallel` at once, each for at most `seconds`."""
    with ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        futures = [pool.submit(_ask, name, words, seconds) for name, words in commands.items()]
        return [future.result() for future in futures]


def _ask(name: str, words: Sequence[str], seconds: float) -> Answered:
    begun = time.monotonic()
    try:
        done = subprocess.run(list(words), stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return _unreachable(name, f"no answer after {seconds:.0f} s")
    except OSError as error:
        return _unreachable(name, f"{words[0]}: {error.strerror}")
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
    # ssh's own sign that it did not get through.
    if done.returncode == 255:
        return _unreachable(name, f"ssh: {last[0][:200]}")
    try:
        return Answered(name, parse(name, json.loads(done.stdout)))
    except (ValueError, KeyError, TypeError):
        seen = f"exit {done.returncode} after {time.monotonic() - begun:.1f} s: {last[0][:200]}"
        return Answered(name, problem=finding("node-garbled", Subject("node", name), seen, "a health report"))


def _unreachable(name: str, seen: str) -> Answered:
    return Answered(name, problem=finding("node-unreachable", Subject("node", name), seen, "an answer"))


def parse(name: str, data: Mapping[str, Any]) -> Report:
    """A report of `coderack health node --json` under the inventory's name. Raises ValueError and its kin."""
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r}, wanted {SCHEMA}")
    return Report(
        node=name,
        profile=str(data["profile"]),
        time=float(data["time"]),
        seconds=float(data["seconds"]),
        findings=tuple(_finding(item) for item in data["findings"]),
        facts={str(key): str(value) for key, value in data["facts"].items()},
    )


_SUBJECT_FIELDS = tuple(field.name for field in fields(Subject))


def _finding(item: Mapping[str, Any]) -> Finding:
    subject = Subject(**{name: item["subject"][name] for name in _SUBJECT_FIELDS})
    texts = {name: str(item[name]) for name in ("id", "seen", "wanted", "impact", "remedy", "source", "runbook")}
    return Finding(severity=Severity(item["severity"]), action=Action(item["action"]), subject=subject, **texts)


def between(answers: Sequence[Answered]) -> tuple[Finding, ...]:
    """Findings that no node has by itself: those that did not answer, and what differs."""
    reports = {answer.name: answer.report.facts for answer in answers if answer.report is not None}
    problems = [answer.problem for answer in answers if answer.problem is not None]
    return ordered([*problems, *(compare(reports) if len(reports) > 1 else ())])
