"""The `coderack` command as a process of its own."""

import subprocess
import sys

from .data import REPOSITORY


def coderack(*words: str, stdin: str = "", shell_redirection: str = "") -> subprocess.CompletedProcess[str]:
    """Run `coderack WORDS` in the current directory; `shell_redirection` is what a user would write behind it."""
    command = [sys.executable, "-m", "coderack.cli.main", *words]
    if shell_redirection:
        command = ["/bin/sh", "-c", f'exec "$@" {shell_redirection}', "sh", *command]
    return subprocess.run(
        command,
        input=stdin,
        env={"PYTHONPATH": str(REPOSITORY / "tools"), "PATH": "", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
