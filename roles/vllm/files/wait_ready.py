"""Wait on a GPU node until vLLM really answers. Reads `Wait` as JSON from standard input.

Neither an active unit nor /health proves anything: both look fine while an engine on the other node is gone. Only a
completion does, one per data-parallel rank. Exit 0: every rank answered; 1: it will not answer, and standard output
says why; 3: not yet.
"""

import dataclasses
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Wait:
    unit: str
    url: str  # of the API server that answers for this node
    model: str
    ranks: int  # data-parallel ranks behind that server
    key_file: str  # the line VLLM_API_KEY=... in it is the API's bearer token; without one the API asks for none
    round: float  # seconds after which no rank is asked again; the answer is then "not yet"
    timeout: float  # seconds after the unit's start until "it will not answer"
    request_timeout: float


@dataclasses.dataclass(frozen=True)
class Unit:
    state: str
    substate: str
    age: float  # seconds since it became active

    @property
    def crashed(self) -> bool:
        return self.state not in {"active", "reloading"} and self.substate not in {"start", "start-pre"}


def look_at(unit: str) -> Unit:
    command = ["systemctl", "show", "--property=ActiveState,SubState,ActiveEnterTimestampMonotonic", unit]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    values = dict(line.split("=", 1) for line in output.splitlines())
    entered = int(values["ActiveEnterTimestampMonotonic"]) / 1e6
    return Unit(values["ActiveState"], values["SubState"], time.monotonic() - entered if entered else 0.0)


def journal_end(unit: str) -> str:
    command = ["journalctl", f"--unit={unit}", "--lines=30", "--output=cat", "--no-pager"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def api_key(path: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.removeprefix("VLLM_API_KEY=") for line in lines if line.startswith("VLLM_API_KEY=")), "")


def missing_answer(wait: Wait, key: str, rank: int) -> str:
    """Ask one rank for one token; return what is wrong, or an empty string."""
    body = {"model": wait.model, "prompt": "1 + 1 =", "max_tokens": 1, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if wait.ranks > 1:
        headers["X-data-parallel-rank"] = str(rank)
    url, data = f"{wait.url}/v1/completions", json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310  the URL is the inventory's
    try:
        with urllib.request.urlopen(request, timeout=wait.request_timeout) as response:  # noqa: S310
            choices = json.load(response).get("choices")
    except urllib.error.HTTPError as error:
        return f"rank {rank} answered HTTP {error.code}: {error.read(300).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return f"rank {rank} gave no answer: {error}"
    return "" if choices else f"rank {rank} answered without a choice"


def main() -> int:
    wait = Wait(**json.load(sys.stdin))
    key = api_key(wait.key_file)
    end = time.monotonic() + wait.round
    while True:
        wrong = next(filter(None, (missing_answer(wait, key, rank) for rank in range(wait.ranks))), "")
        unit = look_at(wait.unit)
        if unit.crashed:
            print(
                f"{wait.unit} is {unit.state} ({unit.substate}), wanted active. Its journal:\n{journal_end(wait.unit)}"
            )
            return 1
        if not wrong:
            return 0
        if unit.age > wait.timeout:
            print(
                f"{wait.unit} has run for {unit.age:.0f} s without answering completions at {wait.url}, wanted one "
                f"within {wait.timeout:.0f} s (vllm_ready_timeout). Last seen: {wrong}. After a hang stop all GPU "
                f"nodes with playbooks/stop.yml and run again. Its journal:\n{journal_end(wait.unit)}"
            )
            return 1
        if time.monotonic() > end:
            return 3
        time.sleep(1)


sys.exit(main())
