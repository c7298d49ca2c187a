"""The main job: from nothing to an answered question, and a second run that finds nothing to do."""

from __future__ import annotations

import re

from harness import Lab, configure, make


def test_the_demo_answers_the_question_with_sql(the_lab: Lab) -> None:
    assert "How many orders are there?" in the_lab.demo.text
    assert "CREATE TABLE orders" in the_lab.demo.text
    assert re.search(r"SQL +SELECT COUNT\(\*\) [^\n]*FROM orders", the_lab.demo.text, re.IGNORECASE)


def test_the_demo_says_how_fast_it_was_and_where_things_are(the_lab: Lab) -> None:
    assert "TTFT" in the_lab.demo.text
    assert "tokens/s" in the_lab.demo.text
    for name, address in the_lab.addresses.items():
        assert f"make lab-ssh NODE={name}" in the_lab.demo.text
        assert address in the_lab.demo.text
    assert "make lab-down" in the_lab.demo.text


def test_the_demo_before_was_killed_and_its_rest_repaired(the_lab: Lab) -> None:
    assert "repaired and started" in the_lab.demo.text


def test_a_dry_run_on_fresh_nodes_shows_changes_and_does_not_fail(the_lab: Lab) -> None:
    assert the_lab.fresh_check.code == 0, the_lab.fresh_check.text
    changed = the_lab.fresh_check.changed()
    assert {"gpu-a", "gpu-b", "ops"} <= changed.keys()
    assert all(changed[node] > 0 for node in ("gpu-a", "gpu-b", "ops"))


def test_a_second_run_changes_nothing(the_lab: Lab) -> None:
    done = configure()
    assert done.code == 0, done.text
    changed = done.changed()
    assert {"gpu-a", "gpu-b", "ops"} <= changed.keys()
    assert set(changed.values()) == {0}, done.text


def test_a_dry_run_on_converged_nodes_shows_no_change(the_lab: Lab) -> None:
    done = make("check", "ENV=lab")
    assert done.code == 0, done.text
    assert set(done.changed().values()) == {0}, done.text
