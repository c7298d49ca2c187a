"""The bucket of the state: made by bootstrap, used and locked by the stack. On the AWS emulator."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coderack_lab.aws.server import Emulator

from .account import ACCOUNT, client
from .runner import LAB_VARIABLES, REGION, REPOSITORY, STACK, Terraform

ROOT = REPOSITORY / "terraform" / "bootstrap"
VARIABLES = ("-var=env=test-bootstrap", f"-var=region={REGION}")
BUCKET = f"coderack-state-{ACCOUNT}-{REGION}"


@dataclass(frozen=True)
class Bootstrapped:
    terraform: Terraform
    s3: Any
    backend: Path  # what `make bootstrap` writes to inventories/<env>/backend.hcl


@pytest.fixture(scope="module")
def made(terraform_binary: str, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Bootstrapped:
    work = tmp_path_factory.mktemp("bootstrap")
    terraform = Terraform(terraform_binary, ROOT, work, emulator.endpoint)
    terraform.must("init", "-input=false", "-lockfile=readonly", f"-backend-config=path={work / 'terraform.tfstate'}")
    terraform.must("apply", "-input=false", "-auto-approve", *VARIABLES)
    backend = work / "backend.hcl"
    backend.write_text(terraform.must("output", "-raw", "backend"), encoding="utf-8")
    return Bootstrapped(terraform, client(emulator, "s3"), backend)


def test_overwritten_states_are_kept(made: Bootstrapped) -> None:
    assert made.s3.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"


def test_state_is_encrypted_by_kms(made: Bootstrapped) -> None:
    rules = made.s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert [rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] for rule in rules] == ["aws:kms"]


def test_nothing_of_it_is_ever_public(made: Bootstrapped) -> None:
    blocked = made.s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    assert set(blocked.values()) == {True}


def test_everything_without_tls_is_denied(made: Bootstrapped) -> None:
    (statement,) = json.loads(made.s3.get_bucket_policy(Bucket=BUCKET)["Policy"])["Statement"]
    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert sorted(statement["Resource"]) == [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]


def test_second_plan_is_empty(made: Bootstrapped) -> None:
    done = made.terraform("plan", "-input=false", "-detailed-exitcode", *VARIABLES)
    assert done.returncode == 0, done.stdout


def test_it_cannot_be_destroyed_in_passing(made: Bootstrapped) -> None:
    done = made.terraform("destroy", "-input=false", "-auto-approve", *VARIABLES)
    assert done.returncode == 1
    assert "Instance cannot be destroyed" in done.stderr
    assert BUCKET in [bucket["Name"] for bucket in made.s3.list_buckets()["Buckets"]]


def test_a_lock_of_somebody_else_stops_the_stack_and_names_the_holder(made: Bootstrapped, tmp_path: Path) -> None:
    terraform = Terraform(made.terraform.binary, STACK, tmp_path, made.terraform.endpoint)
    terraform.must("init", "-input=false", "-lockfile=readonly", f"-backend-config={made.backend}")
    key = re.findall(r'^key += "(.+)"$', made.backend.read_text(encoding="utf-8"), re.MULTILINE)
    assert key == ["test-bootstrap/terraform.tfstate"]
    lock = {"ID": "0", "Operation": "OperationTypeApply", "Who": "ada@example.net", "Created": "2026-01-01T00:00:00Z"}
    made.s3.put_object(Bucket=BUCKET, Key=f"{key[0]}.tflock", Body=json.dumps(lock))
    done = terraform("plan", "-input=false", f"-var-file={LAB_VARIABLES}")
    assert done.returncode == 1
    assert "Error acquiring the state lock" in done.stderr
    assert "ada@example.net" in done.stderr


def test_own_tests_pass(terraform_binary: str, tmp_path: Path) -> None:
    copied = tmp_path / "bootstrap"
    shutil.copytree(ROOT, copied)
    terraform = Terraform(terraform_binary, copied, tmp_path)
    terraform.must("init", "-input=false", "-lockfile=readonly", "-backend=false")
    terraform.must("test")
