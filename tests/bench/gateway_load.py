"""What the benchmarks on the standing lab share: load through the gateway, commands on nodes."""

from __future__ import annotations

import json
import os
import ssl
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
SECRETS = ROOT / "inventories/lab/secrets"
FAILED = 0  # instead of an HTTP status: no answer, or one without a choice


@dataclass
class Load:
    """Requests through the gateway, one after the other in each of a few threads, with when and how each ended."""

    model: str
    threads: int = 2
    max_tokens: int = 8
    ended: list[tuple[float, int]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> Load:
        for _ in range(self.threads):
            threading.Thread(target=self._run, daemon=True).start()
        return self

    def after(self, when: float) -> list[tuple[float, int]]:
        """Time and status of what ended after `when` (Unix time), oldest first."""
        return sorted(one for one in list(self.ended) if one[0] > when)

    def _run(self) -> None:
        context = ssl.create_default_context(cafile=str(SECRETS / "gateway-ca.crt"))
        body = json.dumps({"model": self.model, "prompt": "SELECT", "max_tokens": self.max_tokens}).encode()
        key = (SECRETS / "api-keys/demo").read_text().strip()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        while not self.stop.is_set():
            request = urllib.request.Request(f"{GATEWAY}/v1/completions", body, headers)  # noqa: S310
            try:
                with urllib.request.urlopen(request, timeout=20, context=context) as answer:  # noqa: S310
                    status = answer.status if json.load(answer).get("choices") else FAILED
            except urllib.error.HTTPError as error:
                status = error.code
            except (OSError, ValueError):
                status = FAILED
            self.ended.append((time.time(), status))
            time.sleep(0.1 if status == 200 else 0.5)


def on(node: str, command: str) -> str:
    """Standard output of a shell command on a node of the lab."""
    done = subprocess.run(
        [sys.executable, "-m", "coderack_lab", "ssh", node, "--", command],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "tests/lab")}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    return done.stdout


def kill_engine(node: str) -> float:
    """kill -9 one engine process of the node; return when, as Unix time. Raises SystemExit when there is none."""
    command = (
        'pids=$(pgrep -f VLLM::EngineCore) && sudo kill -9 $(echo "$pids" | head -n 1) && echo killed $(date +%s.%N)'
    )
    words = on(node, command).split()
    if "killed" not in words:
        raise SystemExit(f"no engine to kill on {node}; wanted: the lab up and serving")
    return float(words[-1])
