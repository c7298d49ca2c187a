"""Public SSH host keys, and how a node's are asked for: over the network, or from its console through the EC2 API."""

import base64
import binascii
import hashlib
import re
import struct
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from coderack.clients.aws import errors

TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
_SCAN_TYPES = "ed25519,ecdsa,rsa"
_ANSWER_S = 8
# Wide enough for a thousand nodes, of which some do not answer: ssh-keyscan asks many at once.
_SCAN_TIMEOUT_S = 300
# cloud-init writes this block to the console when it has made the keys.
_BLOCK = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_KEY = re.compile(rf"({'|'.join(TYPES)}) ([A-Za-z0-9+/]+={{0,2}})(?![A-Za-z0-9+/=])")

Keys = Mapping[str, str]  # type -> key, base64 as in known_hosts


class KeyscanError(Exception):
    """The program that asks for keys could not be run."""


def scan(addresses: Iterable[str], port: int = 22) -> dict[str, dict[str, str]]:
    """The keys that each address shows to ssh-keyscan; an address that does not answer is not in the result."""
    wanted = list(addresses)
    command = ["ssh-keyscan", "-T", str(_ANSWER_S), "-p", str(port), "-t", _SCAN_TYPES, "-f", "-"]
    try:
        done = subprocess.run(
            command,
            input="\n".join(wanted) + "\n",
            capture_output=True,
            text=True,
            errors="replace",  # it repeats what a server calls itself, which may be any bytes
            timeout=_SCAN_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise KeyscanError(
            "ssh-keyscan is not on PATH; install OpenSSH's client (apt-get install openssh-client)"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeyscanError(f"ssh-keyscan did not come to an end: {error}") from error
    # Its exit code tells of the last address only; what counts is whose keys are there.
    labels = {host_label(address, port): address for address in wanted}
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        label, _, rest = line.partition(" ")
        key, address = _KEY.match(rest), labels.get(label.lower())
        if address and key and is_key(key.group(1), key.group(2)):
            found.setdefault(address, {})[key.group(1)] = key.group(2)
    return found


def from_console(client: Any, instance_id: str) -> dict[str, str]:
    """The keys that the instance wrote to its console at first boot; empty when the console does not show them.

    Who can write there has been root on the instance, and the way to us is AWS's API: nobody in between can change
    them. Raises AwsError.
    """
    with errors(f"GetConsoleOutput of {instance_id}"):
        # Latest is what Nitro instances, and all with GPUs are, have now; the other form is a copy from the boot.
        answer = client.get_console_output(InstanceId=instance_id, Latest=True)
    return console_keys(answer.get("Output") or "")


def console_keys(output: str) -> dict[str, str]:
    """The keys in a console's text; the last block counts, as an image may have brought one of its own."""
    blocks = _BLOCK.findall(output)
    if not blocks:
        return {}
    return {kind: key for kind, key in _KEY.findall(blocks[-1]) if is_key(kind, key)}


def host_label(address: str, port: int) -> str:
    """How known_hosts writes an address; ssh looks names up in lower case."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


def is_key(kind: str, key: str) -> bool:
    """Whether `key` is base64 of a key that calls itself `kind`."""
    try:
        blob = base64.b64decode(key, validate=True)
        (length,) = struct.unpack(">I", blob[:4])
    except (binascii.Error, struct.error):
        return False
    return bool(blob[4 : 4 + length] == kind.encode()) and len(blob) > 4 + length


def fingerprint(key: str) -> str:
    """SHA256:… as OpenSSH prints it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
