"""The tests that stand with the code (`terraform test`, offline with a mocked provider); `validate` for the rest."""

import shutil
from pathlib import Path

import pytest

from .runner import REPOSITORY, Terraform

TERRAFORM = REPOSITORY / "terraform"
DIRECTORIES = sorted({file.parent for file in TERRAFORM.glob("*/*/*.tf")})
TESTED = [directory for directory in DIRECTORIES if list(directory.glob("tests/*.tftest.hcl"))]
# A test validates as well; starting the provider once more for that would only take time.
UNTESTED = [directory for directory in DIRECTORIES if directory not in TESTED]


def name(directory: Path) -> str:
    return directory.name


@pytest.mark.parametrize("directory", TESTED, ids=name)
def test_passes_its_own_tests(directory: Path, terraform_binary: str, tmp_path: Path) -> None:
    done = initialised(directory, terraform_binary, tmp_path)("test")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("directory", UNTESTED, ids=name)
def test_is_valid_by_itself(directory: Path, terraform_binary: str, tmp_path: Path) -> None:
    done = initialised(directory, terraform_binary, tmp_path)("validate")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def initialised(directory: Path, terraform_binary: str, work: Path) -> Terraform:
    # A copy, since init writes a lock file beside the code; of everything, since a stack refers to its modules.
    shutil.copytree(TERRAFORM, work / "terraform")
    terraform = Terraform(terraform_binary, work / "terraform" / directory.relative_to(TERRAFORM), work)
    terraform.must("init", "-input=false", "-backend=false")
    return terraform
