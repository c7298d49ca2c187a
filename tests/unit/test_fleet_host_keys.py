"""Pinning SSH host keys: from the console of an instance in the emulator, and through ssh-keyscan."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coderack.clients import ssh_keys
from coderack.fleet import known_hosts

from .cloud import launch_fleet
from .data import node
from .program import run

# The beginning of a public key: enough of its form, and nobody has the private half.
RSA = "AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7"
ECDSA_TYPE = "ecdsa-sha2-nistp256"


def new_key() -> str:
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode().split()[1]


def blob(kind: str, rest: bytes = b"x" * 32) -> str:
    return base64.b64encode(len(kind).to_bytes(4, "big") + kind.encode() + rest).decode()


def console(*keys: tuple[str, str]) -> str:
    """As cloud-init writes it at the end of a first boot."""
    lines = "\n".join(f"{kind} {key} root@ip-10-77-0-4" for kind, key in keys)
    return (
        "[   12.301122] cloud-init[712]: Cloud-init v. 24.4 running 'modules:final'\n"
        "ci-info: no authorized SSH keys fingerprints found for user ubuntu.\n"
        "-----BEGIN SSH HOST KEY FINGERPRINTS-----\n256 SHA256:abc root@ip-10-77-0-4 (ED25519)\n"
        "-----END SSH HOST KEY FINGERPRINTS-----\n"
        f"-----BEGIN SSH HOST KEY KEYS-----\n{lines}\n-----END SSH HOST KEY KEYS-----\n"
        "[   12.900000] cloud-init[712]: Cloud-init v. 24.4 finished\n"
    )


# --- Parts ----------------------------------------------------------------------------------------------------------


def test_reads_the_keys_of_the_last_boot_on_the_console() -> None:
    old, new = new_key(), new_key()
    text = console(("ssh-ed25519", old)) + console(("ssh-ed25519", new), ("ssh-dss", "AAAA"))
    assert ssh_keys.console_keys(text) == {"ssh-ed25519": new}
    assert ssh_keys.console_keys(text.replace("\n", "\r\n")) == {"ssh-ed25519": new}


@pytest.mark.parametrize("text", ["", "Linux version 6.8", console(), console(("ssh-ed25519", "AAAA"))])
def test_a_console_without_whole_keys_has_none(text: str) -> None:
    assert ssh_keys.console_keys(text) == {}


def test_a_key_must_be_what_it_says() -> None:
    key = new_key()
    assert ssh_keys.is_key("ssh-ed25519", key)
    assert not ssh_keys.is_key("ssh-rsa", key)
    assert not ssh_keys.is_key("ssh-ed25519", key[:-4] + "!!!!")
    assert not ssh_keys.is_key("ssh-ed25519", "")


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    key = new_key()
    (tmp_path / "key.pub").write_text(f"ssh-ed25519 {key} test\n")
    shown = subprocess.run(["ssh-keygen", "-lf", "key.pub"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ssh_keys.fingerprint(key) == shown.stdout.split()[1]


ED, ED_NEW = blob("ssh-ed25519", b"a" * 32), blob("ssh-ed25519", b"b" * 32)
EC = blob(ECDSA_TYPE)


@pytest.mark.parametrize(
    ("pinned", "seen", "changed"),
    [
        ({}, {"ssh-ed25519": ED}, False),
        ({"ssh-ed25519": ED}, {"ssh-ed25519": ED}, False),
        ({"ssh-ed25519": ED}, {"ssh-ed25519": ED, ECDSA_TYPE: EC}, False),
        ({"ssh-ed25519": ED, ECDSA_TYPE: EC}, {"ssh-ed25519": ED}, False),
        ({"ssh-ed25519": ED}, {"ssh-ed25519": ED_NEW}, True),
        ({"ssh-ed25519": ED, ECDSA_TYPE: EC}, {"ssh-ed25519": ED_NEW, ECDSA_TYPE: EC}, True),
        # Only a type that was not pinned: whoever is in between can make one.
        ({"ssh-ed25519": ED}, {ECDSA_TYPE: EC}, True),
    ],
)
def test_a_host_is_the_same_if_a_pinned_key_proves_it(
    pinned: dict[str, str], seen: dict[str, str], changed: bool
) -> None:
    pins = {"10.77.0.4": pinned} if pinned else {}
    assert bool(known_hosts.changes(pins, {"10.77.0.4": seen})) is changed


def test_merging_keeps_members_only_and_types_of_the_same_host() -> None:
    pinned = {"a": {"ssh-ed25519": ED, ECDSA_TYPE: EC}, "b": {"ssh-ed25519": ED}, "gone": {"ssh-ed25519": ED}}
    seen = {"a": {"ssh-ed25519": ED}, "c": {"ssh-ed25519": ED_NEW}, "b": {"ssh-ed25519": ED_NEW}}
    assert known_hosts.merge(pinned, seen, {"a", "b", "c"}) == {
        "a": {"ssh-ed25519": ED, ECDSA_TYPE: EC},
        "b": {"ssh-ed25519": ED_NEW},
        "c": {"ssh-ed25519": ED_NEW},
    }


# --- The command ----------------------------------------------------------------------------------------------------


class Consoles:
    """What the emulator's consoles show: one text for all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def show(self, text: str) -> None:
        self._monkeypatch.setattr("coderack_lab.aws.console.ConsoleActions.read", staticmethod(lambda _id: text))


