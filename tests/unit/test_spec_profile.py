from typing import Any

import pytest

from coderack.spec.checked import SpecError, validate
from coderack.spec.profile import ServingProfile

from .data import PROFILES, Edit, profile_data


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yml")), ids=lambda path: path.stem)
def test_every_profile_of_the_repository_loads_under_its_own_name(path: Any) -> None:
    profile = validate(ServingProfile, profile_data(path.stem), path.name)
    assert profile.name == path.stem


def test_the_repository_has_the_profiles_that_roles_and_readme_name() -> None:
    names = {path.stem for path in PROFILES.glob("*.yml")}
    production = {"fused-16", "fused-16-tp4", "split-8", "seed-8", "solo-8", "yarn-1m"}
    assert names >= production | {"lab-smollm2", "lab-moe-fused", "lab-moe-split"}


@pytest.mark.parametrize("name", ["fused-16", "fused-16-tp4", "split-8", "seed-8", "solo-8", "yarn-1m"])
def test_production_profiles_use_all_gpus_of_a_node(name: str) -> None:
    assert validate(ServingProfile, profile_data(name), name).layout.gpus_per_node == 8


REFUSALS: dict[str, tuple[Edit, str]] = {
    "fused over one node": (
        lambda profile: profile["layout"].update(nodes=1),
        "layout.mode is fused and layout.nodes is 1, wanted 2 or more",
    ),
    "ranks that do not spread evenly": (
        lambda profile: profile["layout"].update(data_parallel=7),
        "layout.data_parallel is 7, wanted a multiple of layout.nodes = 2",
    ),
    "all-to-all without experts": (
        lambda profile: profile["layout"].update(expert_parallel=False),
        "layout.all2all_backend is allgather_reducescatter and layout.expert_parallel is false",
    ),
    "removed all-to-all backend": (
        lambda profile: profile["layout"].update(all2all_backend="pplx"),
        "layout.all2all_backend is pplx, which vLLM has removed; use allgather_reducescatter",
    ),
    "zero nodes": (lambda profile: profile["layout"].update(nodes=0), "layout.nodes is 0"),
    "cache type q8": (
        lambda profile: profile["limits"].update(kv_cache_dtype="q8"),
        "limits.kv_cache_dtype is q8, a llama.cpp name; vLLM's is fp8",
    ),
    "cache type q4_1": (
        lambda profile: profile["limits"].update(kv_cache_dtype="q4_1"),
        "limits.kv_cache_dtype is q4_1, a llama.cpp name; vLLM's is int4_per_token_head",
    ),
    "batch smaller than its sequences": (
        lambda profile: profile["limits"].update(max_num_batched_tokens=32),
        "limits.max_num_batched_tokens is 32, wanted at least limits.max_num_seqs = 64",
    ),
    "more than all memory": (
        lambda profile: profile["limits"].update(gpu_memory_utilization=90),
        "limits.gpu_memory_utilization is 90: input should be less than or equal to 1",
    ),
    "relative model path": (lambda profile: profile["model"].update(path="models/x"), "model.path is 'models/x'"),
    "model path with ..": (
        lambda profile: profile["model"].update(path="/srv/models/../../etc"),
        "model.path is '/srv/models/../../etc', wanted it without . and ..",
    ),
    "model path with empty parts": (lambda profile: profile["model"].update(path="/srv//x"), "model.path is '/srv//x'"),
    "model path with an end of line": (lambda profile: profile["model"].update(path="/x\n"), "model.path is '/x\\n'"),
    "control character in the description": (
        lambda profile: profile.update(description="a\x1b[2J"),
        "description is 'a\\x1b[2J', wanted one line without control characters",
    ),
    "control character in an argument": (
        lambda profile: profile.update(engine_args=["--compilation-config", "a\x07"]),
        "engine_args has 'a\\x07', wanted words without line breaks or other control characters",
    ),
    "control character behind =": (
        lambda profile: profile.update(engine_args=["--compilation-config=a\n"]),
        "engine_args has '--compilation-config', wanted option and value as two list items, and no control characters",
    ),
    "unknown cache type": (
        lambda profile: profile["limits"].update(kv_cache_dtype="fp9"),
        "limits.kv_cache_dtype is 'fp9': input should be 'auto', ",
    ),
    "more GPUs than a node holds": (
        lambda profile: profile["layout"].update(data_parallel=32),
        "layout takes 32 GPUs per node (data_parallel per node x tensor_parallel), wanted 16 or fewer",
    ),
    "more tokens than any model knows": (
        lambda profile: profile["limits"].update(max_model_len=10**9),
        "limits.max_model_len is 1000000000: input should be less than or equal to 16777216",
    ),
    "no memory at all": (
        lambda profile: profile["limits"].update(gpu_memory_utilization=float("nan")),
        "limits.gpu_memory_utilization is nan",
    ),
    "value after an option that has one": (
        lambda profile: profile.update(engine_args=["--performance-mode", "interactivity", "/etc"]),
        "engine_args has '/etc', wanted an option such as --enforce-eager in front of it",
    ),
    "value after =": (
        lambda profile: profile.update(engine_args=["--performance-mode=interactivity", "/etc"]),
        "engine_args has '/etc', wanted an option",
    ),
    "drain time that is no number": (
        lambda profile: profile.update(engine_args=["--shutdown-timeout", "1m"]),
        "engine_args has --shutdown-timeout '1m', wanted whole seconds",
    ),
    "drain time without a value": (
        lambda profile: profile.update(head_args=["--shutdown-timeout"]),
        "head_args has --shutdown-timeout '', wanted whole seconds",
    ),
    "misspelt key": (lambda profile: profile.update(engine_arg=[]), "engine_arg is not a known key"),
    "number among the arguments": (
        lambda profile: profile.update(engine_args=["--shutdown-timeout", 60]),
        "engine_args[1] is 60: input should be a valid string",
    ),
    "value without an option": (
        lambda profile: profile.update(engine_args=["interactivity"]),
        "engine_args has 'interactivity', wanted an option such as --enforce-eager in front of it",
    ),
    "option and value in one word": (
        lambda profile: profile.update(head_args=["--tool-call-parser qwen3_coder"]),
        "head_args has '--tool-call-parser qwen3_coder', wanted option and value as two list items",
    ),
    "speculative method that the model has no head for": (
        lambda profile: profile.update(speculative={"method": "mtp", "tokens": 1}),
        "speculative.method is mtp: the served model has no such head; ngram_gpu needs none",
    ),
    "speculative method that vLLM lacks": (
        lambda profile: profile.update(speculative={"method": "guess", "tokens": 1}),
        "speculative.method is 'guess': input should be 'ngram'",
    ),
    "speculative method of another package": (
        lambda profile: profile.update(speculative={"method": "suffix", "tokens": 1}),
        "speculative.method is suffix: it needs a package that is not part of vLLM",
    ),
    "draft for a method without one": (
        lambda profile: profile.update(speculative={"method": "ngram", "tokens": 1, "model": "/x"}),
        "speculative.method is ngram, wanted neither model nor weights_gib",
    ),
    "draft without a folder": (
        lambda profile: profile.update(speculative={"method": "eagle3", "tokens": 1, "weights_gib": 1.6}),
        "speculative.method is eagle3, wanted model, the draft's folder on the node, and weights_gib",
    ),
    "draft in a folder with ..": (
        lambda profile: profile.update(
            speculative={"method": "eagle3", "tokens": 1, "weights_gib": 1.6, "model": "/x/../y"}
        ),
        "speculative.model is '/x/../y', wanted it without . and ..",
    ),
    "lookup for a draft": (
        lambda profile: profile.update(
            speculative={"method": "eagle", "tokens": 1, "weights_gib": 1.6, "model": "/x", "lookup_max": 3}
        ),
        "speculative.method is eagle, wanted no lookup_max and lookup_min: those of ngram",
    ),
    "lookup bounds that cross": (
        lambda profile: profile.update(speculative={"method": "ngram", "tokens": 1, "lookup_min": 6, "lookup_max": 3}),
        "speculative.lookup_min is 6, wanted at most lookup_max = 3",
    ),
    "too many speculative tokens": (
        lambda profile: profile.update(speculative={"method": "ngram", "tokens": 100}),
        "speculative.tokens is 100",
    ),
    "yarn that is not needed": (
        lambda profile: profile.update(yarn={"factor": 4.0, "original_max_positions": 262144, "theta": 1e7}),
        "limits.max_model_len is 65536 and yarn takes 262144 positions to 1048576",
    ),
    "yarn that does not reach": (
        lambda profile: (
            profile.update(yarn={"factor": 2.0, "original_max_positions": 262144, "theta": 1e7}),
            profile["limits"].update(max_model_len=1048576),
        ),
        "limits.max_model_len is 1048576 and yarn takes 262144 positions to 524288",
    ),
    "yarn without theta": (
        lambda profile: profile.update(yarn={"factor": 4.0, "original_max_positions": 262144}),
        "yarn.theta is missing",
    ),
    "API server count on headless nodes": (
        lambda profile: profile.update(engine_args=["--api-server-count", "2"]),
        "engine_args has --api-server-count, which headless nodes refuse; move it to head_args",
    ),
}


