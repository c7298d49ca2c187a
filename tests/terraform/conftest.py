"""Real Terraform and the real AWS provider against the lab's AWS emulator, which runs inside the test process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coderack_lab.aws.server import Emulator, start

from .runner import REPOSITORY, STACK, Terraform, find_binary

BACKEND = REPOSITORY / "inventories" / "lab" / "backend.hcl"  # a bucket with which the emulator begins


@pytest.fixture(scope="session")
def terraform_binary() -> str:
    if os.environ.get("TERRAFORM") == "none":
        pytest.skip("TERRAFORM=none: NOTHING of the Terraform code was planned, applied or refused")
    binary = find_binary()
    if binary is None:
        pytest.fail(
            "Terraform is not on PATH. Install Terraform 1.11 or newer, or set TERRAFORM=none to leave this out."
        )
    return binary


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    running = start("127.0.0.1", 0)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def stack(terraform_binary: str, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    """The stack, initialised with an empty state."""
    work: Path = tmp_path_factory.mktemp("terraform")
    terraform = Terraform(terraform_binary, STACK, work, emulator.endpoint)
    terraform.must("init", "-input=false", "-lockfile=readonly", f"-backend-config={BACKEND}")
    return terraform
