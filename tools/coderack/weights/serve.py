"""Let another node copy a verified revision: read-only, one folder, the manifest's files only, by a token of the day.

The token keeps strangers from reading; that nothing was changed on the way is the manifest's matter, whose digest the
other node knows from its operator. Bytes go from page cache to socket by sendfile, so Python is not in their way.
"""

import hmac
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from coderack.weights import manifest as m
from coderack.weights.store import Verified

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
# One for each file of one copy, with room for a second node.
_MOST_CONNECTIONS = 128
_SILENCE_S = 60.0


class Server(ThreadingHTTPServer):
    """`run` ends when nobody has asked for `idle_s` seconds."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, port: int, folder: Verified, token: str) -> None:
        self.paths = {
            f"/{folder.manifest.revision}/{entry.path}": folder.folder / entry.path for entry in folder.manifest.files
        }
        self.manifest_path = f"/{folder.manifest.revision}/{m.FILE_NAME}"
        self.manifest = m.render(folder.manifest).encode()
        self.token = f"Bearer {token}".encode()
        self.sent = 0
        self.lock = threading.Lock()
        self.free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.active = 0
        self.asked_at = time.monotonic()
        super().__init__((address, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        # Whoever hangs up, or was killed, comes again; a traceback for each would hide what matters.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def run(self, idle_s: float) -> int:
        """Serve until nobody asks any more; returns the bytes sent."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            while self.active or time.monotonic() - self.asked_at < idle_s:
                time.sleep(min(0.2, idle_s))
        finally:
            self.shutdown()
            self.server_close()
        return self.sent

    def count(self, sent: int) -> None:
        with self.lock:
            self.sent += sent
            self.asked_at = time.monotonic()

    def enter(self, by: int) -> None:
        with self.lock:
            self.active += by
            self.asked_at = time.monotonic()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "coderack"
    sys_version = ""
    timeout = _SILENCE_S
    server: Server

    def do_GET(self) -> None:
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(errors="replace"), self.server.token):
            self._refuse(401)
            return
        path = unquote(self.path)
        if path == self.server.manifest_path:
            self._head(200, len(self.server.manifest))
            self.wfile.write(self.server.manifest)
        elif path not in self.server.paths:
            self._refuse(404)
        elif not self.server.free.acquire(blocking=False):
            self._refuse(503)
        else:
            self.server.enter(+1)
            try:
                self._file(self.server.paths[path])
            except OSError:
                # The other end has gone, or the file has. A head is out already, so only the connection can say it.
                self.close_connection = True
            finally:
                self.server.enter(-1)
                self.server.free.release()

    def _file(self, path: Path) -> None:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            span = _RANGE.fullmatch(self.headers.get("Range", ""))
            first = int(span[1]) if span else 0
            end = min(size, int(span[2]) + 1) if span and span[2] else size
            if first > end or (span and first >= size):
                self._refuse(416)
                return
            self._head(206 if span else 200, end - first, f"bytes {first}-{end - 1}/{size}" if span else "")
            self.wfile.flush()
            self._send(file, first, end)

    def _send(self, file: object, first: int, end: int) -> None:
        # In pieces, so that a slow copy still counts as one that goes on.
        step = 64 << 20
        for at in range(first, end, step):
            sent = self.connection.sendfile(file, at, min(step, end - at))
            self.server.count(sent)
            if sent < min(step, end - at):
                raise ConnectionError("the file became shorter")

    def _head(self, status: int, length: int, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()

    def _refuse(self, status: int) -> None:
        self._head(status, 0)

    def log_message(self, *_: object) -> None:
        pass
