import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coderack import __version__
from coderack.cli.main import app

from .data import REPOSITORY, node


@pytest.fixture
def inventories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("aws", "lab", "profiles", ".cache"):
        (tmp_path / "inventories" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "inventories"


def run(*words: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, words, input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_writes_from_standard_input_and_shows_what_it_wrote(inventories: Path, fleet_data: dict[str, Any]) -> None:
    code, out, _ = run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    assert (code, out) == (0, "inventories/lab/hosts.yml written: gpu-a, gpu-b, ops\n")
    code, out, _ = run("fleet", "show", "--env", "lab")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    gpu_a = next(row for row in rows if row[:1] == ["gpu-a"])
    assert " ".join(gpu_a) == "gpu-a gpu 10.77.0.10 10.77.0.10 us-west-2a p5.48xlarge 8 x NVIDIA H100 efa"
    assert [row[0] for row in rows if row and row[0] in ("gpu-a", "gpu-b", "ops")] == ["gpu-a", "gpu-b", "ops"]


def test_writes_from_a_file_and_says_when_nothing_changed(inventories: Path, fleet_data: dict[str, Any]) -> None:
    Path("fleet.json").write_text(json.dumps(fleet_data))
    answers = [json.loads(run("fleet", "write", "--env", "aws", "fleet.json", "--json")[1]) for _ in range(2)]
    assert answers[0] == {
        "schema": "coderack.fleet-write/1",
        "env": "aws",
        "path": "inventories/aws/hosts.yml",
        "changed": True,
        "nodes": ["gpu-a", "gpu-b", "ops"],
    }
    assert answers[1] == answers[0] | {"changed": False}


def test_show_as_json_can_be_written_again(inventories: Path, fleet_data: dict[str, Any]) -> None:
    run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    shown = json.loads(run("fleet", "show", "--env", "lab", "--json")[1])
    assert (shown["schema"], shown["env"]) == ("coderack.fleet/1", "lab")
    code, _, _ = run("fleet", "write", "--env", "aws", "-", stdin=json.dumps(shown["fleet"]))
    assert code == 0
    written = [(inventories / env / "hosts.yml").read_text() for env in ("lab", "aws")]
    assert written[0] == written[1]


def test_bad_input_leaves_the_old_inventory(inventories: Path, fleet_data: dict[str, Any]) -> None:
    run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    old = (inventories / "lab" / "hosts.yml").read_bytes()
    node(fleet_data, "gpu-a").update(private_address="8.8.8.8")
    code, out, err = run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    assert (code, out) == (2, "")
    assert err.startswith("coderack: fleet output: node gpu-a: private_address is '8.8.8.8', wanted an IP address in")
    assert (inventories / "lab" / "hosts.yml").read_bytes() == old


@pytest.mark.parametrize("env", ["prod", "profiles", ".cache", "../inventories/lab", ""])
def test_unknown_environment_names_the_known_ones(inventories: Path, fleet_data: dict[str, Any], env: str) -> None:
    code, _, err = run("fleet", "write", "--env", env, "-", stdin=json.dumps(fleet_data))
    assert (code, err) == (2, f"coderack: environment {env}: not in inventories; known: aws, lab\n")
    assert not list(inventories.rglob("hosts.yml"))


def test_inventories_are_found_by_option_or_environment(
    inventories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    code, _, err = run("fleet", "show", "--env", "lab")
    assert code == 2
    assert "give --inventories or CODERACK_INVENTORIES" in err
    assert run("fleet", "show", "--env", "lab", "--inventories", str(inventories))[0] == 3
    monkeypatch.setenv("CODERACK_INVENTORIES", str(inventories))
    assert run("fleet", "show", "--env", "lab")[0] == 3


def test_an_inventory_that_is_not_there_yet_is_unknown_not_empty(inventories: Path) -> None:
    code, out, err = run("fleet", "show", "--env", "lab")
    assert (code, out) == (3, "")
    assert err == "coderack: inventories/lab/hosts.yml does not exist; write it with `coderack fleet write`\n"


def test_an_input_file_that_is_not_there_is_bad_input(inventories: Path) -> None:
    code, _, err = run("fleet", "write", "--env", "lab", "none.json")
    assert code == 2
    assert "input none.json: cannot be read: " in err


def test_usage_errors_are_2(inventories: Path) -> None:
    assert run("fleet", "write", "-")[0] == 2
    assert run("fleet", "rewrite")[0] == 2


@pytest.mark.parametrize("verb", [("ask",), ("fleet", "write"), ("fleet", "show")])
def test_help_has_an_example(verb: tuple[str, ...]) -> None:
    code, out, _ = run(*verb, "--help")
    assert code == 0
    assert "Example:" in out
    assert f"coderack {' '.join(verb)} --" in " ".join(out.split())


def test_runs_as_a_program(inventories: Path, fleet_data: dict[str, Any]) -> None:
    def coderack(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coderack.cli.main", *words],
            input=stdin,
            env={"PYTHONPATH": str(REPOSITORY / "tools"), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )

    version = coderack("--version")
    assert (version.returncode, version.stdout) == (0, f"coderack {__version__}\n")
    node(fleet_data, "ops").pop("gpus")
    refused = coderack("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "coderack: fleet output: nodes[ops].gpus is missing\n"
