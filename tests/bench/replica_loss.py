"""What clients notice when one of two replicas is killed, on the lab that is up with a split profile (lab-smollm2).

Each round kills -9 the engine of one replica (of gpu-b and gpu-a in turn) under load through the gateway, and counts
the requests that failed, until when they did, and that the other replica went on serving. Then it waits for both.

    tests/bench/replica_loss.py --kills 4

Ends with 0 when no request failed later than 15 s after a kill and there was no second without an answer after that.
"""

from __future__ import annotations

import argparse
import sys
import time

from gateway_load import Load, kill_engine, on

EJECTED_WITHIN = 15.0  # seconds
PATIENCE = 300.0


def serving(node: str) -> bool:
    state = 'python3 -c \'import json; print(json.load(open("/run/coderack/probe.json"))["state"])\''
    probe = f"systemctl is-active --quiet vllm && {state}"
    return on(node, probe).strip() == "up"


def one_round(node: str, load: Load) -> tuple[int, float, int, float]:
    """Requests that failed, seconds from the kill to the last of them, requests that succeeded, seconds until back."""
    killed = kill_engine(node)
    time.sleep(EJECTED_WITHIN)
    while not serving(node) and time.time() - killed < PATIENCE:
        time.sleep(1)
    back = time.time() - killed
    after = load.after(killed)
    failures = [when for when, status in after if status != 200]
    return len(failures), (failures[-1] - killed if failures else 0.0), len(after) - len(failures), back


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    wanted = parser.parse_args()
    load = Load(wanted.model, wanted.threads).start()
    holds = True
    for number in range(wanted.kills):
        time.sleep(10)
        node = ("gpu-b", "gpu-a")[number % 2]
        failed, last, good, back = one_round(node, load)
        holds = holds and last <= EJECTED_WITHIN and back < PATIENCE
        print(f"{number + 1}: {node} killed; {failed} failed, the last after {last:.1f} s; {good} succeeded; "
              f"both serve again after {back:.0f} s", flush=True)  # fmt: skip
    load.stop.set()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
