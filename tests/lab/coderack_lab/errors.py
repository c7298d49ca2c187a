"""The lab's own errors: words for the person at the terminal, and the exit code that goes with them."""

from __future__ import annotations


class LabError(Exception):
    """Something does not hold. The message names the thing, the value seen, the value wanted and the next step."""

    exit_code = 1


class BadInput(LabError):
    """The command's words are off; nothing was touched."""

    exit_code = 2


class Unknown(LabError):
    """It could not be found out whether it holds."""

    exit_code = 3


class Interrupted(LabError):
    """Ctrl-C, SIGTERM, or the caller died."""

    exit_code = 130
