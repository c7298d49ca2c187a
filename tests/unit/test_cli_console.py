"""What the whole command does when a verb breaks."""

from __future__ import annotations

import pytest

from coderack.cli.console import Program


def test_a_verb_that_breaks_could_not_find_out(capsys: pytest.CaptureFixture[str]) -> None:
    program = Program()

    @program.command()
    def verb() -> None:
        raise LookupError("a fault of ours")

    with pytest.raises(SystemExit) as end:
        program([])
    assert end.value.code == 3
    said = capsys.readouterr().err
    assert "nothing was found out" in said
    assert "LookupError: a fault of ours" in said
