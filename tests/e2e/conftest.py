"""The lab end to end: one lab for the whole run, brought up from nothing, used by every test, taken down by the last.

The files are numbered because each goes on from the state that the one before leaves, as an evening with the lab does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from harness import AWS, Done, Lab, kill_demo_after, lab, make, nodes, provision


@pytest.fixture(scope="session")
def ec2() -> Any:
    """An EC2 client for the lab's cloud."""
    return boto3.client(
        "ec2", endpoint_url=AWS, region_name="us-west-2", aws_access_key_id="lab", aws_secret_access_key="lab"
    )


@pytest.fixture(scope="session")
def the_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Take down what is there; cloud, nodes and their keys, a dry run on them; a demo that is killed; `make demo`."""
    if os.environ.get("E2E_REUSE_LAB"):  # for work on single tests: E2E_REUSE_LAB=1 pytest tests/e2e/test_2_endpoint.py
        addresses = {name: node["address"] for name, node in nodes().items()}
        return Lab(Path(os.devnull), Done(0, ""), Done(0, ""), addresses)
    assert make("lab-down").code == 0
    before = tmp_path_factory.mktemp("host") / "before.txt"
    before.write_text(lab("snapshot").text)
    up = make("lab-up", timeout=1800)
    assert up.code == 0, up.text
    made = provision()
    assert made.code == 0, made.text
    assert lab("wait").code == 0
    pinned = make("host-keys", "ENV=lab")
    assert pinned.code == 0, pinned.text
    fresh = make("check", "ENV=lab")
    kill_demo_after(40)
    demo = make("demo", timeout=1800)
    assert demo.code == 0, demo.text
    return Lab(before, fresh, demo, {name: node["address"] for name, node in nodes().items()})


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool], float], bool]:
    """Ask again every second until it holds or the seconds are over."""

    def wait(holds: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if holds():
                return True
            time.sleep(1)
        return False

    return wait
