"""Runs the real Terraform on the stack, with state, plugins and settings in a directory of its own."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
STACK = REPOSITORY / "terraform" / "stacks" / "aws"
LAB_VARIABLES = REPOSITORY / "inventories" / "lab" / "terraform.tfvars"
REGION = "us-west-2"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHUnM1Ky2q1k3WHt8mGeOb1hUzWJm9JZ1XJQy8k8wY3f test"  # no private half

FILESYSTEM_MIRROR = """\
provider_installation {{
  filesystem_mirror {{
    path    = {path}
    include = ["hashicorp/aws"]
  }}
  direct {{
    exclude = ["hashicorp/aws"]
  }}
}}
"""


@dataclass(frozen=True)
class Terraform:
    """One initialised or initialisable root module."""

    binary: str
    directory: Path
    work: Path
    endpoint: str = "http://127.0.0.1:9"  # nothing listens there: a test that needs no cloud fails if it asks one

    def __call__(self, *arguments: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
        command = [self.binary, f"-chdir={self.directory}", *arguments]
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False
        )

    def must(self, *arguments: str, timeout: int = 300) -> str:
        """Standard output of a command that has to succeed."""
        done = self(*arguments, timeout=timeout)
        assert done.returncode == 0, f"terraform {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def output(self, name: str) -> Any:
        return json.loads(self.must("output", "-json", name))

    def environment(self) -> dict[str, str]:
        """For Terraform, and for other programs that are to see the same cloud."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "TF_"))}
        environment |= {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.endpoint,
            "TF_DATA_DIR": str(self.work / "data"),
            "TF_IN_AUTOMATION": "1",
            "TF_CLI_ARGS": "-no-color",
            "TF_VAR_ssh_public_key": PUBLIC_KEY,
        }
        return environment | self._plugin_source()

    def _plugin_source(self) -> dict[str, str]:
        """The machine's provider mirror if TF_MIRROR names one; else the user's own configuration, if it exists."""
        mirror = os.environ.get("TF_MIRROR")
        if mirror and any(Path(mirror).glob("*/hashicorp/aws")):
            configuration = self.work / "terraform.rc"
            configuration.write_text(FILESYSTEM_MIRROR.format(path=json.dumps(mirror)), encoding="utf-8")
            return {"TF_CLI_CONFIG_FILE": str(configuration)}
        own = os.environ.get("TF_CLI_CONFIG_FILE")
        return {"TF_CLI_CONFIG_FILE": own} if own and Path(own).is_file() else {}


def find_binary() -> str | None:
    return shutil.which(os.environ.get("TERRAFORM") or "terraform")
