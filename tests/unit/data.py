"""Input that several test files share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
PROFILES = REPOSITORY / "inventories" / "profiles"

# As Terraform prints it: attributes that do not apply are null, nodes in no special order.
FLEET: dict[str, Any] = {
    "version": 1,
    "stack": "aws",
    "nodes": [
        {
            "name": "ops",
            "role": "ops",
            "address": "10.77.0.20",
            "private_address": "10.77.0.20",
            "instance_id": "i-0aaa",
            "instance_type": "m7i.xlarge",
            "zone": "us-west-2a",
            "gpus": {"model": "none", "count": 0},
            "fabric": {"kind": "none", "devices": []},
            "reservation": None,
        },
        {
            "name": "gpu-b",
            "role": "gpu",
            "address": "gpu-b.example.org",
            "private_address": "10.77.0.11",
            "instance_id": "i-0ccc",
            "instance_type": "p5.48xlarge",
            "zone": "us-west-2a",
            "gpus": {"model": "NVIDIA H100", "count": 8},
            "fabric": {"kind": "efa", "devices": ["rdmap0s6", "rdmap0s7"]},
            "reservation": {"id": "cr-0123", "ends_at": "2027-01-31T11:30:00Z"},
        },
        {
            "name": "gpu-a",
            "role": "gpu",
            "address": "10.77.0.10",
            "private_address": "10.77.0.10",
            "instance_id": "i-0bbb",
            "instance_type": "p5.48xlarge",
            "zone": "us-west-2a",
            "gpus": {"model": "NVIDIA H100", "count": 8},
            "fabric": {"kind": "efa", "devices": []},
            "reservation": None,
        },
    ],
}

Edit = Callable[[dict[str, Any]], object]


def node(fleet: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in fleet["nodes"] if entry["name"] == name)
    return found


def profile_data(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((PROFILES / f"{name}.yml").read_text())
    return data
