"""`coderack health profile`: what a node is judged by, for people and for a role that validates its file."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from coderack.cli.health import app

RUN = CliRunner()


def test_the_effective_profile_can_be_read_back() -> None:
    done = RUN.invoke(app, ["profile", "--profile", "h100-sxm", "--set", "gpus.count=4"])
    assert done.exit_code == 0
    assert yaml.safe_load(done.stdout)["gpus"]["count"] == 4


def test_json_has_a_schema_and_every_limit() -> None:
    printed = json.loads(RUN.invoke(app, ["profile", "--profile", "h200-vm", "--json"]).stdout)
    assert printed["schema"] == "coderack.health-profile/1"
    assert printed["limits"]["window_seconds"] == 300


def test_a_file_with_a_misspelt_key_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "health.yml"
    file.write_text("profile: h100-sxm\ngpu: {count: 8}\n")
    done = RUN.invoke(app, ["profile", "--profile", str(file)])
    assert done.exit_code == 2
    assert "gpu is not a known key" in done.stderr
