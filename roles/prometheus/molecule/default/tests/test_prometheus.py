"""What role prometheus promises, asked from Prometheus itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testinfra.host import Host

ROLE = Path(__file__).parents[3]
API = "http://127.0.0.1:9090/api/v1"


def ask(host: Host, path: str) -> Any:
    return json.loads(host.check_output(f"curl --silent --fail --max-time 10 '{API}/{path}'"))["data"]


def wait_for(read: Callable[[], Any], wanted: Callable[[Any], bool], seconds: int = 15) -> Any:
    deadline = time.monotonic() + seconds
    while not wanted(seen := read()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return seen


def test_it_scrapes_itself_and_names_the_node(host: Host) -> None:
    def state() -> list[tuple[str, str]]:
        # Braces are encoded: curl takes them for a pattern of its own.
        result = ask(host, "query?query=up%7Bjob=%22prometheus%22%7D")["result"]
        return [(series["metric"]["node"], series["value"][1]) for series in result]

    assert wait_for(state, lambda seen: seen == [("mol", "1")]) == [("mol", "1")]


def test_all_jobs_of_the_contract_are_there(host: Host) -> None:
    targets = ask(host, "targets?state=active")["activeTargets"]
    assert {t["labels"]["job"] for t in targets} == {"vllm", "node", "dcgm", "haproxy", "prometheus", "alertmanager"}


def test_it_alerts_alertmanager(host: Host) -> None:
    managers = ask(host, "alertmanagers")
    known = managers["activeAlertmanagers"] + managers["droppedAlertmanagers"]
    assert [m["url"] for m in known] == ["http://127.0.0.1:9093/api/v2/alerts"]


def test_an_engine_that_does_not_answer_is_pending_at_once(host: Host) -> None:
    def engine_alerts() -> list[dict[str, Any]]:
        return [a for a in ask(host, "alerts")["alerts"] if a["labels"]["alertname"] == "VllmEngineDown"]

    alerts = wait_for(engine_alerts, bool)
    assert [(a["labels"]["node"], a["labels"]["engines"]) for a in alerts] == [("mol", "2")]


def test_every_alert_names_a_runbook_that_exists(host: Host) -> None:
    rules = [rule for group in ask(host, "rules")["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules:
        runbook = ROLE.parents[1] / rule["annotations"]["runbook"]
        assert runbook.is_file(), rule["name"]
        assert runbook.name == rule["name"]


def test_the_rules_pass_their_unit_tests_on_the_installed_version(host: Host) -> None:
    host.check_output("mkdir -p /run/rule-tests/files /run/rule-tests/tests")
    for name in ("files/rules.yml", "tests/rules.yml"):
        text = (ROLE / name).read_text()
        host.check_output("printf %%s %s > /run/rule-tests/%s", text, name)
    result = host.run("promtool test rules /run/rule-tests/tests/rules.yml")
    assert result.rc == 0, result.stdout + result.stderr


def test_it_listens_on_loopback_alone(host: Host) -> None:
    assert host.socket("tcp://127.0.0.1:9090").is_listening
    assert not host.socket("tcp://0.0.0.0:9090").is_listening
    assert not host.socket("tcp://:::9090").is_listening


def test_retention_is_what_the_variables_say(host: Host) -> None:
    flags = ask(host, "status/flags")
    assert flags["storage.tsdb.retention.time"] == "30d"
    assert flags["storage.tsdb.retention.size"].startswith("20G")  # newer versions say GiB
