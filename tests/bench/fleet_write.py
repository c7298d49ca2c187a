"""How long `coderack fleet write` takes for a large fleet, and how much memory. Example: tests/bench/fleet_write.py"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from measure import program, run, verdict

MOST_WALL_S = 2.0
MOST_RSS_MIB = 300.0


def contract(nodes: int) -> dict[str, Any]:
    """As the aws stack puts it out, with every optional field."""
    return {"version": 1, "stack": "aws", "region": "us-west-2", "nodes": [_node(number) for number in range(nodes)]}


def _node(number: int) -> dict[str, Any]:
    address = f"10.{64 + number // 62_500}.{number // 250 % 250}.{number % 250 + 4}"
    ops = number == 0
    return {
        "name": "ops" if ops else f"gpu-{number:05}",
        "role": "ops" if ops else "gpu",
        "address": f"i-{number:017x}",
        "private_address": address,
        "instance_id": f"i-{number:017x}",
        "instance_type": "m7i.2xlarge" if ops else "p5.48xlarge",
        "image_id": "ami-0c0de12b00c0ffee1",
        "placement_group": None if ops else "coderack-gpu",
        "zone": "us-west-2a",
        "gpus": {"model": "none", "count": 0} if ops else {"model": "NVIDIA H100", "count": 8},
        "fabric": {"kind": "none" if ops else "efa", "devices": []},
        "reservation": None if ops else {"id": "cr-0123456789abcdef0", "ends_at": "2027-01-31T11:30:00Z"},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    costs = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "inventories" / "bench").mkdir(parents=True)
        (directory / "fleet.json").write_text(json.dumps(contract(options.nodes)), encoding="utf-8")
        command = [program("coderack"), "fleet", "write", "--env", "bench", "fleet.json"]
        for _ in range(options.runs):
            (directory / "inventories" / "bench" / "hosts.yml").unlink(missing_ok=True)
            costs.append(run(command, directory, {}))
            print(f"coderack fleet write, {options.nodes} nodes: {costs[-1]}", flush=True)
    wall, rss = statistics.median(cost.wall_s for cost in costs), max(cost.rss_mib for cost in costs)
    return verdict(
        {
            f"at most {MOST_WALL_S:g} s (median of {options.runs}: {wall:.2f} s)": wall <= MOST_WALL_S,
            f"at most {MOST_RSS_MIB:g} MiB (worst: {rss:.0f} MiB)": rss <= MOST_RSS_MIB,
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())
