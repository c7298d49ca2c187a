"""What role alertmanager promises: an alert goes in, somebody is called."""

from __future__ import annotations

import json
import time

from testinfra.host import Host

API = "http://127.0.0.1:9093/api/v2"


PAGE = "/run/probe-page"
# Somebody who takes a call: answers every POST and keeps path and body.
PAGER = f"""
from http.server import BaseHTTPRequestHandler, HTTPServer
class Pager(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        open("{PAGE}", "a").write(self.path + " " + body)
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", 9999), Pager).serve_forever()
"""


def test_an_alert_reaches_the_receiver(host: Host) -> None:
    host.check_output(f"rm -f {PAGE}")
    host.check_output("systemd-run --collect --unit=probe-pager python3 -c %s", PAGER)
    alert = [{"labels": {"alertname": "ProbeAlert", "node": "mol", "run": str(time.time())}}]
    try:
        host.check_output(
            f"curl --silent --fail -H 'Content-Type: application/json' --data %s {API}/alerts", json.dumps(alert)
        )
        deadline = time.monotonic() + 20
        while "ProbeAlert" not in host.run(f"cat {PAGE}").stdout and time.monotonic() < deadline:
            time.sleep(0.5)
        called = host.check_output(f"cat {PAGE}")
    finally:
        host.run("systemctl stop probe-pager")
    assert called.startswith("/page ")
    assert "ProbeAlert" in called


def test_it_listens_on_loopback_alone_and_gossips_with_nobody(host: Host) -> None:
    assert host.socket("tcp://127.0.0.1:9093").is_listening
    assert not host.socket("tcp://0.0.0.0:9093").is_listening
    assert not host.socket("tcp://:::9093").is_listening
    assert not host.socket("tcp://:::9094").is_listening


def test_the_configuration_is_not_for_everybody(host: Host) -> None:
    file = host.file("/etc/prometheus/alertmanager.yml")
    assert (file.user, file.group, oct(file.mode)) == ("root", "prometheus", "0o640")
