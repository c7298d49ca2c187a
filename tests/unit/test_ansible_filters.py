"""The filter plugin inside a real Ansible process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .data import PROFILES, REPOSITORY

NODE = "node_rank=1, node_count=2, head_address='10.77.0.10', host='10.77.0.11'"


def debug(expression: str, profile: Path, tmp_path: Path) -> tuple[int, dict[str, Any], str]:
    """Evaluate an expression in which `profile` is the content of a profile file, without PYTHONPATH."""
    # Without what make sets for the project: the plugin has to find the package by itself.
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ANSIBLE_CONFIG")}
    environment = outside | {
        "ANSIBLE_FILTER_PLUGINS": str(REPOSITORY / "ansible" / "plugins" / "filter"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
        "ANSIBLE_HOME": str(tmp_path),
    }
    variables = {"text": profile.read_text(), "profile": "{{ text | from_yaml }}"}
    program = str(Path(sys.executable).with_name("ansible"))
    message = json.dumps({"msg": f"{{{{ profile | {expression} }}}}"})
    run = subprocess.run(
        [program, "localhost", "-m", "ansible.builtin.debug", "-a", message, "-e", json.dumps(variables)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(run.stdout[run.stdout.index("{") :]) if run.returncode == 0 else {}
    return run.returncode, result, run.stdout + run.stderr


def test_filters_give_what_the_package_gives(tmp_path: Path) -> None:
    both = f"coderack_vllm_arguments({NODE}) + [profile | coderack_profile]"
    code, result, output = debug(both, PROFILES / "lab-moe-fused.yml", tmp_path)
    assert code == 0, output
    *arguments, complete = result["msg"]
    assert arguments[:2] == ["serve", "/srv/models/tiny-qwen3-moe"]
    assert arguments[-3:] == ["--headless", "--data-parallel-start-rank", "1"]
    assert complete["layout"]["all2all_backend"] is None
    assert complete["limits"]["max_model_len"] == 1024


def test_a_checked_profile_can_be_given_to_the_other_filters(tmp_path: Path) -> None:
    both = (
        f"coderack_profile | coderack_vllm_arguments({NODE}) + [profile | coderack_profile | coderack_shutdown_timeout]"
    )
    code, result, output = debug(both, PROFILES / "fused-16.yml", tmp_path)
    assert code == 0, output
    *arguments, seconds = result["msg"]
    assert seconds == 60
    assert arguments[arguments.index("--gpu-memory-utilization") + 1] == "0.9"


def test_a_bad_profile_fails_with_the_reason_in_plain_words(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text((PROFILES / "lab-moe-fused.yml").read_text().replace("data_parallel: 2", "data_parallel: 3"))
    code, _, output = debug("coderack_profile", bad, tmp_path)
    assert code != 0
    assert (
        "serving profile lab-moe-fused: layout.data_parallel is 3, wanted a multiple of layout.nodes = 2"
        in " ".join(output.split())
    )


def test_another_number_of_nodes_fails_with_the_reason(tmp_path: Path) -> None:
    expression = f"coderack_vllm_arguments({NODE.replace('node_count=2', 'node_count=3')})"
    code, _, output = debug(expression, PROFILES / "lab-moe-fused.yml", tmp_path)
    assert code != 0
    assert "layout.nodes is 2 and the inventory has 3 GPU hosts" in " ".join(output.split())
