"""What role coderack promises on a node that never had pip."""

from __future__ import annotations

from testinfra.host import Host


def test_the_command_is_there_for_everybody_and_for_sudo(host: Host) -> None:
    assert host.check_output("coderack --version").startswith("coderack ")
    assert host.check_output("sudo -u nobody coderack health explain xid-79").startswith("finding")


def test_the_node_needed_no_pip_and_no_package_index(host: Host) -> None:
    assert not host.exists("pip")
    assert not host.exists("pip3")


def test_the_folder_of_the_caller_has_no_say_in_what_runs(host: Host) -> None:
    host.run("mkdir -p /var/tmp/trap && echo 'raise SystemExit(7)' > /var/tmp/trap/typer.py")
    assert host.run("cd /var/tmp/trap && PYTHONPATH=/var/tmp/trap coderack --version").rc == 0


def test_only_root_can_change_what_runs(host: Host) -> None:
    assert host.check_output("find /opt/coderack/ ! -user root -o -perm /022 ! -type l | head -n 1") == ""


def test_the_health_tool_says_unknown_and_not_healthy_where_there_is_no_driver(host: Host) -> None:
    done = host.run("coderack health node --profile h100-sxm --state-dir /var/tmp/health")
    assert done.rc in (1, 3), done.stdout
    assert "Traceback" not in done.stderr
