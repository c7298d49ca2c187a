"""What an instance has written to its console. The emulator runs no machines; whoever does says what they wrote."""

import base64
from collections.abc import Callable

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from .state import now

Console = Callable[[str], str]  # instance id -> text; empty while there is none


def silent(_instance_id: str) -> str:
    """The console of a machine that never booted."""
    return ""


class ConsoleActions(EC2Response):
    # On the class, as moto makes an object for every request.
    read: Console = staticmethod(silent)

    def get_console_output(self) -> ActionResult:
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        text = self.read(instance.id)
        return ActionResult(
            {
                "InstanceId": instance.id,
                "Timestamp": now(),
                # As on AWS, there is no output before the machine has written something.
                "Output": base64.b64encode(text.encode()).decode() if text else None,
            }
        )
