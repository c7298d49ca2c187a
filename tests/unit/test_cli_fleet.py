import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coderack import __version__
from coderack.fleet.contract import parse_fleet

from .data import REPOSITORY, node
from .program import coderack, run


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
        "origin": {"source": "fleet.json"},
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
    assert err.startswith("coderack: fleet output: node gpu-a: private_address is '8.8.8.8', wanted the IPv4")
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


VERBS = ("write", "show", "check", "inventory", "guard", "host-keys", "reserve", "reservations")


@pytest.mark.parametrize("verb", [("ask",), *(("fleet", verb) for verb in VERBS), ("keys", "rotate"), ("keys", "pull")])
def test_help_has_an_example(verb: tuple[str, ...]) -> None:
    code, out, _ = run(*verb, "--help")
    assert code == 0
    assert "Example:" in out
    assert f"coderack {' '.join(verb)} " in " ".join(out[out.index("Example:") :].split())


def test_runs_as_a_program(inventories: Path, fleet_data: dict[str, Any]) -> None:
    version = coderack("--version")
    assert (version.returncode, version.stdout) == (0, f"coderack {__version__}\n")
    node(fleet_data, "ops").pop("gpus")
    refused = coderack("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "coderack: fleet output: nodes[ops].gpus is missing\n"


def test_closed_standard_input_is_2(inventories: Path) -> None:
    run = coderack("fleet", "write", "--env", "lab", "-", shell_redirection="<&-")
    assert (run.returncode, run.stderr) == (2, "coderack: input -: standard input is closed; give a file or a pipe\n")


def test_a_message_that_nobody_can_read_leaves_the_code(inventories: Path) -> None:
    assert coderack("fleet", "show", "--env", "nosuch", shell_redirection="2>/dev/full").returncode == 2
    assert coderack("fleet", "show", "--env", "lab", shell_redirection="2>/dev/full").returncode == 3


@pytest.mark.parametrize("json_option", [(), ("--json",)])
@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        (">/dev/full", "the output cannot be written: [Errno 28] No space left on device"),
        (">&-", "standard output is closed"),
    ],
)
def test_output_that_is_lost_is_3_without_a_traceback(
    inventories: Path, fleet_data: dict[str, Any], redirection: str, message: str, json_option: tuple[str, ...]
) -> None:
    run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    lost = coderack("fleet", "show", "--env", "lab", *json_option, shell_redirection=redirection)
    assert (lost.returncode, lost.stderr) == (3, f"coderack: {message}\n")


