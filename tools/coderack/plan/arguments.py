"""The vLLM command line of one node, derived from a serving profile. The only place that knows it."""

import json

from coderack.spec.profile import ServingProfile, Speculative, Yarn


def vllm_arguments(
    profile: ServingProfile,
    *,
    node_rank: int,
    node_count: int,
    head_address: str,
    host: str,
    port: int = 8000,
    rpc_port: int = 13345,
) -> list[str]:
    """Return everything after `vllm` for node `node_rank` of `node_count`.

    In a fused group node 0 is the head: it runs the API server on host:port and the handshake on
    head_address:rpc_port; the others run headless. All nodes get the same parallel options, since the head compares
    them at the handshake and vLLM does not compare the rest. In a split layout every node is a head of its own.

    Raises ValueError when the profile is for another number of nodes or the rank is none of them.
    """
    layout = profile.layout
    if node_count != layout.nodes:
        raise ValueError(
            f"profile {profile.name}: layout.nodes is {layout.nodes} and the inventory has {node_count} GPU hosts; "
            "choose a profile for that number of nodes"
        )
    if not 0 <= node_rank < node_count:
        raise ValueError(f"node rank is {node_rank}, wanted 0 to {node_count - 1}")

    group = _fused_group(profile, head_address, rpc_port) if layout.mode == "fused" else _replica(profile)
    common = ["serve", profile.model.path, "--served-model-name", profile.model.name, *group, *_limits(profile)]
    common += [*_speculative(profile.speculative), *_yarn(profile.yarn)]
    # A VLLM_* variable that vLLM does not know ends the start; without this it is a line in the log, and a default.
    common += ["--fail-on-environ-validation", *profile.engine_args]
    if layout.mode == "fused" and node_rank > 0:
        start_rank = node_rank * layout.data_parallel_per_node
        return [*common, "--headless", "--data-parallel-start-rank", str(start_rank)]
    return [*common, "--host", host, "--port", str(port), *profile.head_args]


def _fused_group(profile: ServingProfile, head_address: str, rpc_port: int) -> list[str]:
    layout = profile.layout
    return [
        *("--tensor-parallel-size", str(layout.tensor_parallel)),
        *("--data-parallel-size", str(layout.data_parallel)),
        *("--data-parallel-size-local", str(layout.data_parallel_per_node)),
        *("--data-parallel-address", head_address),
        *("--data-parallel-rpc-port", str(rpc_port)),
        *_experts(profile),
    ]


def _replica(profile: ServingProfile) -> list[str]:
    layout = profile.layout
    words = ["--tensor-parallel-size", str(layout.tensor_parallel)]
    if layout.data_parallel > 1:
        words += ["--data-parallel-size", str(layout.data_parallel)]
    return [*words, *_experts(profile)]


def _experts(profile: ServingProfile) -> list[str]:
    layout = profile.layout
    if not layout.expert_parallel:
        return []
    backend = ["--all2all-backend", layout.all2all_backend] if layout.all2all_backend else []
    return ["--enable-expert-parallel", *backend]


def _limits(profile: ServingProfile) -> list[str]:
    limits = profile.limits
    words = [
        *("--max-model-len", str(limits.max_model_len)),
        *("--max-num-seqs", str(limits.max_num_seqs)),
        *("--max-num-batched-tokens", str(limits.max_num_batched_tokens)),
    ]
    if limits.gpu_memory_utilization is not None:
        words += ["--gpu-memory-utilization", str(limits.gpu_memory_utilization)]
    if limits.kv_cache_dtype is not None:
        words += ["--kv-cache-dtype", limits.kv_cache_dtype]
    return words


def _speculative(asked: Speculative | None) -> list[str]:
    if asked is None:
        return []
    config = {
        "method": asked.method,
        "num_speculative_tokens": asked.tokens,
        "prompt_lookup_max": asked.lookup_max,
        "prompt_lookup_min": asked.lookup_min,
        "model": asked.model,
    }
    return ["--speculative-config", json.dumps({key: value for key, value in config.items() if value is not None})]


def _yarn(asked: Yarn | None) -> list[str]:
    if asked is None:
        return []
    # The limit has to be overridden too: vLLM no longer derives it from the factor, and refuses a longer max_model_len.
    overrides = {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": asked.theta,
            "factor": asked.factor,
            "original_max_position_embeddings": asked.original_max_positions,
        },
        "max_position_embeddings": asked.max_positions,
    }
    return ["--hf-overrides", json.dumps(overrides)]
