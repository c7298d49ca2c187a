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
import statistics
import sys
import time
from dataclasses import dataclass

from gateway_load import Load, kill_engine, on

MODEL = "tiny-qwen3-moe"
SEEN_WITHIN = 15.0  # seconds
PATIENCE = 300.0
_STATE = "cat /run/coderack/probe.json"


@dataclass(frozen=True)
class Round:
    node: str
    seen: float  # seconds from the kill until the probe said so; infinity when it did not
    back: float  # seconds from the kill until a request succeeded after the last failed one
    failed: int


def probe_state() -> str:
    try:
        return str(json.loads(on("gpu-a", _STATE)).get("state", "unknown"))
    except ValueError:
        return "unknown"


def one_round(node: str, load: Load) -> Round:
    killed = kill_engine(node)
    seen = float("inf")
    while time.time() - killed < PATIENCE:
        state = probe_state()
        if state not in ("up", "unknown") and seen == float("inf"):
            seen = time.time() - killed
        after = load.after(killed)
        failures = [when for when, status in after if status != 200]
        successes = [when for when, status in after if status == 200 and failures and when > failures[-1]]
        # A few in a row, over both ranks: one could be a last answer of the old group.
        if state == "up" and seen < float("inf") and len(successes) >= 6:
            return Round(node, seen, successes[0] - killed, len(failures))
        time.sleep(0.5)
    return Round(node, seen, float("inf"), sum(status != 200 for _, status in load.after(killed)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pause", type=float, default=20, help="seconds of peace between two kills")
    wanted = parser.parse_args()
    load = Load(MODEL, wanted.threads).start()
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
