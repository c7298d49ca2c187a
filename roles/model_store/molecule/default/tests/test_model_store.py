"""What role model_store leaves on a node whose image brings the weights."""

from __future__ import annotations

from testinfra.host import Host

UNIT = "/etc/systemd/system/coderack-weights.service"


def test_the_unit_that_engines_require_passes(host: Host) -> None:
    assert host.run("systemctl start coderack-weights.service").rc == 0
    assert host.run("journalctl --unit=coderack-weights.service --output=cat").stdout.count("revision image-1") >= 1


def test_the_unit_is_a_valid_one(host: Host) -> None:
    assert host.run(f"systemd-analyze verify --man=no {UNIT}").rc == 0


def test_nothing_was_written_to_the_folder_of_the_image(host: Host) -> None:
    assert sorted(host.file("/srv/models/small").listdir()) == ["config.json", "model.safetensors"]


def test_what_the_image_brought_is_noted(host: Host) -> None:
    code = host.run(
        "/opt/coderack/current/bin/coderack weights verify /srv/models/small --state /var/lib/coderack/weights"
    ).rc
    assert code == 0


def test_an_image_needs_no_unit_that_fetches_and_no_disk(host: Host) -> None:
    for name in ("coderack-weights-fetch.service", "coderack-store-array.service"):
        assert not host.file(f"/etc/systemd/system/{name}").exists
