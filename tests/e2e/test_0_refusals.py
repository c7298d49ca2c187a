"""What the lab refuses, before it touches anything: one clear message, one exit code, the host as it was."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Done, lab, make, run

PREFLIGHT = "python3 tests/lab/coderack_lab/preflight.py"


@pytest.fixture(scope="module", autouse=True)
def nothing_changes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    assert make("lab-down").code == 0
    before = tmp_path_factory.mktemp("refusals") / "before.txt"
    before.write_text(lab("snapshot").text)
    yield
    after = lab("snapshot", "--compare", str(before))
    assert after.code == 0, after.text


def in_mount_namespace(prepare: str) -> Done:
    """The preflight with a changed view of the host that ends with it."""
    return run("unshare", "--mount", "bash", "-ec", f"{prepare}; exec {PREFLIGHT}")


def test_another_user_than_root_is_refused() -> None:
    done = run("setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", *PREFLIGHT.split()[1:])
    assert done.code == 1
    assert "not root (user id 65534); wanted: root" in done.text
    assert "nothing was changed" in done.text


def test_missing_terraform_is_refused() -> None:
    done = make("preflight", TERRAFORM="no-such-terraform")
    assert done.code != 0
    assert "Terraform is not on PATH (looked for `no-such-terraform`); wanted: 1.11 or newer" in done.text


def test_old_terraform_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "terraform"
    old.write_text('#!/bin/sh\necho \'{"terraform_version": "1.5.7"}\'\n')
    old.chmod(0o755)
    done = make("preflight", TERRAFORM=str(old))
    assert done.code != 0
    assert "Terraform is 1.5.7; wanted: 1.11 or newer" in done.text


def test_terraform_that_does_not_answer_is_not_taken_for_a_good_one(tmp_path: Path) -> None:
    broken = tmp_path / "terraform"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    done = make("preflight", TERRAFORM=str(broken))
    assert done.code != 0
    assert "could not find out Terraform's version" in done.text


def test_too_little_disk_is_refused(tmp_path: Path) -> None:
    done = in_mount_namespace(f"mount -t tmpfs -o size=16m tmpfs {tmp_path}; export CODERACK_LAB_CACHE={tmp_path}")
    assert done.code == 1
    assert f"0.0 GB free on the disk of {tmp_path}; wanted: 15 GB" in done.text


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    small = tmp_path / "meminfo"
    small.write_text("MemTotal:        4000000 kB\nMemAvailable:    3000000 kB\n")
    done = in_mount_namespace(f"mount --bind {small} /proc/meminfo")
    assert done.code == 1
    assert "the machine has 4.0 GB of memory; wanted: 8 GB" in done.text


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = make("preflight", LAB_AWS_PORT=str(port))
    assert done.code != 0
    assert f"port 127.0.0.1:{port} for the AWS emulator cannot be had" in done.text


def test_unreachable_mirrors_are_refused_while_something_is_still_to_be_downloaded(tmp_path: Path) -> None:
    done = run(
        "unshare", "--net", "bash", "-c", f"ip link set lo up; exec {PREFLIGHT}", CODERACK_LAB_CACHE=str(tmp_path)
    )
    assert done.code == 1
    assert "apt's package mirror does not answer" in done.text


def test_a_half_built_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "base-0123456789ab" / "tree").mkdir(parents=True)
    done = make("preflight", CODERACK_LAB_CACHE=str(tmp_path))
    assert done.code != 0
    assert f"half-built cache entry {tmp_path}/base-0123456789ab" in done.text
    assert "make lab-clean" in done.text


@pytest.mark.parametrize("target", ["provision", "fleet", "configure", "smoke", "destroy"])
def test_an_unknown_environment_is_refused(target: str) -> None:
    done = make(target, "ENV=staging")
    assert done.code == 2
    assert "ENV=staging is unknown; wanted one of: aws baremetal lab" in done.text


def test_configuring_without_an_inventory_is_refused() -> None:
    done = make("configure", "ENV=aws")
    assert done.code == 2
    assert "inventories/aws/hosts.yml is not there" in done.text
    assert "make provision ENV=aws" in done.text


def test_a_lab_that_is_down_says_so() -> None:
    assert lab("status").code == 1
    done = lab("ssh", "gpu-a")
    assert done.code == 2
    assert "no node 'gpu-a' in the lab" in done.text
