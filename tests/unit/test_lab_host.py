"""What the lab reads off its host: package mirrors, resolvers, pip's configuration, what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coderack_lab import container, network, preflight
from coderack_lab.errors import LabError
from coderack_lab.image import mirrors_of, node_sources
from coderack_lab.shell import CommandFailed, run


def test_the_main_archive_is_found_in_both_formats_and_security_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://old.test/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://one.test/debian/ bookworm main\n"
        "deb http://one.test/debian-security bookworm-security main\n"
    )
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb\nURIs: http://two.test/debian\nSuites: trixie\n\nTypes: deb\nURIs: http://two.test/debian-security\n"
    )
    assert mirrors_of(tmp_path) == ["http://one.test/debian/", "http://two.test/debian"]


def test_a_newer_hosts_sources_are_made_to_fit_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb\nURIs: http://one.test/debian/packages\nSuites: trixie trixie-updates\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.pgp\n"
    )
    (tmp_path / "sources.list.d" / "other.list").write_text("deb https://vendor.test/apt stable main\n")
    (tmp_path / "sources.list.d" / "mirror.sources").write_text("URIs: mirror+file:///etc/apt/mirrors/debian.list\n")
    assert node_sources(tmp_path, "ID=debian\nVERSION_CODENAME=trixie\n") == {
        "sources.list.d/debian.sources": (
            "Types: deb\nURIs: http://one.test/debian/packages\nSuites: bookworm bookworm-updates\nComponents: main\n"
        )
    }


def test_a_loopback_resolver_is_never_given_to_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {
        "/etc/resolv.conf": "nameserver 127.0.0.53\noptions edns0\n",
        "/run/systemd/resolve/resolv.conf": "nameserver 192.0.2.53\nsearch example.test\n",
    }
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in contents)
    monkeypatch.setattr(Path, "read_text", lambda path, **_: contents[str(path)])
    assert network.nameservers() == "search example.test\nnameserver 192.0.2.53\n"
    del contents["/run/systemd/resolve/resolv.conf"]
    with pytest.raises(LabError, match="only loopback resolvers"):
        network.nameservers()


def test_local_wheel_folders_of_pips_configuration_are_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "index" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    (tmp_path / ".config/pip").mkdir(parents=True)
    configuration = tmp_path / ".config/pip/pip.conf"
    configuration.write_text(f"[global]\nfind-links = {wheels}\nextra-index-url = file://{index}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "60")
    binds, variables = container.pip_configuration()
    assert binds[configuration] == "/root/.config/pip/pip.conf"
    assert binds[wheels] == str(wheels)
    assert binds[index.parent] == str(index.parent)  # pages of an index link to files beside it
    assert variables["PIP_DEFAULT_TIMEOUT"] == "60"


def test_a_program_that_fails_is_told_with_its_code_and_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    with pytest.raises(CommandFailed, match=r"exit code 7.*step\.log\n.*the reason"):
        run(["sh", "-c", "echo the reason; exit 7"], log=log)


def test_a_program_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    with pytest.raises(CommandFailed, match="no end after 1 s"):
        run(["sh", "-c", "sleep 987 & echo $! ; wait"], log=log, timeout=1)
    child = int(log.read_text().splitlines()[1])
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()


def test_the_preflight_runs_without_the_projects_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-I", preflight.__file__, "--list-packages"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_unknown_distribution_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "host_system", lambda: ("fedora", 43.0))
    assert any("host system is fedora 43; wanted: Debian 12" in problem for problem in preflight.check_system())
    monkeypatch.setattr(preflight, "host_system", lambda: ("debian", 13.0))
    assert not any("host system" in problem for problem in preflight.check_system())
