"""The endpoint as its clients and its attackers see it."""

from __future__ import annotations

import json
from collections.abc import Callable

from harness import GATEWAY, Lab, ask_gateway, curl, key, prometheus, run

CHAT: dict[str, object] = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 8,
}
INSIDE = ("nsenter", "--net=/run/netns/coderack-lab", "--")


def test_the_right_key_gets_an_answer(the_lab: Lab) -> None:
    status, body = ask_gateway("/v1/chat/completions", CHAT, api_key=key())
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"]


def test_no_key_and_a_wrong_key_are_turned_away(the_lab: Lab) -> None:
    for wrong in (None, "not-a-key", key()[:-1], ""):
        status, body = ask_gateway("/v1/chat/completions", CHAT, api_key=wrong)
        assert status == 401, (wrong, body)
        assert "error" in json.loads(body)


def test_plain_http_is_refused(the_lab: Lab) -> None:
    status, _ = curl(f"{GATEWAY.replace('https', 'http')}/v1/models")
    assert status in (0, 400)
    done = run(*INSIDE, "curl", "-sS", "--max-time", "5", f"http://{the_lab.addresses['ops']}/v1/models")
    assert done.code in (7, 28), done.text  # curl: could not connect, or timed out


def test_paths_that_vllm_leaves_open_are_closed_at_the_gateway(the_lab: Lab) -> None:
    for path in ("/metrics", "/tokenize", "/docs", "/openapi.json", "/health", "/scale_elastic_ep"):
        status, _ = ask_gateway(path, api_key=key())
        assert status == 404, path


def test_engine_ports_cannot_be_reached_from_outside(the_lab: Lab) -> None:
    for node in ("gpu-a", "gpu-b"):
        done = run(*INSIDE, "curl", "-sS", "--max-time", "4", f"http://{the_lab.addresses[node]}:8000/v1/models")
        assert done.code in (7, 28), done.text
        assert the_lab.on("ops", f"curl -sf http://{the_lab.addresses[node]}:8000/v1/models").code == 0


def test_both_replicas_answer_and_are_measured(
    the_lab: Lab, eventually: Callable[[Callable[[], bool], float], bool]
) -> None:
    for _ in range(6):
        assert ask_gateway("/v1/chat/completions", CHAT, api_key=key())[0] == 200
    query = 'sum by (node) (vllm:time_to_first_token_seconds_count{job="vllm"}) > 0'
    assert eventually(lambda: {row["metric"]["node"] for row in prometheus(query)} == {"gpu-a", "gpu-b"}, 60)


def test_every_target_is_up(the_lab: Lab) -> None:
    up = {(row["metric"]["job"], row["metric"].get("node")): row["value"][1] for row in prometheus("up")}
    assert {job for job, _ in up} == {"vllm", "node", "dcgm", "haproxy", "prometheus", "alertmanager"}
    assert {node for job, node in up if job == "node"} == {"gpu-a", "gpu-b", "ops"}
    assert {node for job, node in up if job == "dcgm"} == {"gpu-a", "gpu-b"}
    assert set(up.values()) == {"1"}, up
