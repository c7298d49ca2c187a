"""What role gateway promises, asked over TLS as a client would."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from testinfra.host import Host

KEY = "molecule-molecule-molecule"

# Answers completions like an API server, and repeats what it was sent, so that tests see what got through.
ENGINE = """
import http.server, json
class Engine(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        answer = json.dumps({"choices": [{"text": "2"}], "headers": dict(self.headers.items()), "body": body}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Engine).serve_forever()
"""


def call(host: Host, path: str, *options: str) -> tuple[int, str, str]:
    """Status, headers and body of one request through the gateway."""
    words = ["curl", "--silent", "--cacert", "/etc/haproxy/tls/ca.crt", "--max-time", "10", "--include", *options]
    output = host.check_output(" ".join(["%s"] * (len(words) + 1)), *words, f"https://mol{path}")
    head, _, body = output.partition("\n\n") if "\r" not in output else output.replace("\r", "").partition("\n\n")
    return int(head.split()[1]), head.lower(), body


def with_key(host: Host, path: str, *options: str, key: str = KEY) -> tuple[int, str, str]:
    return call(host, path, "--header", f"Authorization: Bearer {key}", *options)


@pytest.fixture
def engine(host: Host) -> Iterator[None]:
    host.check_output("systemd-run --collect --unit=stand-in python3 -c %s", ENGINE)
    try:
        deadline = time.monotonic() + 20
        while with_key(host, "/v1/models")[0] == 503 and time.monotonic() < deadline:
            time.sleep(0.5)
        yield
    finally:
        host.check_output("systemctl stop stand-in")


@pytest.mark.parametrize("key", ["", "molecule-molecule-moleculE", "x" * 200])
def test_a_missing_or_wrong_key_is_refused_the_way_openai_clients_expect(host: Host, key: str) -> None:
    status, headers, body = with_key(host, "/v1/models", key=key) if key else call(host, "/v1/models")
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
    assert "www-authenticate: bearer" in headers


@pytest.mark.parametrize(
    "path", ["/metrics", "/health", "/tokenize", "/v1/models/../../metrics", "/", "/v1/embeddings"]
)
def test_paths_off_the_list_are_not_there(host: Host, path: str) -> None:
    assert with_key(host, path, "--path-as-is")[0] == 404


def test_without_an_engine_it_says_when_to_come_back(host: Host) -> None:
    status, headers, body = with_key(host, "/v1/models")
    assert (status, json.loads(body)["error"]["code"]) == (503, "unavailable")
    assert "retry-after: 10" in headers


@pytest.mark.usefixtures("engine")
def test_the_engine_gets_the_request_with_an_id_but_without_the_key(host: Host) -> None:
    status, headers, body = with_key(host, "/v1/completions", "--data", "{}", "--header", "X-Request-Id: forged")
    seen = {name.lower(): value for name, value in json.loads(body)["headers"].items()}
    assert status == 200
    assert "authorization" not in seen
    assert f"x-request-id: {seen['x-request-id']}" in headers
    assert seen["x-request-id"] != "forged"


@pytest.mark.usefixtures("engine")
def test_a_body_over_the_limit_is_refused(host: Host) -> None:
    assert with_key(host, "/v1/completions", "--http1.1", "--data", "x" * 1001)[0] == 413
    assert with_key(host, "/v1/completions", "--http1.1", "--data", "x" * 1000)[0] == 200


@pytest.mark.usefixtures("engine")
def test_a_body_of_unknown_length_is_refused(host: Host) -> None:
    chunked = ("--http1.1", "--header", "Transfer-Encoding: chunked", "--data", "{}")
    assert with_key(host, "/v1/completions", *chunked)[0] == 411


@pytest.mark.usefixtures("engine")
def test_the_log_names_the_key_and_holds_neither_key_nor_prompt(host: Host) -> None:
    with_key(host, "/v1/completions?secret-query", "--data", "secret-prompt")
    log = host.check_output("journalctl --unit haproxy --output cat --no-pager")
    assert "key=molecule method=POST path=/v1/completions " in log
    assert not [secret for secret in (KEY, "secret-query", "secret-prompt") if secret in log]


def test_the_gateway_keeps_no_key_in_the_clear(host: Host) -> None:
    assert host.run("grep --recursive --quiet %s /etc/haproxy /etc/coderack", KEY).rc == 1


def test_plain_http_gets_no_answer(host: Host) -> None:
    assert host.run("curl --silent --max-time 5 http://mol:443/v1/models").rc != 0
    assert host.run("curl --silent --max-time 5 http://mol/v1/models").rc != 0


def test_tls_before_1_2_is_refused(host: Host) -> None:
    handshake = "openssl s_client -connect mol:443 -cipher DEFAULT@SECLEVEL=0 {} </dev/null 2>&1"
    assert "Cipher is (NONE)" in host.run(handshake.format("-tls1_1")).stdout
    assert "Cipher is (NONE)" not in host.run(handshake.format("-tls1_2")).stdout


def test_http_2_is_offered(host: Host) -> None:
    assert "ALPN protocol: h2" in host.run("openssl s_client -connect mol:443 -alpn h2 </dev/null 2>&1").stdout


@pytest.mark.parametrize("name", ["mol", "gateway.example.net"])
def test_the_certificate_holds_for_every_name(host: Host, name: str) -> None:
    checked = host.run(
        f"openssl verify -CAfile /etc/haproxy/tls/ca.crt -verify_hostname {name} /etc/haproxy/tls/server.crt"
    )
    assert checked.rc == 0


def test_keys_are_for_root_only(host: Host) -> None:
    for name in ("ca.key", "server.key", "gateway.pem"):
        file = host.file(f"/etc/haproxy/tls/{name}")
        assert (file.user, file.mode) == ("root", 0o600)


def test_the_admin_socket_is_there_and_closed_to_others(host: Host) -> None:
    socket = host.file("/run/haproxy/admin.sock")
    assert (socket.is_socket, socket.mode) == (True, 0o660)


def test_metrics_are_for_the_node_itself(host: Host) -> None:
    assert "haproxy_process_uptime_seconds" in host.check_output("curl --silent --fail http://127.0.0.1:8405/metrics")
    assert host.run("curl --silent --fail --max-time 2 http://mol:8405/metrics").rc != 0