def test_a_reader_that_went_away_is_3_without_a_traceback(inventories: Path, fleet_data: dict[str, Any]) -> None:
    run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        show = [sys.executable, "-m", "coderack.cli.main", "fleet", "show", "--env", "lab"]
        lost = subprocess.run(
            show,
            stdout=writer,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": str(REPOSITORY / "tools")},
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (lost.returncode, lost.stderr) == (3, "coderack: the output cannot be written: [Errno 32] Broken pipe\n")


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_a_hosts_file_that_is_no_regular_file_is_2(inventories: Path, fleet_data: dict[str, Any], kind: str) -> None:
    path = inventories / "lab" / "hosts.yml"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/nowhere")
    for words in (("fleet", "write", "--env", "lab", "-"), ("fleet", "show", "--env", "lab")):
        code, out, err = run(*words, stdin=json.dumps(fleet_data))
        assert (code, out) == (2, "")
        assert err == "coderack: inventories/lab/hosts.yml: is no regular file; move it away first\n"


def test_help_of_write_has_a_whole_contract_for_bare_metal() -> None:
    _, out, _ = run("fleet", "write", "--help")
    contract = out[out.index('{"version"') : out.index("}]}") + 3]
    fleet = parse_fleet(contract)
    assert [(entry.name, entry.role, entry.gpus.count) for entry in fleet.nodes] == [
        ("gpu-a", "gpu", 8),
        ("gpu-b", "gpu", 8),
        ("ops", "ops", 0),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu-nodes", "4"), "2 GPU nodes (gpu-a, gpu-b), wanted 4 (--gpu-nodes)"),
        (("--gpus-per-node", "4"), "node gpu-a: gpus.count is 8, wanted 4 (--gpus-per-node)"),
    ],
)
def test_refuses_another_number_than_the_operator_wants(
    inventories: Path, fleet_data: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    code, _, err = run("fleet", "write", "--env", "lab", "-", *options, stdin=json.dumps(fleet_data))
    assert code == 2
    assert message in err
    assert not (inventories / "lab" / "hosts.yml").exists()
    wanted = ("--gpu-nodes", "2", "--gpus-per-node", "8")
    assert run("fleet", "write", "--env", "lab", "-", *wanted, stdin=json.dumps(fleet_data))[0] == 0


# As it was written before there were images, placement groups and regions.
OLDER = """\
# Generated by `coderack fleet write` from the Terraform output `fleet`: change it there, not here.
---
all:
  children:
    gpu_nodes:
      hosts:
        gpu-a:
          ansible_host: 10.77.0.4
          fleet_fabric:
            devices:
              - rdmap0s6
            kind: efa
          fleet_gpus:
            count: 8
            model: NVIDIA H100
          fleet_instance_id: i-0bbb
          fleet_private_address: 10.77.0.4
          fleet_reservation:
            ends_at: '2027-01-31T11:30:00Z'
            id: cr-0123
    ops_nodes:
      hosts:
        ops:
          ansible_host: 10.77.0.5
          fleet_fabric:
            devices: []
            kind: none
          fleet_gpus:
            count: 0
            model: none
          fleet_private_address: 10.77.0.5
  vars:
    fleet_stack: aws
    fleet_version: 1
"""


def test_an_older_inventory_is_still_read(inventories: Path) -> None:
    (inventories / "aws" / "hosts.yml").write_text(OLDER)
    code, out, err = run("fleet", "show", "--env", "aws", "--json")
    assert (code, err) == (0, "")
    assert [entry["name"] for entry in json.loads(out)["fleet"]["nodes"]] == ["gpu-a", "ops"]


def test_lists_the_fleet_for_ansible_from_the_file_or_from_a_contract(
    inventories: Path, fleet_data: dict[str, Any]
) -> None:
    contract = json.dumps(fleet_data)
    code, from_contract, _ = run("fleet", "inventory", "--env", "lab", "-", "--list", stdin=contract)
    assert code == 0
    run("fleet", "write", "--env", "lab", "-", stdin=contract)
    code, from_file, _ = run("fleet", "inventory", "--env", "lab", "--list")
    assert (code, from_file) == (0, from_contract)
    listing = json.loads(from_file)
    assert listing["gpu_nodes"] == {"hosts": ["gpu-a", "gpu-b"]}
    assert listing["all"] == {
        "children": ["gpu_nodes", "ops_nodes"],
        "vars": {"fleet_stack": "aws", "fleet_version": 1},
    }
    code, host, _ = run("fleet", "inventory", "--env", "lab", "--host", "gpu-b")
    assert (code, json.loads(host)) == (0, listing["_meta"]["hostvars"]["gpu-b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "neither of --list and --host NAME given"),
        (("--list", "--host", "ops"), "both of --list and --host NAME given"),
        (("--host", "gpu-z"), "host gpu-z: no such node; known: gpu-a, gpu-b, ops"),
    ],
)
def test_the_dynamic_form_wants_one_question(
    inventories: Path, fleet_data: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    code, out, err = run("fleet", "inventory", "--env", "lab", *options)
    assert (code, out) == (2, "")
    assert message in err


def test_ansible_takes_the_command_as_a_script(
    inventories: Path, fleet_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    script = Path("dynamic")
    command = f"PYTHONPATH={REPOSITORY / 'tools'} exec {sys.executable} -m coderack.cli.main fleet inventory --env lab"
    script.write_text(f'#!/bin/sh\n{command} "$@"\n')
    script.chmod(0o755)
    program = str(Path(sys.executable).with_name("ansible-inventory"))
    done = subprocess.run([program, "-i", "dynamic", "--list"], capture_output=True, text=True, check=True)
    listing = json.loads(done.stdout)
    assert listing["_meta"]["hostvars"]["gpu-b"]["fleet_fabric"]["devices"] == ["rdmap0s6", "rdmap0s7"]
    assert listing["_meta"]["hostvars"]["ops"]["fleet_stack"] == "aws"


def test_ansible_passes_over_what_else_lies_in_an_environment(
    inventories: Path, fleet_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("fleet", "write", "--env", "lab", "-", stdin=json.dumps(fleet_data))
    for name in ("known_hosts", "reservation.auto.tfvars.json", ".reservation.lock", ".reservation-intent.json"):
        (inventories / "lab" / name).write_text("[not an inventory")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(REPOSITORY / "ansible" / "ansible.cfg"))
    program = str(Path(sys.executable).with_name("ansible-inventory"))
    done = subprocess.run([program, "-i", "inventories/lab", "--list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
