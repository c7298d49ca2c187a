"""A real HTTP server on a loopback port that plays an OpenAI-compatible endpoint from a script."""

import json
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "key-1"
Event = str | float | threading.Event | None


@dataclass
class Script:
    """What the server answers.

    Among `events` a number is a pause in seconds, a threading.Event is waited for, None tears the connection down.
    """

    events: Sequence[Event] = field(default_factory=list)
    status: int = 200
    body: str = ""
    content_type: str = "text/event-stream"
    requests: list[dict[str, Any]] = field(default_factory=list)


def chunk(text: str | None = None, *, role: str | None = None, finish: str | None = None) -> str:
    """One chat chunk as vLLM sends it."""
    delta = {key: value for key, value in (("role", role), ("content", text)) if value is not None}
    return json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(completion_tokens: int) -> str:
    return json.dumps(
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": completion_tokens}}
    )


def answer(*texts: str, finish: str = "stop") -> list[Event]:
    """A whole stream: role, texts, finish, usage, [DONE]."""
    role = chunk("", role="assistant")
    return [role, *map(chunk, texts), chunk("", finish=finish), usage(len(texts)), "[DONE]"]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that hang up in mid-stream are what some tests are about; anything else is a bug in this file.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(script: Script, certificate: Path | None = None) -> Iterator[str]:
    """Serve `script` and yield the URL; `certificate` holds certificate and key, and turns TLS on."""
    server = _Server(("127.0.0.1", 0), _handler(script))
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, request: dict[str, Any]) -> None:
            script.requests.append({"path": self.path, **request})
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                self._whole(401, '{"error": "Unauthorized"}')
            elif script.body or script.status != 200:
                self._whole(script.status, script.body)
            else:
                self._stream()

        def _whole(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", script.content_type)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in script.events:
                if event is None:
                    self.close_connection = True
                    return
                if isinstance(event, float):
                    time.sleep(event)
                elif isinstance(event, threading.Event):
                    event.wait(timeout=30)
                else:
                    self._send(event if event.startswith("event:") else f"data: {event}\n\n")
            self._send("")

        def _send(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
