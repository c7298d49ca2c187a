"""The lab's cloud as one process: the AWS emulator, and the machines that its running instances are.

It looks at the EC2 API every two seconds, as anyone could, and makes the machines follow: a running instance is a
booted node with the instance's private address, a stopped one keeps its disk, a terminated one loses it. A machine that
powers itself off stops its instance; one that crashes stays down until its instance is stopped and started.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from coderack_lab import contact
from coderack_lab import settings as s
from coderack_lab.aws.instances import InstanceView, running_instances
from coderack_lab.aws.server import start
from coderack_lab.errors import Interrupted, LabError
from coderack_lab.node import Node, NodeSpec
from coderack_lab.shell import die_with_parent, stop_on_signals

_POLL_SECONDS = 2.0


class Supervisor:
    """Keeps the machines in step with the API. `step` is one look; `close` ends everything in an orderly way."""

    def __init__(self, port: int) -> None:
        self._nodes: dict[str, Node] = {}
        self._emulator = start("127.0.0.1", port, functools.partial(console, self._nodes))
        self._tunnel: subprocess.Popen[bytes] | None = None
        self._tunnel_log = (s.LOGS / "tunnel.log").open("ab")
        self._ec2 = boto3.client(
            "ec2",
            endpoint_url=self._emulator.endpoint,
            region_name=s.AWS_REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def step(self) -> None:
        views = running_instances(self._emulator.endpoint, s.AWS_REGION)
        running = {v.name: _spec(v) for v in views if v.state == "running" and v.private_ip}
        kept = {v.instance_id for v in views}
        self._notice_ends(running)
        wanted = {**running, **contact.scratch_requests()}
        self._stop_unwanted(wanted, kept)
        for name, spec in wanted.items():
            node = self._nodes.get(name)
            if node is None or node.state == "stopped":
                if not spec.disk.exists():
                    contact.forget_host_key(spec.address)  # a new disk means new keys
                self._nodes[name] = Node(spec)
                self._nodes[name].start()
                print(f"{name}: booting as {spec.address} ({spec.instance_id})", flush=True)
        self._keep_tunnel()
        self._write_status()

    def _notice_ends(self, running: dict[str, NodeSpec]) -> None:
        for name, node in self._nodes.items():
            before = node.state
            if node.poll() == before:
                continue
            print(f"{name}: {before} -> {node.state}", flush=True)
            if node.state == "stopped" and name in running:
                # As on AWS, where "shutdown behavior: stop" is the default.
                self._ec2.stop_instances(InstanceIds=[node.spec.instance_id])
                del running[name]

    def _stop_unwanted(self, wanted: dict[str, NodeSpec], kept: set[str]) -> None:
        leaving = [node for name, node in self._nodes.items() if wanted.get(name) != node.spec]
        for node in leaving:
            node.ask_to_stop()
        for node in leaving:
            if node.state != "stopped":
                print(f"{node.spec.name}: stopping", flush=True)
            node.wait_stopped()
            if node.spec.instance_id not in kept:
                node.wipe()
                del self._nodes[node.spec.name]

    def _keep_tunnel(self) -> None:
        """Give the host's loopback the pages of the ops node, the way an operator reaches them: through SSH."""
        ops = next((n.spec for n in self._nodes.values() if n.spec.role == "ops" and n.state == "running"), None)
        if self._tunnel is not None and (self._tunnel.poll() is not None or ops is None):
            self._tunnel.kill()
            self._tunnel.wait()
            self._tunnel = None
        if self._tunnel is None and ops is not None:
            self._tunnel = subprocess.Popen(
                ["ssh", "-N", *contact.ssh_options(), "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=5",
                 "-L", f"127.0.0.1:{s.GATEWAY_PORT}:{ops.address}:443",
                 "-L", f"127.0.0.1:{s.PROMETHEUS_PORT}:127.0.0.1:9090",
                 "-L", f"127.0.0.1:{s.ALERTMANAGER_PORT}:127.0.0.1:9093",
                 f"{s.USER}@{ops.address}"],
                stdin=subprocess.DEVNULL, stdout=self._tunnel_log, stderr=self._tunnel_log,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509
            )  # fmt: skip

    def _write_status(self) -> None:
        status = {
            "pid": os.getpid(),
            "endpoint": self._emulator.endpoint,
            "nodes": [
                {
                    "name": n.spec.name,
                    "role": n.spec.role,
                    "address": n.spec.address,
                    "instance_id": n.spec.instance_id,
                    "state": n.state,
                }
                for n in sorted(self._nodes.values(), key=lambda n: n.spec.name)
            ],
        }
        partial = contact.STATUS_FILE.with_suffix(".partial")
        partial.write_text(json.dumps(status, indent=2))
        partial.rename(contact.STATUS_FILE)

    def close(self) -> None:
        if self._tunnel is not None:
            self._tunnel.kill()
        for node in self._nodes.values():
            node.ask_to_stop()
        for node in self._nodes.values():
            node.wait_stopped()
        self._emulator.stop()
        self._tunnel_log.close()


def console(nodes: Mapping[str, Node], instance_id: str) -> str:
    """What the instance's machine wrote to its console; empty when it has no machine yet.

    Called by the emulator's threads while `step` changes `nodes`, hence the copy.
    """
    return next((node.console() for node in list(nodes.values()) if node.spec.instance_id == instance_id), "")


def _spec(view: InstanceView) -> NodeSpec:
    return NodeSpec(view.name, view.private_ip, view.role, view.public_key, view.instance_id)


def main() -> None:
    """Run until SIGTERM. Started by `lab-up` in a session of its own."""
    stop_on_signals()
    supervisor = Supervisor(s.AWS_PORT)
    try:
        while True:
            try:
                supervisor.step()
            except (BotoCoreError, ClientError, LabError, OSError) as error:
                # The machines stay as they are until the API can be read, or the disk written, again.
                print(f"could not look after the machines, trying again: {error}", flush=True)
            time.sleep(_POLL_SECONDS)
    except Interrupted as reason:
        print(reason, flush=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        supervisor.close()


if __name__ == "__main__":
    main()