@pytest.mark.parametrize(("edit", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refuses(edit: Edit, message: str) -> None:
    profile = profile_data("fused-16")
    edit(profile)
    with pytest.raises(SpecError) as caught:
        validate(ServingProfile, profile, "profile")
    assert message in str(caught.value)


@pytest.mark.parametrize("field", ["engine_args", "head_args"])
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--tensor-parallel-size", "has --tensor-parallel-size, which is set from layout.tensor_parallel"),
        ("--tensor_parallel_size=4", "has --tensor-parallel-size, which is set from layout.tensor_parallel"),
        ("-tp", "has -tp, wanted the option's long name"),
        ("-tp=4", "has -tp, wanted the option's long name"),
        ("-O3", "has -O3, wanted the option's long name"),
        ("--", "has --, wanted the option's long name"),
        ("--uds=/run/x", "has --uds: the API server listens on an address"),
        ("--data_parallel_hybrid_lb", "has --data-parallel-hybrid-lb: gateway and headless nodes expect one"),
        ("--device-memory-utilization=1", "which is set from limits.gpu_memory_utilization"),
        ("--tensor-parallel", "has --tensor-parallel, which vLLM may read as --tensor-parallel-size; write"),
        ("--max_num_s=4", "has --max-num-s, which vLLM may read as --max-num-seqs; write"),
        ("--api-k=secret", "has --api-k, which vLLM may read as --api-key; write"),
        ("--shutdown-time=5", "has --shutdown-time, which vLLM may read as --shutdown-timeout; write"),
        ("--kv-cache-dtype.x=1", "has --kv-cache-dtype, which is set from limits.kv_cache_dtype"),
        ("--no-enable-expert-parallel", "which is set from layout.expert_parallel"),
        ("--max-model-len=8192", "has --max-model-len, which is set from limits.max_model_len"),
        ("--headless", "which is set from the node's place in the group"),
        ("--disable-log-requests", "has --disable-log-requests: it is gone"),
        ("--disable-log-stats", "has --disable-log-stats: it removes every vllm:* metric"),
        ("--speculative-model", "set speculative, which becomes --speculative-config"),
        ("--num-speculative-tokens=4", "set speculative.tokens"),
        ("--speculative-config", "which is set from speculative; set it there"),
        ("--spec-model=x", "which is set from speculative.model; set it there"),
        ("--hf-overrides", "which is set from yarn; set it there"),
        ("--rope-scaling", "set yarn, which becomes --hf-overrides with rope_parameters"),
        ("--rope-theta", "set yarn.theta, which goes into --hf-overrides"),
        ("--api-key=secret", "has --api-key: every user of the node sees it"),
    ],
)
def test_refuses_arguments_that_are_not_free(field: str, word: str, message: str) -> None:
    profile = profile_data("fused-16") | {field: [word]}
    with pytest.raises(SpecError) as caught:
        validate(ServingProfile, profile, "profile fused-16")
    assert str(caught.value).startswith(f"profile fused-16: {field} has -")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_accepts_an_argument_whose_value_has_blanks() -> None:
    words = ["--compilation-config", '{"mode": 3, "cudagraph_mode": "FULL"}', "--eplb-config={ }"]
    profile = validate(ServingProfile, profile_data("fused-16") | {"engine_args": words}, "profile")
    assert list(profile.engine_args) == words


