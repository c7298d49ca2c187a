"""Looks like `vllm serve` from outside, as far as the role looks: a port that opens late, and completions."""

import http.server
import json
import os
import subprocess
import sys
import time
from pathlib import Path


class Api(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != f"Bearer {os.environ['VLLM_API_KEY']}":
            self.send_error(401)
            return
        seen = {"program": sys.argv[0], "arguments": sys.argv[1:], "secret": os.environ.get("SECRET_TOKEN")}
        answer = json.dumps({"choices": [{"text": "2"}], **seen, "pid": os.getpid()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main() -> None:
    options = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    if Path("/srv/models/stand-in/crash").exists():
        sys.exit("the weights are not there")
    subprocess.Popen(["bash", "-c", "trap '' TERM; exec -a stand-in-engine-core sleep infinity"])
    time.sleep(2)
    http.server.ThreadingHTTPServer((options["--host"], int(options["--port"])), Api).serve_forever()
