"""`make demo`: the whole way, from nothing to a question over a table answered by a real model on two nodes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from coderack.fleet import inventory
from coderack.spec.checked import SpecError
from coderack.spec.fleet import Fleet
from coderack_lab import cgroups, contact, image, lifecycle, serving, stand_ins
from coderack_lab import settings as s
from coderack_lab.errors import LabError
from coderack_lab.progress import Progress
from coderack_lab.shell import CommandFailed, run

_STEPS = 8
_SCHEMA = s.ROOT / "tests/lab/demo/orders.sql"
_QUESTION = "How many orders are there?"


def run_demo() -> None:
    """Run all steps, keeping what an earlier whole run left standing. Raises LabError naming the step that failed."""
    progress = Progress(_STEPS, s.LOGS)
    try:
        _all_steps(progress)
    except LabError as error:
        raise (
            type(error)(*error.args) if not isinstance(error, CommandFailed) else LabError(_failure(progress, error))
        ) from error
    _tell_where_things_are(progress.elapsed())


def _failure(progress: Progress, error: CommandFailed) -> str:
    return (
        f"step `{progress.current}` failed: {' '.join(error.command[:5])} … ended with exit code {error.code}.\n"
        f"{error.tail}\n    whole log: {progress.log}\n"
        "    next: read the log, then run `make demo` again (it starts over where needed), or `make lab-down`."
    )


def _all_steps(progress: Progress) -> None:
    prepare(progress)
    with progress.step("network and cloud (AWS emulator on loopback)", "cloud"):
        done = lifecycle.up()
    # From here on everything this command starts is found again by lab-down, whatever happens to us.
    cgroups.enter(cgroups.create("work"))
    lifecycle.set_phase("provisioning")
    with progress.step(f"provision: {_provisioner()} ({done})", "provision") as log:
        run(_provision(), log=log, cwd=s.ROOT, timeout=900)
    with progress.step("nodes boot, and their SSH host keys are pinned", "nodes") as log:
        nodes = _fleet().nodes
        lifecycle.wait_for_nodes({node.instance_id for node in nodes if node.instance_id})
        accept = " ".join(f"--accept-changed {name}" for name in made_anew([node.name for node in nodes]))
        run(_make("host-keys", accept), log=log, cwd=s.ROOT, timeout=60)
    lifecycle.set_phase("configuring")
    with progress.step("configure: ansible-playbook site.yml, engines load the model", "site") as log:
        run(_make("configure"), log=log, cwd=s.ROOT, timeout=1200)
    lifecycle.set_phase("ready")
    _ask()


def prepare(progress: Progress) -> None:
    """Make, or find in the cache, what the nodes are made of."""
    cgroups.kill("build")  # an earlier run's builder, if that run was killed
    with progress.step(f"base image: Debian {s.SUITE}", "image") as log:
        image.build(log)
    with progress.step("vLLM's CPU build in an environment of its own", "vllm") as log:
        serving.build_environment(log)
    with progress.step("models: SmolLM2-135M-Instruct and a tiny Qwen3-MoE", "models") as log:
        serving.build_models(log)
    with progress.step("stand-ins for NVIDIA's packages", "stand-ins"):
        stand_ins.build()


def _without_terraform() -> bool:
    return os.environ.get("TERRAFORM") == "none"


def _provisioner() -> str:
    if _without_terraform():
        return "TERRAFORM=none, so the nodes are made through the EC2 API; Terraform is NOT RUN"
    return "Terraform makes the nodes"


def _provision() -> list[str]:
    if not _without_terraform():
        return _make("provision")
    here = f"{sys.executable} -m coderack_lab instances"
    return ["bash", "-o", "pipefail", "-c", f"{here} | {_coderack()} fleet write --env lab -"]


def _fleet() -> Fleet:
    """The machines that `provision` wrote into the inventory. Raises LabError when it cannot be read."""
    try:
        return inventory.read(s.INVENTORY / "hosts.yml")
    except (SpecError, inventory.NoInventory) as error:
        raise LabError(f"{error}\n`make fleet ENV=lab` writes it anew.") from error


def made_anew(names: list[str]) -> list[str]:
    """Which of these nodes have a disk younger than the pinned host keys: other machines, at addresses known before.

    Their keys must differ, and are accepted. A changed key of any other node is refused, as everywhere.
    """
    if not s.PINS.exists():
        return []
    pinned = s.PINS.stat().st_mtime
    # A node mounts its root where the host does not see it: on the host this folder stays as it was made.
    roots = {name: s.STATE / "nodes" / name / "root" for name in names}
    return [name for name, root in roots.items() if root.exists() and root.stat().st_mtime > pinned]


def _coderack() -> Path:
    return Path(sys.executable).parent / "coderack"


def _make(target: str, arguments: str = "") -> list[str]:
    # ARGS is always given: an outer make's were for the outer target.
    return ["make", "--no-print-directory", target, "ENV=lab", f"ARGS={arguments}"]


def ask_command() -> list[str]:
    """The question, as anyone may ask it from this host."""
    return [
        str(_coderack()), "ask",
        "--url", f"https://localhost:{s.GATEWAY_PORT}",
        "--key-file", str(s.INVENTORY / "secrets/api-keys/demo"),
        "--ca-file", str(s.INVENTORY / "secrets/gateway-ca.crt"),
        "--model", "smollm2-135m-instruct", "--schema", str(_SCHEMA), _QUESTION,
    ]  # fmt: skip


def _ask() -> None:
    print(f"\nQuestion:  {_QUESTION}\nSchema given to the model ({_SCHEMA.relative_to(s.ROOT)}):\n")
    print("\n".join(f"    {line}" for line in _SCHEMA.read_text().splitlines()))
    print("\nAnswer, as it comes through the TLS gateway:\n", flush=True)
    done = subprocess.run(ask_command(), stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise LabError(
            f"the question was not answered: `coderack ask` ended with exit code {done.returncode}; wanted: 0. "
            f"By hand: {' '.join(ask_command())}"
        )


def _pasted(command: list[str]) -> str:
    """The command with paths as seen from the repository's root."""
    return shlex.join(word.removeprefix(f"{s.ROOT}/") for word in command)


def _tell_where_things_are(elapsed: float) -> None:
    nodes = contact.read_status().get("nodes")
    secrets = (s.INVENTORY / "secrets").relative_to(s.ROOT)
    print(f"\nThe lab is up ({elapsed:.0f} s). What stands where:\n")
    for node in nodes if isinstance(nodes, list) else []:
        name = node["name"]
        print(f"    {name:8} {node['address']:12} {node['role']:4} {node['instance_id']}  make lab-ssh NODE={name}")
    print(f"""
    endpoint      https://localhost:{s.GATEWAY_PORT}/v1
                  API key in {secrets}/api-keys/demo, CA certificate {secrets}/gateway-ca.crt
    Prometheus    http://127.0.0.1:{s.PROMETHEUS_PORT}
    Alertmanager  http://127.0.0.1:{s.ALERTMANAGER_PORT}
    EC2 API       http://127.0.0.1:{s.AWS_PORT} (emulator)
    logs          {s.LOGS.relative_to(s.ROOT)}

Look around:   make lab-status · make lab-ssh NODE=gpu-a · make smoke · make lab-fault NODE=gpu-b KIND=partition
Ask yourself:  {_pasted(ask_command()[:-1])} "What is the largest order?"
Tear down:     make lab-down""")
