"""The modules' own tests (`terraform test`), offline with a mocked provider."""

import shutil
from pathlib import Path

import pytest

from .runner import REPOSITORY, Terraform

MODULES = REPOSITORY / "terraform" / "modules"
TESTED = sorted({file.relative_to(MODULES).parts[0] for file in MODULES.glob("*/tests/*.tftest.hcl")})


@pytest.mark.parametrize("module", TESTED)
def test_module_passes_its_own_tests(module: str, terraform_binary: str, tmp_path: Path) -> None:
    # A copy, since init writes a lock file beside the code.
    copied = tmp_path / module
    shutil.copytree(MODULES / module, copied)
    terraform = Terraform(terraform_binary, copied, tmp_path)
    terraform.must("init", "-input=false")
    done = terraform("test")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
