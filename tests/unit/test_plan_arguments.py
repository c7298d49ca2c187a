import json
from typing import Any

import pytest

from coderack.plan.arguments import vllm_arguments
from coderack.spec.checked import validate
from coderack.spec.profile import ServingProfile

from .data import profile_data


def profile(name: str, **changes: Any) -> ServingProfile:
    return validate(ServingProfile, profile_data(name) | changes, name)


def arguments(of: ServingProfile, rank: int, **changes: Any) -> list[str]:
    node: dict[str, Any] = {"node_count": 2, "head_address": "10.77.0.10", "host": f"10.77.0.1{rank}"} | changes
    return vllm_arguments(of, node_rank=rank, **node)


# Accepted as a whole by vLLM 0.32's own parser, on the head and on the second node.
FUSED_16_COMMON = (
    "serve /srv/models/qwen3-coder-480b-fp8 --served-model-name qwen3-coder-480b "
    "--tensor-parallel-size 2 --data-parallel-size 8 --data-parallel-size-local 4 "
    "--data-parallel-address 10.77.0.10 --data-parallel-rpc-port 13345 "
    "--enable-expert-parallel --all2all-backend allgather_reducescatter "
    "--max-model-len 65536 --max-num-seqs 64 --max-num-batched-tokens 2048 --gpu-memory-utilization 0.9 "
    "--fail-on-environ-validation "
    "--enable-ep-weight-filter --performance-mode interactivity "
    "--shutdown-timeout 60 --distributed-timeout-seconds 1800 "
)


def test_head_of_a_fused_group_runs_the_api_server() -> None:
    assert " ".join(arguments(profile("fused-16"), 0)) == FUSED_16_COMMON + (
        "--host 10.77.0.10 --port 8000 --api-server-count 2 --enable-auto-tool-choice --tool-call-parser qwen3_coder "
        "--max-num-queued-reqs 256 --disable-fastapi-docs --enable-server-load-tracking"
    )


def test_second_node_of_a_fused_group_is_headless_and_starts_at_its_first_rank() -> None:
    expected = FUSED_16_COMMON + "--headless --data-parallel-start-rank 4"
    assert " ".join(arguments(profile("fused-16"), 1)) == expected


def test_start_rank_grows_with_the_node() -> None:
    layout = profile_data("fused-16")["layout"] | {"nodes": 4, "data_parallel": 8}
    words = arguments(profile("fused-16", layout=layout), 3, node_count=4)
    assert words[-2:] == ["--data-parallel-start-rank", "6"]


def test_nodes_of_a_split_layout_differ_only_in_their_own_address() -> None:
    first, second = arguments(profile("split-8"), 0), arguments(profile("split-8"), 1)
    assert [word.replace("10.77.0.11", "10.77.0.10") for word in second] == first
    assert second[second.index("--host") + 1] == "10.77.0.11"


def test_a_replica_of_one_rank_has_no_data_parallel_option() -> None:
    words = arguments(profile("lab-smollm2"), 1)
    assert not [word for word in words if word.startswith("--data-parallel")]


def test_a_replica_of_several_ranks_has_no_address_of_another_node() -> None:
    layout = profile_data("split-8")["layout"] | {"data_parallel": 2, "tensor_parallel": 4}
    words = arguments(profile("split-8", layout=layout), 1)
    assert words[words.index("--data-parallel-size") + 1] == "2"
    assert "10.77.0.10" not in words


def test_limits_that_are_not_given_are_left_to_vllm() -> None:
    words = arguments(profile("lab-smollm2"), 0)
    assert "--gpu-memory-utilization" not in words
    assert "--kv-cache-dtype" not in words


def test_cache_type_is_passed_on() -> None:
    limits = profile_data("fused-16")["limits"] | {"kv_cache_dtype": "fp8"}
    words = arguments(profile("fused-16", limits=limits), 1)
    assert words[words.index("--kv-cache-dtype") + 1] == "fp8"


def test_ports_can_be_chosen() -> None:
    words = arguments(profile("lab-moe-fused"), 0, port=9000, rpc_port=14000)
    assert words[words.index("--port") + 1] == "9000"
    assert words[words.index("--data-parallel-rpc-port") + 1] == "14000"


def test_refuses_a_profile_for_another_number_of_nodes() -> None:
    with pytest.raises(ValueError, match=r"profile fused-16: layout\.nodes is 2 and the inventory has 3 GPU hosts"):
        arguments(profile("fused-16"), 0, node_count=3)


@pytest.mark.parametrize("rank", [-1, 2])
def test_refuses_a_rank_outside_the_group(rank: int) -> None:
    with pytest.raises(ValueError, match=f"node rank is {rank}, wanted 0 to 1"):
        arguments(profile("fused-16"), rank)


def test_speculative_decoding_becomes_one_json_word_on_every_node() -> None:
    asked = {"method": "ngram", "tokens": 4, "lookup_max": 5, "lookup_min": 2}
    for rank in (0, 1):
        words = arguments(profile("fused-16", speculative=asked), rank)
        assert json.loads(words[words.index("--speculative-config") + 1]) == {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_max": 5,
            "prompt_lookup_min": 2,
        }


def test_a_draft_model_is_passed_by_its_folder() -> None:
    asked = {"method": "eagle3", "tokens": 3, "model": "/srv/models/eagle", "weights_gib": 1.6}
    words = arguments(profile("split-8", speculative=asked), 0)
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "model": "/srv/models/eagle",
    }


def test_yarn_overrides_rope_whole_and_the_models_own_limit() -> None:
    words = arguments(profile("yarn-1m"), 1)
    assert json.loads(words[words.index("--hf-overrides") + 1]) == {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 262144,
        },
        "max_position_embeddings": 1048576,
    }
