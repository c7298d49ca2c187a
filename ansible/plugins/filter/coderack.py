"""Jinja filters that give roles the one reading of serving and GPU profiles: the Python package's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

# For `ansible-playbook` in a checkout; an installed package is found first.
sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))

MISSING: ImportError | None = None
try:
    from coderack.health.expectations import built
    from coderack.plan.arguments import vllm_arguments
    from coderack.spec.checked import SpecError, validate
    from coderack.spec.profile import ServingProfile
except ImportError as error:
    # Raised when a filter is used: Ansible would turn an error here into "no filter named ...".
    MISSING = error

DOCUMENTATION = r"""
name: coderack
author: Coderack
version_added: "0.1"
short_description: Read a serving profile and derive vLLM's command line from it
description:
  - C(coderack_profile) checks a serving profile (a file of inventories/profiles) and returns it complete, with
    defaults filled in.
  - C(coderack_vllm_arguments) returns the list of arguments that follow C(vllm) on one node.
  - C(coderack_shutdown_timeout) returns the seconds in which running requests may end when vLLM is stopped.
  - C(coderack_gpu_profile) returns the complete GPU profile that a mapping with a name under C(profile) stands for.
  - All fail with one sentence per problem when the profile does not hold together.
positional: _input
options:
  _input:
    description: The serving profile as a dictionary.
    type: dict
    required: true
  node_rank:
    description: Place of the node among the GPU hosts in inventory order. 0 is the head of a fused group.
    type: int
    required: true
  node_count:
    description: Number of GPU hosts. Must be the profile's C(layout.nodes).
    type: int
    required: true
  head_address:
    description: Private address of the head.
    type: str
    required: true
  host:
    description: Address on which the node's API server listens.
    type: str
    required: true
  port:
    description: Port of the API server.
    type: int
    default: 8000
  rpc_port:
    description: Port of the head's data parallel handshake.
    type: int
    default: 13345
"""

EXAMPLES = r"""
- name: Show the command line of this node
  ansible.builtin.debug:
    msg: >-
      {{ vllm_profile | coderack_vllm_arguments(node_rank=groups['gpu_nodes'].index(inventory_hostname),
      node_count=groups['gpu_nodes'] | length, head_address=hostvars[groups['gpu_nodes'][0]].fleet_private_address,
      host=fleet_private_address) }}
"""

RETURN = r"""
_value:
  description:
    - For C(coderack_vllm_arguments) a list of strings, each one argument.
    - For C(coderack_profile) and C(coderack_gpu_profile) a dictionary.
    - For C(coderack_shutdown_timeout) a whole number.
  type: raw
"""


def coderack_profile(profile: Any) -> dict[str, Any]:
    """The profile, checked and complete."""
    checked: dict[str, Any] = _checked(profile).model_dump(mode="json")
    return checked


def coderack_shutdown_timeout(profile: Any) -> int:
    """Seconds in which running requests may end when vLLM is stopped; 0 when they are cut off."""
    seconds: int = _checked(profile).shutdown_timeout
    return seconds


def coderack_vllm_arguments(
    profile: Any,
    *,
    node_rank: int,
    node_count: int,
    head_address: str,
    host: str,
    port: int = 8000,
    rpc_port: int = 13345,
) -> list[str]:
    """Everything after `vllm` on one node."""
    checked = _checked(profile)
    try:
        return vllm_arguments(
            checked,
            node_rank=int(node_rank),
            node_count=int(node_count),
            head_address=str(head_address),
            host=str(host),
            port=int(port),
            rpc_port=int(rpc_port),
        )
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


def coderack_gpu_profile(wanted: Any, what: str = "GPU profile") -> dict[str, Any]:
    """The GPU profile of the health tool, checked and complete; `what` names the input in errors."""
    _loaded()
    try:
        checked: dict[str, Any] = built(_plain(wanted), what).model_dump(mode="json")
    except SpecError as error:
        raise AnsibleFilterError(str(error)) from error
    return checked


def _loaded() -> None:
    if MISSING is not None:
        raise AnsibleFilterError(
            f"Ansible's interpreter {sys.executable} cannot load the coderack package ({MISSING}); "
            "install it into that environment"
        )


def _checked(profile: Any) -> Any:
    _loaded()
    plain = _plain(profile)
    name = plain.get("name", "?") if isinstance(plain, dict) else "?"
    try:
        return validate(ServingProfile, plain, f"serving profile {name}")
    except SpecError as error:
        raise AnsibleFilterError(str(error)) from error


def _plain(value: Any) -> Any:
    """Without Ansible's tags and lazy containers, which are subclasses that strict types may refuse."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else value


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "coderack_gpu_profile": coderack_gpu_profile,
            "coderack_profile": coderack_profile,
            "coderack_shutdown_timeout": coderack_shutdown_timeout,
            "coderack_vllm_arguments": coderack_vllm_arguments,
        }
