"""Terraform's state, through the program itself: it knows the backend and has the right to read it."""

import os
import re
import subprocess
from pathlib import Path

_TIMEOUT_S = 300
# What Terraform draws around its errors: colours, and a line at the left.
_FRAME = re.compile(r"\x1b\[[0-9;]*m|[╷│╵]")


class TerraformError(Exception):
    """Terraform could not be run or did not succeed: nothing is known about the stack."""


def state(directory: Path) -> str:
    """What `terraform state pull` prints for the stack in `directory`: JSON, or nothing where none was applied.

    The program is $TERRAFORM or `terraform`. The caller's environment (TF_DATA_DIR, credentials) is its environment.
    """
    program = os.environ.get("TERRAFORM") or "terraform"
    command = [program, f"-chdir={directory}", "state", "pull"]
    shown = " ".join(command)
    if not directory.is_dir():
        raise TerraformError(f"{directory} is no directory; wanted a Terraform root such as terraform/stacks/aws")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise TerraformError(f"{program} is not on PATH; install Terraform, or set TERRAFORM to its path") from None
    except OSError as error:
        raise TerraformError(f"{shown} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        raise TerraformError(f"{shown} gave no answer within {_TIMEOUT_S} s; is its backend reachable?") from None
    if done.returncode != 0:
        said = " ".join(_FRAME.sub("", done.stderr.decode(errors="replace")).split())[-600:] or "nothing"
        remedy = (
            "Has `terraform init` run there? make keeps what init leaves per environment: use make fleet, drift or "
            "rotate-key, or set TF_DATA_DIR=$PWD/.build/ENV/terraform/data as they do."
        )
        raise TerraformError(f"{shown} ended with {done.returncode}: {said}\n{remedy}")
    return done.stdout.decode(errors="replace")
