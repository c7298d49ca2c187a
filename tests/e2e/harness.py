"""What the end-to-end tests do again and again: run commands, ask the endpoint, look at nodes and metrics."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AWS = "http://127.0.0.1:" + os.environ.get("LAB_AWS_PORT", "5601")
GATEWAY = "https://localhost:" + os.environ.get("LAB_GATEWAY_PORT", "18443")
PROMETHEUS = "http://127.0.0.1:" + os.environ.get("LAB_PROMETHEUS_PORT", "19090")
SECRETS = ROOT / "inventories/lab/secrets"
PINS = ROOT / "inventories/lab/known_hosts"
# What an outer make hands down (its ARGS, for one) was not meant for the commands under test.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "ARGS")}
WITHOUT_TERRAFORM = os.environ.get("TERRAFORM") == "none"


@dataclass(frozen=True)
class Done:
    """A command that ended: exit code and both outputs together."""

    code: int
    text: str

    def changed(self) -> dict[str, int]:
        """`changed=` of every host in a playbook's recap."""
        return {host: int(n) for host, n in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", self.text, re.MULTILINE)}


def run(*command: str, timeout: float = 900, **environment: str) -> Done:
    """Run a command in the project's folder."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
        env={**_ENVIRONMENT, **environment},
    )
    print(f"$ {shlex.join(command)} -> {done.returncode}\n{done.stdout}")
    return Done(done.returncode, done.stdout)


def make(*arguments: str, timeout: float = 900, **environment: str) -> Done:
    return run("make", "--no-print-directory", *arguments, timeout=timeout, **environment)


def lab(*arguments: str) -> Done:
    """A command of the lab itself, as the Makefile would call it."""
    return run(sys.executable, "-m", "coderack_lab", *arguments, PYTHONPATH=str(ROOT / "tests/lab"))


def configure(*arguments: str, timeout: float = 900) -> Done:
    """`make configure` with further arguments for ansible-playbook."""
    return make("configure", "ENV=lab", f"ARGS={shlex.join(arguments)}", timeout=timeout)


@dataclass
class Lab:
    """The lab of this run and what came out while it was brought up."""

    before: Path
    fresh_check: Done
    demo: Done
    addresses: dict[str, str] = field(default_factory=dict)

    def on(self, node: str, command: str, *, timeout: float = 60) -> Done:
        """Run a shell command on a node as its default user."""
        return run(sys.executable, "-m", "coderack_lab", "ssh", node, "--", command,
                   timeout=timeout, PYTHONPATH=str(ROOT / "tests/lab"))  # fmt: skip


def nodes() -> dict[str, dict[str, str]]:
    """What `lab-status` says of each node, by name."""
    status = json.loads(lab("status", "--json").text)
    return {node["name"]: node for node in status["nodes"]}


def curl(*arguments: str) -> tuple[int, str]:
    """HTTP status (0: no answer) and body of a request with curl."""
    done = run("curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *arguments)
    body, _, status = done.text.rpartition("\n")
    return int(status or 0), body


def key(name: str = "demo") -> str:
    return (SECRETS / "api-keys" / name).read_text().strip()


def ask_gateway(path: str, body: dict[str, object] | None = None, *, api_key: str | None = None) -> tuple[int, str]:
    """One request through the TLS gateway; `api_key` None sends none."""
    arguments = ["--cacert", str(SECRETS / "gateway-ca.crt")]
    if api_key is not None:
        arguments += ["-H", f"Authorization: Bearer {api_key}"]
    if body is not None:
        arguments += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return curl(*arguments, f"{GATEWAY}{path}")


@contextmanager
def stream_from_gateway(body: dict[str, object], api_key: str, into: Path) -> Iterator[None]:
    """A streamed completion that runs while the block does, its events in the file `into`; waits for its end."""
    arguments = ["--cacert", str(SECRETS / "gateway-ca.crt"), "-H", f"Authorization: Bearer {api_key}"]
    arguments += ["-H", "Content-Type: application/json", "-d", json.dumps(body), f"{GATEWAY}/v1/completions"]
    with into.open("wb") as file, subprocess.Popen(
        ["curl", "-sSN", "--max-time", "120", *arguments], stdout=file, stderr=subprocess.STDOUT, env=_ENVIRONMENT
    ) as curling:  # fmt: skip
        yield
        curling.wait()


def prometheus(query: str) -> list[dict[str, Any]]:
    """Result vector of an instant query."""
    status, body = curl("-G", "--data-urlencode", f"query={query}", f"{PROMETHEUS}/api/v1/query")
    assert status == 200, body
    return list(json.loads(body)["data"]["result"])


def kill_demo_after(seconds: float) -> None:
    """Start `make demo` and SIGKILL it, with all of its process group, in the middle of its work."""
    with subprocess.Popen(
        ["make", "--no-print-directory", "demo"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=_ENVIRONMENT,
    ) as demo:
        try:
            ended = demo.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(demo.pid, signal.SIGKILL)
        else:
            raise AssertionError(
                f"make demo ended with {ended} after less than {seconds} s; it was to be killed at work"
            )


def provision() -> Done:
    """The three machines; without Terraform the same ones through the EC2 API alone."""
    if not WITHOUT_TERRAFORM:
        return make("provision", "ENV=lab")
    script = f"{sys.executable} -m coderack_lab instances | coderack fleet write --env lab -"
    return run("bash", "-o", "pipefail", "-c", script, PYTHONPATH=str(ROOT / "tests/lab"))
