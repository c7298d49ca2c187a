"""What role model_store refuses before it writes a unit."""

from pathlib import Path
from typing import Any

from .test_role_vllm import playbook


def test_what_would_become_several_words_of_a_unit_is_refused(tmp_path: Path) -> None:
    role = {"name": "Check", "ansible.builtin.include_role": {"name": "model_store", "tasks_from": "preflight"}}
    profile = {"model": {"path": "/srv/models/m", "revision": "1" * 40}}
    play = {"hosts": "gpu_nodes", "gather_facts": False, "vars": {"vllm_serving_profile": profile}, "tasks": [role]}
    hosts: dict[str, dict[str, Any]] = {
        "blank": {"model_store_source": "s3", "model_store_s3_url": "s3://bucket/m --store /etc"},
        "percent": {"model_store_source": "huggingface", "model_store_endpoint": "https://hub/%n"},
    }
    code, output = playbook(tmp_path, play, {"gpu_nodes": hosts})
    assert code != 0
    assert "model_store_s3_url is s3://bucket/m --store /etc; wanted is s3://bucket/folder" in output
    assert "model_store_endpoint is https://hub/%n; wanted are letters, digits and" in output
