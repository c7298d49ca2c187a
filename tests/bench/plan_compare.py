"""How long `coderack plan compare` takes, the interpreter's start included. Example: tests/bench/plan_compare.py"""

import argparse
import statistics
import tempfile
from pathlib import Path

from measure import program, run, verdict

MOST_WALL_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    claims = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for words in (["--gpus", "8"], ["--gpus", "16"], ["--gpus", "16", "--html", "page.html"]):
            command = [program("coderack"), "plan", "compare", *words]
            costs = [run(command, directory, {}) for _ in range(options.runs)]
            label = f"coderack plan compare {' '.join(words)}"
            for cost in costs:
                print(f"{label}: {cost}", flush=True)
            wall = statistics.median(cost.wall_s for cost in costs)
            claims[f"{label}: at most {MOST_WALL_S:g} s (median of {options.runs}: {wall:.2f} s)"] = wall <= MOST_WALL_S
    return verdict(claims)


if __name__ == "__main__":
    raise SystemExit(main())
