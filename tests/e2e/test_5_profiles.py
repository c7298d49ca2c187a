"""Another serving profile is one variable away, and a wrong one is refused before anything changes."""

from __future__ import annotations

import base64
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from coderack.spec.profile import OWNED_FLAGS, REFUSED_FLAGS
from harness import ROOT, Lab, ask_gateway, configure, key, make, prometheus, run, stream_from_gateway

HOSTS = ROOT / "inventories/lab/hosts.yml"
PROFILES = ROOT / "inventories/profiles"
PARSER = ROOT / "tests/e2e/vllm_parser.py"
# Forms of speculative decoding that no profile of the repository uses.
SPECULATIVE: dict[str, dict[str, object]] = {
    "ngram": {"method": "ngram", "tokens": 4, "lookup_max": 5, "lookup_min": 2},
    "ngram-gpu": {"method": "ngram_gpu", "tokens": 4},
    "eagle": {"method": "eagle3", "tokens": 3, "model": "/srv/models/eagle", "weights_gib": 1.6},
    "draft": {"method": "draft_model", "tokens": 4, "model": "/srv/models/draft", "weights_gib": 4.0},
}


@pytest.fixture
def inventory_without_gpu_b() -> Iterator[None]:
    whole = HOSTS.read_text()
    inventory: dict[str, Any] = yaml.safe_load(whole)
    del inventory["all"]["children"]["gpu_nodes"]["hosts"]["gpu-b"]
    HOSTS.write_text(yaml.safe_dump(inventory))
    yield
    HOSTS.write_text(whole)


def greedy_tokens() -> list[str]:
    """What the endpoint makes of a few prompts without chance: the same weights must give the same text."""
    answers = []
    for prompt in (
        "SELECT",
        "How many orders are there?",
        "CREATE TABLE orders (id",
        "one two three four five six",
        "§ Ω",
    ):
        body: dict[str, object] = {"model": "tiny-qwen3-moe", "prompt": prompt, "max_tokens": 12, "temperature": 0}
        status, answer = ask_gateway("/v1/completions", body, api_key=key())
        assert status == 200, answer
        answers.append(json.loads(answer)["choices"][0]["text"])
    return answers


@pytest.fixture(scope="module")
def one_rank(the_lab: Lab) -> list[str]:
    """Answers of the MoE model on one rank that holds all experts."""
    done = configure("-e", "vllm_profile=lab-moe-split")
    assert done.code == 0, done.text
    return greedy_tokens()


def unit_start(the_lab: Lab, node: str) -> str:
    return the_lab.on(node, "systemctl show vllm -p ExecMainStartTimestampMonotonic --value").text


def argument_lists(profile: Path) -> list[list[str]]:
    """What `coderack plan args` prints for every node of a profile."""
    nodes = yaml.safe_load(profile.read_text())["layout"]["nodes"]
    addresses = [word for node in range(nodes) for word in ("--address", f"10.0.0.{node + 1}")]
    done = run(sys.executable, "-m", "coderack.cli.main", "plan", "args", str(profile), "--json", *addresses)
    assert done.code == 0, done.text
    return [node["arguments"] for node in json.loads(done.text)["nodes"]]


