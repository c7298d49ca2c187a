"""How long a fused group is away after one of its engines is killed, on the lab that is up with profile lab-moe-fused.

Each round kills -9 one engine process (gpu-b's and gpu-a's in turn) while requests keep coming in through the gateway,
Each round kills -9 one engine process (of gpu-b and gpu-a in turn) while requests keep coming in through the gateway,
when the first one succeeded again.

    tests/bench/group_recovery.py --kills 10

Ends with 0 when every kill was seen within 15 s and the group came back by itself each time, else with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GATEWAY = "https://localhost:" + os.environ.get("LAB_GATEWAY_PORT", "18443")
PROMETHEUS = "http://127.0.0.1:" + os.environ.get("LAB_PROMETHEUS_PORT", "19090")
SECRETS = ROOT / "inventories/lab/secrets"
SEEN_WITHIN = 15.0  # seconds
PATIENCE = 300.0
_KILL = (
    "pids=$(pgrep -f 'VLLM::EngineCore') && sudo kill -9 $(echo \"$pids\" | head -n 1) && echo killed at $(date +%s.%N)"
)
_STATE = "cat /run/coderack/probe.json"


@dataclass
class Load:
    """Requests through the gateway, one after the other in each of a few threads, with when and how each ended."""

    ended: list[tuple[float, int]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        context = ssl.create_default_context(cafile=str(SECRETS / "gateway-ca.crt"))
        body = {"model": "tiny-qwen3-moe", "prompt": "SELECT", "max_tokens": 8}
        key = (SECRETS / "api-keys/demo").read_text().strip()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        while not self.stop.is_set():
            request = urllib.request.Request(f"{GATEWAY}/v1/completions", json.dumps(body).encode(), headers)  # noqa: S310
            try:
                with urllib.request.urlopen(request, timeout=20, context=context) as answer:  # noqa: S310
                    status = answer.status if json.load(answer).get("choices") else 0
            except urllib.error.HTTPError as error:
                status = error.code
            except (OSError, ValueError):
                status = 0
            self.ended.append((time.time(), status))
            time.sleep(0.2 if status == 200 else 0.5)


@dataclass(frozen=True)
class Round:
    node: str
    seen: float  # seconds from the kill until the probe said so; infinity when it did not
    back: float  # seconds from the kill until a request succeeded after the last failed one
    failed: int


def on(node: str, command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "coderack_lab", "ssh", node, "--", command],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "tests/lab")}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    return done.stdout


def probe_state() -> str:
    try:
        return str(json.loads(on("gpu-a", _STATE)).get("state", "unknown"))
    except ValueError:
        return "unknown"


def one_round(node: str, load: Load) -> Round:
    begun = time.time()
    killed = on(node, _KILL)
    if "killed at" not in killed:
        raise SystemExit(f"no engine to kill on {node}; wanted: the lab up with profile lab-moe-fused")
    killed_at = float(killed.rsplit(" ", 1)[1])
    seen = float("inf")
    while time.time() - begun < PATIENCE:
        state = probe_state()
        if state not in ("up", "unknown") and seen == float("inf"):
            seen = time.time() - killed_at
        after = [(when, status) for when, status in load.ended if when > killed_at]
        failures = [when for when, status in after if status != 200]
        successes = [when for when, status in after if status == 200 and failures and when > failures[-1]]
        # A few in a row, over both ranks: one could be a last answer of the old group.
        if state == "up" and seen < float("inf") and len(successes) >= 6:
            return Round(node, seen, successes[0] - killed_at, len(failures))
        time.sleep(0.5)
    return Round(node, seen, float("inf"), sum(status != 200 for when, status in load.ended if when > killed_at))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pause", type=float, default=20, help="seconds of peace between two kills")
    wanted = parser.parse_args()
    load = Load()
    threads = [threading.Thread(target=load.run, daemon=True) for _ in range(wanted.threads)]
    for thread in threads:
        thread.start()
    rounds = []
    for number in range(wanted.kills):
        time.sleep(wanted.pause)
        rounds.append(one_round(("gpu-b", "gpu-a")[number % 2], load))
        last = rounds[-1]
        times = f"seen after {last.seen:.1f} s, back after {last.back:.1f} s"
        print(f"{number + 1}: engine of {last.node} killed; {times}; {last.failed} requests failed", flush=True)
    load.stop.set()
    seen, back = [one.seen for one in rounds], [one.back for one in rounds]
    print(f"seen: median {statistics.median(seen):.1f} s, worst {max(seen):.1f} s (wanted {SEEN_WITHIN:.0f} s)")
    came = sum(one < PATIENCE for one in back)
    print(f"back: median {statistics.median(back):.1f} s, worst {max(back):.1f} s; {came} of {len(back)} by itself")
    return 0 if max(seen) <= SEEN_WITHIN and max(back) < PATIENCE else 1


if __name__ == "__main__":
    sys.exit(main())