@pytest.fixture
def consoles(aws: str, monkeypatch: pytest.MonkeyPatch) -> Consoles:
    return Consoles(monkeypatch)


@pytest.fixture
def fleet(inventories: Path, ec2: Any) -> dict[str, Any]:
    contract = launch_fleet(ec2)
    write(contract)
    return contract


def write(contract: dict[str, Any]) -> None:
    code, _, err = run("fleet", "write", "--env", "aws", "-", stdin=json.dumps(contract))
    assert code == 0, err


def host_keys(*options: str) -> tuple[int, str, str]:
    return run("fleet", "host-keys", "--env", "aws", *options)


def test_pins_what_the_consoles_show(inventories: Path, fleet: dict[str, Any], consoles: Consoles) -> None:
    key = new_key()
    consoles.show(console(("ssh-ed25519", key)))
    code, out, err = host_keys()
    assert (code, err) == (0, "")
    ids = sorted(entry["instance_id"] for entry in fleet["nodes"])
    assert out.splitlines() == [
        *(f"{one} ssh-ed25519 {ssh_keys.fingerprint(key)}" for one in ids),
        "inventories/aws/known_hosts written: 3 of 3 nodes pinned",
    ]
    assert host_keys()[1].splitlines()[-1] == "inventories/aws/known_hosts unchanged: 3 of 3 nodes pinned"
    # OpenSSH itself finds the key under the name by which Ansible connects.
    found = subprocess.run(
        ["ssh-keygen", "-F", ids[0], "-f", str(inventories / "aws" / "known_hosts")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines()[-1] == f"{ids[0]} ssh-ed25519 {key}"


def test_a_changed_key_is_1_and_stays_out_until_it_is_accepted(
    inventories: Path, fleet: dict[str, Any], consoles: Consoles
) -> None:
    first, second = new_key(), new_key()
    path = inventories / "aws" / "known_hosts"
    consoles.show(console(("ssh-ed25519", first)))
    host_keys()
    before = path.read_bytes()
    consoles.show(console(("ssh-ed25519", second)))
    gpu_a = node(fleet, "gpu-a")["instance_id"]
    code, _, err = host_keys("--node", "gpu-a")
    assert code == 1
    assert "host keys have changed, inventories/aws/known_hosts is left as it is" in err
    pinned, seen = ssh_keys.fingerprint(first), ssh_keys.fingerprint(second)
    assert f"{gpu_a}: pinned ssh-ed25519 {pinned}, seen ssh-ed25519 {seen}" in err
    assert path.read_bytes() == before
    assert host_keys("--accept-changed", "gpu-a")[0] == 1  # the other two have changed as well
    assert path.read_bytes() == before
    assert host_keys("--node", "gpu-a", "--accept-changed", "gpu-a")[0] == 0
    pins = known_hosts.read(path)
    assert {host: keys["ssh-ed25519"] == second for host, keys in pins.items()} == {
        entry["instance_id"]: entry["name"] == "gpu-a" for entry in fleet["nodes"]
    }


def test_a_console_that_shows_no_keys_is_3_and_nothing_is_written(
    inventories: Path, fleet: dict[str, Any], consoles: Consoles
) -> None:
    consoles.show("Linux version 6.8\n")
    code, _, err = host_keys("--json")
    assert code == 3
    assert "no host keys of 3 node(s), inventories/aws/known_hosts is left as it is" in err
    assert "gpu-a: its console does not show them; it may still be booting" in err
    assert not (inventories / "aws" / "known_hosts").exists()


def test_a_node_that_is_gone_leaves_no_pin(inventories: Path, fleet: dict[str, Any], consoles: Consoles) -> None:
    consoles.show(console(("ssh-ed25519", new_key())))
    host_keys()
    gone = node(fleet, "gpu-b")["instance_id"]
    fleet["nodes"].remove(node(fleet, "gpu-b"))
    write(fleet)
    code, out, _ = host_keys("--json")
    assert (code, json.loads(out)["removed"]) == (0, [gone])
    assert gone not in (inventories / "aws" / "known_hosts").read_text()


@pytest.mark.parametrize("text", ["gpu-a ssh-ed25519 AAAA\n", known_hosts.MARK + "\ngpu-a ssh-ed25519 AAAA\n"])
def test_a_file_made_or_edited_by_hand_is_2(
    inventories: Path, fleet: dict[str, Any], consoles: Consoles, text: str
) -> None:
    consoles.show(console(("ssh-ed25519", new_key())))
    path = inventories / "aws" / "known_hosts"
    path.write_text(text)
    assert host_keys()[0] == 2
    assert path.read_text() == text


def test_an_unknown_node_is_2(fleet: dict[str, Any]) -> None:
    code, _, err = host_keys("--node", "gpu-z")
    assert code == 2
    assert "gpu-z not in the inventory; known: gpu-a, gpu-b, ops" in err


# --- ssh-keyscan ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bare_metal(inventories: Path, fleet_data: dict[str, Any]) -> dict[str, Any]:
    for entry, address in zip(fleet_data["nodes"], ("ops.example.org", "10.77.0.11", "GPU-A.example.org"), strict=True):
        entry.update(address=address)
        entry.pop("instance_id")
    write(fleet_data | {"stack": "baremetal"})
    return fleet_data


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for ssh-keyscan and the network behind it: lines of the returned file whose host was asked for."""
    answers, program = tmp_path / "answers", tmp_path / "bin" / "ssh-keyscan"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\ncase "$*" in *"-p 22 "*"-f -"*) ;; *) exit 9 ;; esac\n'
        f'while read -r host; do echo "# $host:22 SSH-2.0-$(printf "\\377")" >&2; grep "^$host " {answers}; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return answers


def test_pins_what_answers_on_the_network(inventories: Path, bare_metal: dict[str, Any], network: Path) -> None:
    keys = {entry["address"]: new_key() for entry in bare_metal["nodes"]}
    lines = [f"{address} ssh-ed25519 {key}\n" for address, key in keys.items()]
    network.write_text("".join([*lines, f"10.77.0.11 ssh-rsa {RSA}\n", "10.77.0.11 ssh-dss AAAA\n"]))
    code, _, err = host_keys()
    assert (code, err) == (0, "")
    pins = known_hosts.read(inventories / "aws" / "known_hosts")
    # ssh looks names up in lower case.
    assert {host: pins[host]["ssh-ed25519"] for host in pins} == {host.lower(): key for host, key in keys.items()}
    assert pins["10.77.0.11"]["ssh-rsa"] == RSA


def test_a_node_that_does_not_answer_is_3_and_named(
    inventories: Path, bare_metal: dict[str, Any], network: Path
) -> None:
    network.write_text(f"10.77.0.11 ssh-ed25519 {new_key()}\n")
    code, out, err = host_keys()
    assert code == 3
    assert "gpu-a: nothing answers as SSH at gpu-a.example.org" in err
    assert "ops: nothing answers as SSH at ops.example.org" in err
    assert "gpu-b: unknown" not in out
    assert not (inventories / "aws" / "known_hosts").exists()


def test_the_real_ssh_keyscan_finds_nothing_where_nothing_listens() -> None:
    assert ssh_keys.scan(["127.0.0.1"], port=9) == {}


def test_a_missing_ssh_keyscan_is_3(bare_metal: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    code, _, err = host_keys()
    assert code == 3
    assert "ssh-keyscan is not on PATH; install OpenSSH's client" in err
