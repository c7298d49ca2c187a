"""SSH as the operator's own client does it: the same options that Ansible uses for the same environment."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

# No question may be asked, and a node that is down must not hold up the others.
OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


class NoConnection(ValueError):
    """The environment's SSH settings cannot be used as they are."""


def words(address: str, user: str | None, arguments: Sequence[str], command: str) -> list[str]:
    """The argument list that runs `command` (one string for the remote shell) on `address`."""
    target = f"{user}@{address}" if user else address
    return ["ssh", *OPTIONS, *arguments, "--", target, command]


def through(template: str, name: str, address: str, command: str) -> list[str]:
    """The same with another program than ssh: its words, {name} and {address} filled in, then the command as one."""
    return [part.format(name=name, address=address) for part in shlex.split(template)] + [command]


def of_environment(directory: Path) -> tuple[str | None, list[str]]:
    """User and extra arguments from group_vars/all.yml. Raises NoConnection for what only Ansible knows."""
    variables = _variables(directory / "group_vars/all.yml")
    user, text = variables.get("ansible_user"), str(variables.get("ansible_ssh_common_args") or "")
    text = text.replace("{{ inventory_dir }}", str(directory.resolve()))
    if "{{" in text or "{%" in text or "{{" in str(user or ""):
        raise NoConnection(
            f"{directory}/group_vars/all.yml: ansible_ssh_common_args or ansible_user has a template other than "
            "inventory_dir, which only Ansible can fill in; give --ssh 'ssh …' instead"
        )
    return (str(user) if user else None), shlex.split(text)


def _variables(path: Path) -> Mapping[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NoConnection(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    return data if isinstance(data, dict) else {}