@pytest.fixture(scope="module")
def parsed(the_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the parser of the lab's vLLM says of every profile, and of every form of speculative decoding."""
    folder = tmp_path_factory.mktemp("profiles")
    for name, asked in SPECULATIVE.items():
        profile = yaml.safe_load((PROFILES / "fused-16.yml").read_text()) | {"name": name, "speculative": asked}
        (folder / f"{name}.yml").write_text(yaml.safe_dump(profile))
    profiles = sorted([*PROFILES.glob("*.yml"), *folder.glob("*.yml")])
    lists = [words for profile in profiles for words in argument_lists(profile)]
    sent = base64.b64encode(json.dumps(lists).encode()).decode()
    command = f"echo {sent} | base64 -d | /opt/vllm/blue/bin/python -c {shlex.quote(PARSER.read_text())} 2>/dev/null"
    done = the_lab.on("gpu-a", command, timeout=180)
    assert done.code == 0, done.text
    answer: dict[str, list[str]] = json.loads(done.text.strip().splitlines()[-1])
    return answer


def test_vllms_own_parser_takes_every_argument_list(parsed: dict[str, list[str]]) -> None:
    assert parsed["refused"] == []


def test_flags_that_the_schema_speaks_of_are_as_vllm_has_them(parsed: dict[str, list[str]]) -> None:
    known = set(parsed["options"])
    assert set(OWNED_FLAGS) <= known
    gone = {flag for flag, why in REFUSED_FLAGS.items() if re.match("it is gone|use --", why)}
    assert not gone & known


def test_a_profile_whose_model_is_missing_is_refused(the_lab: Lab) -> None:
    before = unit_start(the_lab, "gpu-a")
    done = configure("-e", "vllm_profile=split-8")
    assert done.code != 0
    for word in ("split-8", "/srv/models/qwen3-coder-480b-fp8", "gpu-a"):
        assert word in done.text
    assert set(done.changed().values()) == {0}, done.text
    assert unit_start(the_lab, "gpu-a") == before


def test_an_unknown_profile_is_refused(the_lab: Lab) -> None:
    done = configure("-e", "vllm_profile=no-such")
    assert done.code != 0
    assert "no-such" in done.text
    assert "lab-smollm2" in done.text  # the known ones are named
    assert set(done.changed().values()) <= {0}


@pytest.mark.usefixtures("inventory_without_gpu_b")
def test_an_inventory_with_a_node_missing_is_refused(the_lab: Lab) -> None:
    done = configure()
    assert done.code != 0
    assert "2 GPU node(s)" in done.text
    assert set(done.changed().values()) == {0}, done.text


def test_an_engine_that_is_stopped_ends_its_running_answers(
    the_lab: Lab, tmp_path: Path, eventually: Callable[[Callable[[], bool], float], bool]
) -> None:
    body = {
        "model": "smollm2-135m-instruct",
        "prompt": "Count: 1",
        "max_tokens": 300,
        "ignore_eos": True,
        "stream": True,
    }
    streams = [tmp_path / name for name in ("one", "two")]  # one for each replica
    with ExitStack() as running:
        for stream in streams:
            running.enter_context(stream_from_gateway(body, key(), stream))
        assert eventually(lambda: all(stream.read_text().count("data:") > 5 for stream in streams), 30)
        assert the_lab.on("gpu-a", "sudo systemctl stop vllm", timeout=90).code == 0
    for stream in streams:
        text = stream.read_text()
        assert '"finish_reason":"length"' in text, text[-400:]
        assert '"error"' not in text


def test_serving_stops_in_one_operation_and_the_gateway_says_so(the_lab: Lab) -> None:
    done = make("stop", "ENV=lab")
    assert done.code == 0, done.text
    body: dict[str, object] = {"model": "smollm2-135m-instruct", "prompt": "SELECT", "max_tokens": 1}
    assert ask_gateway("/v1/completions", body, api_key=key())[0] == 503
    assert {the_lab.on(node, "systemctl is-active vllm").text.strip() for node in ("gpu-a", "gpu-b")} == {"inactive"}


def test_the_production_topology_answers_over_both_nodes(
    the_lab: Lab, one_rank: list[str], eventually: Callable[[Callable[[], bool], float], bool]
) -> None:
    """Qwen3-MoE, data parallel 2 with expert parallel, one rank on each node: one endpoint, the same tokens."""
    done = configure("-e", "vllm_profile=lab-moe-fused")
    assert done.code == 0, done.text
    assert greedy_tokens() == one_rank
    assert len(set(one_rank)) > 1
    body: dict[str, object] = {"model": "tiny-qwen3-moe", "prompt": "SELECT", "max_tokens": 8}
    for _ in range(6):
        status, answer = ask_gateway("/v1/completions", body, api_key=key())
        assert status == 200, answer
        assert json.loads(answer)["usage"]["completion_tokens"] > 0
    query = 'vllm:request_success_total{job="vllm",model_name="tiny-qwen3-moe"}'
    assert eventually(lambda: {row["metric"]["engine"] for row in prometheus(f"{query} > 0")} == {"0", "1"}, 60)
    assert {row["metric"]["node"] for row in prometheus(query)} == {"gpu-a"}  # the head speaks for both engines
    command = the_lab.on("gpu-b", "systemctl cat vllm").text
    assert "--headless" in command


def serves(the_lab: Lab) -> bool:
    body: dict[str, object] = {"model": "tiny-qwen3-moe", "prompt": "SELECT", "max_tokens": 4}
    return ask_gateway("/v1/completions", body, api_key=key())[0] == 200


def probe_state(the_lab: Lab) -> str:
    state: str = json.loads(the_lab.on("gpu-a", "cat /run/coderack/probe.json").text)["state"]
    return state


def test_a_killed_engine_is_seen_and_the_group_comes_back_as_one_by_itself(
    the_lab: Lab, eventually: Callable[[Callable[[], bool], float], bool]
) -> None:
    """A lone rank cannot rejoin: both nodes start anew, without a human."""
    assert eventually(lambda: probe_state(the_lab) == "up", 60)
    before = [unit_start(the_lab, node) for node in ("gpu-a", "gpu-b")]
    assert the_lab.on("gpu-b", "sudo pkill -9 -f '[V]LLM::EngineCore'").code == 0
    assert eventually(lambda: probe_state(the_lab) in ("down", "degraded", "starting"), 15)
    assert eventually(lambda: the_lab.on("gpu-a", "sudo coderack group status").code == 0 and serves(the_lab), 180)
    after = [unit_start(the_lab, node) for node in ("gpu-a", "gpu-b")]
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_a_fused_group_whose_nodes_reboot_together_comes_back(
    the_lab: Lab, eventually: Callable[[Callable[[], bool], float], bool]
) -> None:
    for node in ("gpu-b", "gpu-a"):
        the_lab.on(node, "sudo systemctl reboot")
    assert eventually(lambda: not serves(the_lab), 60)
    assert eventually(lambda: the_lab.on("gpu-a", "sudo coderack group status").code == 0 and serves(the_lab), 240)


def test_a_group_that_an_operator_stops_stays_stopped_until_it_is_started(
    the_lab: Lab, eventually: Callable[[Callable[[], bool], float], bool]
) -> None:
    assert the_lab.on("gpu-a", "sudo coderack group stop --wait 100", timeout=120).code == 0
    assert not serves(the_lab)
    assert the_lab.on("gpu-a", "sudo coderack group start --wait 200", timeout=240).code == 0
    assert eventually(lambda: serves(the_lab), 30)
