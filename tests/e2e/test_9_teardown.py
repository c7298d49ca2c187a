"""After lab-down the host is as it was."""

from __future__ import annotations

from harness import Lab, lab, make


def test_the_lab_leaves_nothing_behind(the_lab: Lab) -> None:
    assert make("lab-down").code == 0
    after = lab("snapshot", "--compare", str(the_lab.before))
    assert after.code == 0, after.text


def test_taking_down_twice_is_fine(the_lab: Lab) -> None:
    assert make("lab-down").code == 0
