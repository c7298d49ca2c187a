"""Looks like the API server of data-parallel ranks, as far as the probe looks; /run/hang-RANK makes a rank hang."""

import http.server
import json
import sys
import time
from pathlib import Path


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, "# no metrics\n")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rank = self.headers["X-data-parallel-rank"]
        if self.headers["Authorization"] != "Bearer key-of-the-stand-in":
            self._answer(401, "Unauthorized")
        elif Path(f"/run/hang-{rank}").exists():
            time.sleep(60)
        else:
            choice = {"index": 0, "text": "2", "finish_reason": "length"}
            answer = {"model": body["model"], "choices": [choice], "usage": {"completion_tokens": 1}}
            self._answer(200, json.dumps(answer))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


http.server.ThreadingHTTPServer((sys.argv[1], 8000), Api).serve_forever()
