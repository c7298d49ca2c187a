"""The `coderack` command: within the test's process, and as a process of its own."""

import gc
import subprocess
import sys

from typer.testing import CliRunner

from coderack.cli.main import app

from .data import REPOSITORY


def run(*words: str, stdin: str | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `coderack WORDS`, run here."""
    result = CliRunner().invoke(app, words, input=stdin)
    gc.enable()  # a command that lives for a second does without
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


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
