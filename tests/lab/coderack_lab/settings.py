"""Every name, address and place the lab uses, in one page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Places. The cache is worth keeping between runs (downloads and builds); everything else goes with `lab-down`.
ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("CODERACK_LAB_CACHE", "/var/cache/coderack-lab"))
STATE = Path("/var/lib/coderack-lab")
RUN = Path("/run/coderack-lab")
LOCK = Path("/run/coderack-lab.lock")

# What belongs to the clone that drives the lab: key, logs, Terraform state, secrets.
BUILD = ROOT / ".build" / "lab"
LOGS = BUILD / "logs"
SSH_KEY = BUILD / "ssh" / "id_ed25519"
KNOWN_HOSTS = BUILD / "ssh" / "known_hosts"  # of the lab's own commands; Ansible's is PINS
INVENTORY = ROOT / "inventories" / "lab"
PINS = INVENTORY / "known_hosts"

# Network. 10.77.0.0/24 is the VPC's private subnet of inventories/lab/terraform.tfvars; the bridge answers as the
# VPC router does, on the subnet's first address.
NETNS = "coderack-lab"
NETNS_FILE = Path("/run/netns") / NETNS
BRIDGE = "br-lab"
SUBNET = "10.77.0.0/24"
VPC = "10.77.0.0/16"
ROUTER = "10.77.0.1"
UPLINK_INSIDE = "lab-uplink"
UPLINK_HOST = "lab-host"
UPLINK_NET = "10.77.255.0/30"
UPLINK_HOST_ADDRESS = "10.77.255.1"
UPLINK_INSIDE_ADDRESS = "10.77.255.2"
NFT_TABLE = "coderack_lab"
# Machines that a test asks for by name live above the addresses that EC2 hands out first.
SCRATCH_ADDRESSES = tuple(f"10.77.0.{n}" for n in range(200, 220))


def _port(variable: str, default: int) -> int:
    value = os.environ.get(variable) or str(default)
    if not value.isdigit() or not 1 <= int(value) <= 65535:
        sys.exit(f"lab: {variable} is {value!r}; wanted: a port number, 1 to 65535")
    return int(value)


# Faces on the host, all on loopback.
AWS_PORT = _port("LAB_AWS_PORT", 5601)
AWS_REGION = "us-west-2"
GATEWAY_PORT = _port("LAB_GATEWAY_PORT", 18443)
PROMETHEUS_PORT = _port("LAB_PROMETHEUS_PORT", 19090)
ALERTMANAGER_PORT = _port("LAB_ALERTMANAGER_PORT", 19093)

# Machines. The suite is the nodes', whatever the host runs.
SUITE = "bookworm"
USER = "admin"  # the default user of Debian's cloud images
USER_ID = 1000
CGROUP = "coderack-lab"


def machine(name: str) -> str:
    """nspawn's machine name: short enough that `vb-<machine>` fits an interface name (15 characters)."""
    return f"lab-{name}"
