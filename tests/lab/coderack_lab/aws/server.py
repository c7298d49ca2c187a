"""The emulator as a server: `start()` inside a process, `python -m coderack_lab.aws.server --port 5601` on its own."""

import argparse
import json
import logging
import os
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moto import settings
from moto.ec2 import urls
from moto.ec2.models import amis
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler
from werkzeug.serving import BaseWSGIServer, make_server

from . import addresses, budgets, dispatch, interfaces, policies, rules, zones
from .account import AccountActions
from .console import Console, ConsoleActions, silent
from .interfaces import InterfaceActions
from .launch import LaunchActions
from .placement import PlacementActions
from .state_bucket import make_state_bucket

DEFAULT_PORT = 5601
AMI_FILE = Path(__file__).with_name("amis.json")

# What all images of the list have in common. There is deliberately no creation date: moto parses it in place, and then
# fails on its own result in the second region.
AMI_COMMON: dict[str, Any] = {
    "architecture": "x86_64",
    "hypervisor": "xen",
    "image_type": "machine",
    "platform": None,
    "public": True,
    "root_device_type": "ebs",
    "sriov": "simple",
    "state": "available",
    "virtualization_type": "hvm",
}


class LabEC2(LaunchActions, PlacementActions, InterfaceActions, ConsoleActions, AccountActions):
    """EC2 as the stack needs it; what is not overridden is moto's."""


def install() -> None:
    """Puts the extension into moto, before the first request. A second call changes nothing."""
    amis.AMIS[:] = [{**AMI_COMMON, **entry} for entry in json.loads(AMI_FILE.read_text(encoding="utf-8"))]
    # An unknown image or instance type is refused as by AWS.
    settings.ENABLE_AMI_VALIDATION = True
    settings.EC2_ENABLE_INSTANCE_TYPE_VALIDATION = True
    urls.url_paths["{0}/"] = LabEC2.dispatch
    addresses.install()
    interfaces.install()
    rules.install()
    budgets.install()
    policies.install()
    zones.install()
    dispatch.install()


@dataclass(frozen=True)
class Emulator:
    """A running emulator; `endpoint` is what AWS_ENDPOINT_URL takes."""

    endpoint: str
    _server: BaseWSGIServer
    _thread: threading.Thread

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def start(host: str, port: int, console: Console = silent) -> Emulator:
    """Serves on host:port (port 0: any free one) in a thread of this process; OSError if the address is taken.

    `console` is called in threads of the emulator, and must not call the API itself.
    """
    install()
    ConsoleActions.read = staticmethod(console)
    make_state_bucket()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # The socket is bound here since werkzeug would end the whole process when the port is taken.
    with socket.create_server((host, port)) as listener:
        app = DomainDispatcherApplication(dispatch.application)  # type: ignore[arg-type]
        server = make_server(host, port, app, threaded=True, request_handler=MotoRequestHandler, fd=listener.fileno())
        bound_port = listener.getsockname()[1]
    thread = threading.Thread(target=server.serve_forever, name="aws-emulator", daemon=True)
    thread.start()
    return Emulator(f"http://{host}:{bound_port}", server, thread)


def main() -> int:
    parser = argparse.ArgumentParser(prog="coderack_lab.aws.server", description="AWS API emulator of the lab")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        emulator = start(options.host, options.port)
    except OSError as error:
        where, why = f"{options.host}:{options.port}", os.strerror(error.errno or 0)
        parser.exit(2, f"Cannot listen on {where}: {why}. Choose another --port or stop what uses it.\n")
    print(f"AWS emulator listens on {emulator.endpoint}", flush=True)
    stop.wait()
    emulator.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