def test_accepts_options_that_take_several_words_and_negative_numbers() -> None:
    words = ["--cudagraph-capture-sizes", "1", "2", "4", "--seed", "-1", "--compilation-config.level", "3"]
    profile = validate(ServingProfile, profile_data("fused-16") | {"engine_args": words}, "profile")
    assert list(profile.engine_args) == words


NUMBERS = [
    *(("layout", key) for key in ("nodes", "data_parallel", "tensor_parallel", "expert_parallel")),
    *(("limits", key) for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")),
]


@pytest.mark.parametrize(("part", "key"), NUMBERS, ids=[key for _, key in NUMBERS])
def test_refuses_values_of_another_type(part: str, key: str) -> None:
    good = profile_data("fused-16")[part][key]
    others: list[Any] = [
        "2",
        None if key == "expert_parallel" else True,
        [good],
        1 if key == "expert_parallel" else "0.9",
    ]
    others += [float(good)] if key not in ("gpu_memory_utilization", "expert_parallel") else []
    for value in others:
        profile = profile_data("fused-16")
        profile[part][key] = value
        with pytest.raises(SpecError, match=f"{part}.{key} is "):
            validate(ServingProfile, profile, "profile")


@pytest.mark.parametrize(
    ("engine_args", "head_args", "seconds"),
    [
        (["--shutdown-timeout", "60"], [], 60),
        (["--shutdown-timeout=90"], [], 90),
        (["--shutdown_timeout", "5"], [], 5),
        (["--shutdown-timeout", "60"], ["--shutdown-timeout=30"], 30),
        ([], ["--enable-log-requests"], 0),
    ],
)
def test_tells_how_long_running_requests_may_take_to_end(
    engine_args: list[str], head_args: list[str], seconds: int
) -> None:
    data = profile_data("fused-16") | {"engine_args": engine_args, "head_args": head_args}
    assert validate(ServingProfile, data, "profile").shutdown_timeout == seconds
