"""How requests enter: one at a time, and with an honest answer to what the emulator cannot do."""

import functools
import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.wrappers import Response

# moto's models are plain dictionaries; Terraform sends ten requests at once. One lock keeps them consistent.
_one_at_a_time = threading.RLock()


class NotImplementedInLab(ServiceException):
    """An action, or a way to call it, that the emulator lacks. Answered with status 400."""

    code = "NotImplementedInLab"


def application(service: Any) -> Callable[..., Any]:
    """The WSGI application of one service; for a service that moto does not know, one that says so."""
    if service is not None:
        return create_backend_app(service)
    text = "The lab's AWS emulator has no such service. Only what moto implements can be used in the lab."
    body = json.dumps({"__type": NotImplementedInLab.code, "message": text})
    return Response(body, status=400, mimetype="application/json")


def install() -> None:
    """Wraps the entry of every service; a second call changes nothing."""
    original = BaseResponse.call_action
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def call_action(self: BaseResponse) -> Any:
        with _one_at_a_time:
            try:
                return original(self)
            except NotImplementedError as missing:
                # moto lets this become an HTML page with status 500, which clients retry for minutes.
                what = f"{self.service_name}:{self._get_action()}"
                text = f"The lab's AWS emulator does not implement {what}: {missing}. Add it in coderack_lab.aws."
                with warnings.catch_warnings():  # moto remarks that no service defines this error; quite so
                    warnings.simplefilter("ignore")
                    return self.serialized(ActionResult(NotImplementedInLab(text)))

    BaseResponse.call_action = call_action  # type: ignore[method-assign]
