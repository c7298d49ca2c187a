"""How long `coderack health` takes on simulated nodes: `node` with a real GPU's per-call costs, `cluster` over many.

    .build/venv/bin/python tests/bench/health.py [--nodes 200] [--parallel 4]

Prints wall time, CPU time of all processes, and the memory of the largest. Every "node" of the cluster is the same
simulated 8 x H100, asked by a shell on this machine in place of ssh: all of them share this machine's cores.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / path) for path in ("tools", "tests", "tests/lab")]

import yaml  # noqa: E402
from unit.health import Simulated  # noqa: E402

from coderack_lab import gpu  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--nodes", type=int, default=200)
    options.add_argument("--parallel", type=int, default=4)
    wanted = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        node = Simulated(root / "node")
        node.state = gpu.with_real_costs(node.state)
        node.write()
        library = gpu.build_library(root)
        environment = {
            **os.environ,
            "PATH": f"{node.programs}:/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(library.parent),
            "CODERACK_LAB_NVML_STATE": str(node.root / "state"),
            "PYTHONPATH": str(REPOSITORY / "tools"),
        }
        program = [sys.executable, "-m", "coderack.cli.main", "health"]
        for _ in range(3):
            _measure("node, 8 x H100, real costs", [*program, "node", *node.arguments()], environment)
        for count in (2, wanted.nodes):
            inventories = _inventories(root / f"inventories-{count}", count)
            arguments = " ".join(node.arguments()[:-2])
            command = f"{' '.join(program)} node --json {arguments} --state-dir {root}/state-{{name}}"
            words = ["cluster", "--env", "lab", "--inventories", str(inventories), "--ssh", "/bin/sh -c", "--json",
                     "--command", command, "--parallel", str(wanted.parallel)]  # fmt: skip
            _measure(f"cluster, {count} nodes", [*program, *words], environment)


def _measure(name: str, command: list[str], environment: dict[str, str]) -> None:
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    verdict = json.loads(done.stdout)["verdict"] if done.stdout.startswith("{") else done.stdout.strip()[-90:]
    size = after.ru_maxrss >> 10
    print(f"{name}: exit {done.returncode}, {wall:.2f} s, CPU {cpu:.2f} s, largest process {size} MB: {verdict}")


def _inventories(root: Path, count: int) -> Path:
    def host(number: int, gpus: int) -> dict[str, object]:
        address = f"10.0.{number // 200}.{number % 200 + 11}"
        model = "NVIDIA H100" if gpus else "none"
        return {
            "ansible_host": address,
            "fleet_private_address": address,
            "fleet_gpus": {"model": model, "count": gpus},
            "fleet_fabric": {"kind": "infiniband" if gpus else "none", "devices": []},
        }

    nodes = {f"gpu-{number}": host(number, 8) for number in range(count)}
    children = {"gpu_nodes": {"hosts": nodes}, "ops_nodes": {"hosts": {"ops": host(9999, 0)}}}
    tree = {"all": {"children": children, "vars": {"fleet_stack": "baremetal", "fleet_version": 1}}}
    (root / "lab").mkdir(parents=True)
    (root / "lab/hosts.yml").write_text(yaml.safe_dump(tree))
    return root


if __name__ == "__main__":
    main()
