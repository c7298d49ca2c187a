"""One network namespace for the whole lab: a bridge that is the VPC's subnet, and one guarded way out.

Everything lives inside the namespace, so that deleting it removes bridge and cables at once and a load generator's
packets cannot leave by the host's default route. The way out (for apt and pip) passes DNS, HTTP and HTTPS only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from coderack_lab import settings as s
from coderack_lab.errors import LabError
from coderack_lab.shell import CommandFailed, output, succeeds

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_SAVED = s.RUN / "host-network.json"

_HOST_RULES = f"""
table ip {s.NFT_TABLE} {{
  chain outbound {{
    type filter hook forward priority -5; policy accept;
    iifname != "{s.UPLINK_HOST}" return
    ip daddr {s.VPC} drop
    meta l4proto {{ tcp, udp }} th dport 53 accept
    tcp dport {{ 80, 443 }} accept
    drop
  }}
  chain translate {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {s.UPLINK_NET} masquerade
  }}
}}
"""

_INSIDE_RULES = f"""
table ip {s.NFT_TABLE} {{
  chain translate {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{s.UPLINK_INSIDE}" masquerade
  }}
}}
"""


def inside(command: Sequence[str]) -> list[str]:
    """The same command, run in the lab's namespace. (`ip netns exec` would remount /sys and hide the cgroups.)"""
    return ["nsenter", f"--net={s.NETNS_FILE}", "--", *command]


def is_up() -> bool:
    return s.NETNS_FILE.exists() and succeeds(inside(["ip", "link", "show", s.BRIDGE]))


def up() -> None:
    """Build namespace, bridge and uplink. Call `down` first if an earlier run may have left a half."""
    _SAVED.parent.mkdir(parents=True, exist_ok=True)
    partial = _SAVED.with_suffix(".partial")
    partial.write_text(json.dumps({"ip_forward": _FORWARD.read_text().strip()}))
    partial.rename(_SAVED)
    output(["ip", "netns", "add", s.NETNS])
    output(["ip", "link", "add", s.UPLINK_HOST, "type", "veth", "peer", "name", s.UPLINK_INSIDE, "netns", s.NETNS])
    output(["ip", "address", "add", f"{s.UPLINK_HOST_ADDRESS}/30", "dev", s.UPLINK_HOST])
    output(["ip", "link", "set", s.UPLINK_HOST, "up"])
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", s.BRIDGE, "type", "bridge", "stp_state", "0", "forward_delay", "0"],
        ["ip", "address", "add", f"{s.ROUTER}/24", "dev", s.BRIDGE],
        ["ip", "link", "set", s.BRIDGE, "up"],
        ["ip", "address", "add", f"{s.UPLINK_INSIDE_ADDRESS}/30", "dev", s.UPLINK_INSIDE],
        ["ip", "link", "set", s.UPLINK_INSIDE, "up"],
        ["ip", "route", "add", "default", "via", s.UPLINK_HOST_ADDRESS],
        ["sysctl", "-qw", "net.ipv4.ip_forward=1"],
    ):
        output(inside(command))
    _load(_INSIDE_RULES, inside(["nft", "-f", "-"]))
    _load(_HOST_RULES, ["nft", "-f", "-"])
    _FORWARD.write_text("1")


def _load(rules: str, command: list[str]) -> None:
    path = s.RUN / "rules.nft"
    path.write_text(rules)
    output([*command[:-1], str(path)])


def holders() -> set[int]:
    """Processes in the lab's namespace; those no cgroup of the lab knows are connections from a terminal, mostly."""
    if not s.NETNS_FILE.exists():
        return set()
    return {int(pid) for pid in output(["ip", "netns", "pids", s.NETNS]).split()}


def check_way_out(url: str) -> None:
    """Ask a package mirror from inside, with the nodes' resolvers. Raises LabError when no answer comes."""
    resolv = s.RUN / "resolv.conf"
    resolv.write_text(nameservers())
    script = 'mount --bind "$1" /etc/resolv.conf; exec curl -sS -o /dev/null --max-time 15 --retry 2 "$2"'
    command = inside(["unshare", "--mount", "bash", "-euc", script, "check", str(resolv), url])
    try:
        output(command, timeout=60)
    except CommandFailed as error:
        raise LabError(
            f"the package mirror {url} cannot be reached from the lab's namespace ({error.tail}); wanted: an answer. "
            f"Something on this host forbids forwarding from {s.UPLINK_HOST}: allow it in ufw or firewalld, or with "
            f"Docker by `iptables -I DOCKER-USER -i {s.UPLINK_HOST} -j ACCEPT` and the same with -o."
        ) from error


def down() -> None:
    """Remove whatever of the lab's network exists. Safe to call at any time and twice."""
    for pid in holders():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if s.NETNS_FILE.exists():
        output(["ip", "netns", "delete", s.NETNS])
    if succeeds(["ip", "link", "show", s.UPLINK_HOST]):
        output(["ip", "link", "delete", s.UPLINK_HOST])
    if succeeds(["nft", "list", "table", "ip", s.NFT_TABLE]):
        output(["nft", "delete", "table", "ip", s.NFT_TABLE])
    if _SAVED.exists():
        _FORWARD.write_text(str(json.loads(_SAVED.read_text())["ip_forward"]))
        _SAVED.unlink()


def leftovers() -> list[str]:
    found = []
    if s.NETNS_FILE.exists():
        found.append(f"network namespace {s.NETNS}")
    if succeeds(["ip", "link", "show", s.UPLINK_HOST]):
        found.append(f"interface {s.UPLINK_HOST}")
    if succeeds(["nft", "list", "table", "ip", s.NFT_TABLE]):
        found.append(f"nft table {s.NFT_TABLE}")
    if _SAVED.exists():
        found.append("net.ipv4.ip_forward not yet set back")
    return found


def nameservers() -> str:
    """resolv.conf for the nodes: the host's, or the real upstreams where the host points at a local stub.

    Raises LabError when only loopback resolvers are known: a node could not reach those.
    """
    for candidate in ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/NetworkManager/resolv.conf"):
        path = Path(candidate)
        if not path.exists():
            continue
        rows = [r for r in path.read_text().splitlines() if r.startswith(("nameserver", "search", "options"))]
        servers = [r.split()[1] for r in rows if r.startswith("nameserver")]
        usable = [a for a in servers if not a.startswith("127.") and a != "::1"]
        if usable:
            keep = [r for r in rows if not r.startswith("nameserver")]
            return "\n".join([*keep, *(f"nameserver {address}" for address in usable)]) + "\n"
    raise LabError(
        "the host's resolv.conf names only loopback resolvers, which the lab's nodes cannot reach; wanted: one "
        "nameserver with another address. Add it to /etc/resolv.conf and run again."
    )
