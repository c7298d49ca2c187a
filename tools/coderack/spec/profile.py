"""The serving profile: one named way to serve one model, read by the planner, the vLLM role and the benchmark.

Checks here are those that need nothing but the profile itself. Whether the model fits the GPUs is the planner's.
Verdicts on flags are those of vLLM 0.32's own argument parser.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from coderack.spec.checked import Frozen

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]

# Flags that come from the profile's own fields or from the node's place in the group, with where they come from.
OWNED_FLAGS = {
    "--model": "model.path",
    "--served-model-name": "model.name",
    "--revision": "model.revision",
    "--tensor-parallel-size": "layout.tensor_parallel",
    "--data-parallel-size": "layout.data_parallel",
    "--enable-expert-parallel": "layout.expert_parallel",
    "--no-enable-expert-parallel": "layout.expert_parallel",
    "--all2all-backend": "layout.all2all_backend",
    "--max-model-len": "limits.max_model_len",
    "--max-num-seqs": "limits.max_num_seqs",
    "--max-num-batched-tokens": "limits.max_num_batched_tokens",
    "--gpu-memory-utilization": "limits.gpu_memory_utilization",
    "--device-memory-utilization": "limits.gpu_memory_utilization",
    "--kv-cache-dtype": "limits.kv_cache_dtype",
    "--speculative-config": "speculative",
    "--spec-method": "speculative.method",
    "--spec-model": "speculative.model",
    "--spec-tokens": "speculative.tokens",
    "--hf-overrides": "yarn",
    "--data-parallel-size-local": "the node's place in the group",
    "--data-parallel-start-rank": "the node's place in the group",
    "--data-parallel-rank": "the node's place in the group",
    "--data-parallel-address": "the head's address",
    "--data-parallel-rpc-port": "the role's RPC port",
    "--fail-on-environ-validation": "the role, always on",
    "--no-fail-on-environ-validation": "the role, always on",
    "--headless": "the node's place in the group",
    "--nnodes": "the node's place in the group",
    "--node-rank": "the node's place in the group",
    "--master-addr": "the node's place in the group",
    "--master-port": "the node's place in the group",
    "--host": "the node's address",
    "--port": "the role's port",
}

# Flags that vLLM 0.32 rejects, or accepts to the operator's harm, with what to do instead.
REFUSED_FLAGS = {
    "--disable-log-requests": "it is gone and request logging is off by default; remove it",
    "--disable-log-stats": "it removes every vllm:* metric, so that alerts see nothing; remove it",
    "--speculative-model": "it is gone; set speculative, which becomes --speculative-config",
    "--num-speculative-tokens": "it is gone; set speculative.tokens",
    "--ngram-prompt-lookup-max": "it is gone; set speculative.lookup_max",
    "--ngram-prompt-lookup-min": "it is gone; set speculative.lookup_min",
    "--rope-scaling": "it is gone; set yarn, which becomes --hf-overrides with rope_parameters",
    "--rope-theta": "it is gone; set yarn.theta, which goes into --hf-overrides with the rest",
    "--swap-space": "it is gone; remove it",
    "--use-v2-block-manager": "it is gone; remove it",
    "--num-scheduler-steps": "it is gone; remove it",
    "--cuda-graph-sizes": "use --cudagraph-capture-sizes",
    "--full-cuda-graph": "full CUDA graphs are the default; remove it",
    "--max-seq-len-to-capture": "use --max-cudagraph-capture-size",
    "--guided-decoding-backend": "use --structured-outputs-config",
    "--enable-reasoning": "it is gone; --reasoning-parser is enough",
    "--calculate-kv-scales": "it is gone; scales come from the checkpoint",
    "--num-redundant-experts": "use --eplb-config with num_redundant_experts",
    "--eplb-window-size": "use --eplb-config with window_size",
    "--data-parallel-hybrid-lb": "gateway and headless nodes expect one API server that balances; remove it",
    "--data-parallel-external-lb": "gateway and headless nodes expect one API server that balances; remove it",
    "--data-parallel-multi-port-external-lb": "gateway and probes expect one API server per group; remove it",
    "--api-key": "every user of the node sees it in the process list; the role passes keys by environment file",
    "--uds": "the API server listens on an address, where gateway and metrics look for it; remove it",
    "--config": "a second file could contradict this one; list the options in engine_args",
}

# llama.cpp's names for quantised caches, which vLLM does not know.
_KV_DTYPE_INSTEAD = {"q8": "fp8", "q8_0": "fp8", "q4_0": "int4_per_token_head", "q4_1": "int4_per_token_head"}
# Those of vLLM 0.32.
KvCacheDtype = Literal[
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "fp8_per_token_head",
    "int4_per_token_head",
    "int8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
    "nvfp4_ds_mla",
    "turboquant_3bit_nc",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_k8v4",
    "ultraquant_4bit",
]
_ALL2ALL_INSTEAD = {"pplx": "allgather_reducescatter", "naive": "allgather_reducescatter"}
_API_SERVER_COUNT = "--api-server-count"
_SHUTDOWN_TIMEOUT = "--shutdown-timeout"
# vLLM's parser takes an abbreviation for the option that it begins; these are looked for and must be written out.
_WRITTEN_OUT = (*OWNED_FLAGS, *REFUSED_FLAGS, _API_SERVER_COUNT, _SHUTDOWN_TIMEOUT)
# The options of vLLM 0.32 that take several words; after any other option comes one at most.
_SEVERAL_WORDS = (
    "--allowed-media-domains",
    "--collect-detailed-traces",
    "--cpu-offload-params",
    "--cudagraph-capture-sizes",
    "--ignore-patterns",
    "--kv-cache-dtype-skip-layers",
    "--logits-processors",
    "--lora-modules",
    "--lora-target-modules",
    "--numa-bind-cpus",
    "--numa-bind-nodes",
    "--offload-params",
    "--sleep-preserve-parameter-names",
)
_NEGATIVE_NUMBER = re.compile(r"-\d+(?:\.\d+)?", re.ASCII)
_SECONDS = re.compile(r"\d{1,5}", re.ASCII)

_MOST_GPUS_PER_NODE = 16
# No model and no GPU is near these; a slip of the keyboard is beyond.
Tokens = Annotated[StrictInt, Field(ge=1, le=16 * 1024 * 1024)]


_FOLDER = StringConstraints(max_length=1024, pattern=r"^(/[A-Za-z0-9._-]+)+$")


def _normalised(field: str, path: str) -> str:
    if {".", ".."} & set(path.split("/")):
        raise ValueError(f"{field} is {path!r}, wanted it without . and ..")
    return path


class Model(Frozen):
    """The model: the name clients ask for, the folder on the node, and the revision that must be in it."""

    name: Name
    path: Annotated[str, _FOLDER]
    revision: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]

    @field_validator("path")
    @classmethod
    def _path_is_normalised(cls, path: str) -> str:
        return _normalised("model.path", path)


class Layout(Frozen):
    """How the model lies over the GPUs.

    fused: one group over all nodes; `data_parallel` is the group's total.
    split: every node is a replica of its own; `data_parallel` is per node.
    Expert parallel size is no field: it is data_parallel x tensor_parallel once `expert_parallel` is on.
    """

    mode: Literal["fused", "split"]
    nodes: Annotated[StrictInt, Field(ge=1, le=64)]
    data_parallel: Annotated[StrictInt, Field(ge=1, le=64 * _MOST_GPUS_PER_NODE)]
    tensor_parallel: Annotated[StrictInt, Field(ge=1, le=_MOST_GPUS_PER_NODE)]
    expert_parallel: StrictBool
    all2all_backend: (
        Literal["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput", "deepep_v2", "nixl_ep"]
        | None
    ) = None

    @property
    def data_parallel_per_node(self) -> int:
        return self.data_parallel // self.nodes if self.mode == "fused" else self.data_parallel

    @property
    def gpus_per_node(self) -> int:
        return self.data_parallel_per_node * self.tensor_parallel

    @field_validator("all2all_backend", mode="before")
    @classmethod
    def _backend_exists(cls, value: object) -> object:
        if isinstance(value, str) and value in _ALL2ALL_INSTEAD:
            instead = _ALL2ALL_INSTEAD[value]
            raise ValueError(f"layout.all2all_backend is {value}, which vLLM has removed; use {instead}")
        return value

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.mode == "fused" and self.nodes < 2:
            raise ValueError(f"layout.mode is fused and layout.nodes is {self.nodes}, wanted 2 or more (or mode split)")
        if self.mode == "fused" and self.data_parallel % self.nodes:
            raise ValueError(
                f"layout.data_parallel is {self.data_parallel}, wanted a multiple of layout.nodes = {self.nodes}: "
                "a fused group has the same number of ranks on every node"
            )
        if self.gpus_per_node > _MOST_GPUS_PER_NODE:
            raise ValueError(
                f"layout takes {self.gpus_per_node} GPUs per node (data_parallel per node x tensor_parallel), "
                f"wanted {_MOST_GPUS_PER_NODE} or fewer"
            )
        if self.all2all_backend is not None and not self.expert_parallel:
            raise ValueError(
                f"layout.all2all_backend is {self.all2all_backend} and layout.expert_parallel is false, "
                "wanted true: without it there is no all-to-all exchange"
            )
        return self


class Limits(Frozen):
    """Upper bounds per data parallel rank: tokens, sequences, and the share (0..1] of GPU memory."""

    max_model_len: Tokens
    max_num_seqs: Annotated[StrictInt, Field(ge=1, le=65_536)]
    max_num_batched_tokens: Tokens
    gpu_memory_utilization: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    kv_cache_dtype: KvCacheDtype | None = None

    @field_validator("kv_cache_dtype", mode="before")
    @classmethod
    def _dtype_is_vllms(cls, value: object) -> object:
        if isinstance(value, str) and value in _KV_DTYPE_INSTEAD:
            instead = _KV_DTYPE_INSTEAD[value]
            raise ValueError(f"limits.kv_cache_dtype is {value}, a llama.cpp name; vLLM's is {instead}")
        return value

    @model_validator(mode="after")
    def _batch_holds_every_sequence(self) -> Self:
        # vLLM's scheduler refuses this too, but only after minutes of start.
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"limits.max_num_batched_tokens is {self.max_num_batched_tokens}, wanted at least "
                f"limits.max_num_seqs = {self.max_num_seqs}: every running sequence takes one token per step"
            )
        return self


_SPECULATION_INSTEAD = {
    "mtp": "the served model has no such head; ngram_gpu needs none",
    "suffix": "it needs a package that is not part of vLLM; ngram_gpu needs none",
    "medusa": "it turns async scheduling off; use eagle3",
}
_LOOKUP = ("ngram", "ngram_gpu")


class Speculative(Frozen):
    """Speculative decoding: `tokens` are proposed per step and checked by the model in one.

    ngram and ngram_gpu copy from the prompt and need no second model; ngram turns vLLM's async scheduling off.
    draft_model, eagle and eagle3 read a second model from the folder `model`, of `weights_gib` GiB: the planner counts
    them and cannot see that folder.
    """

    method: Literal["ngram", "ngram_gpu", "draft_model", "eagle", "eagle3"]
    tokens: Annotated[StrictInt, Field(ge=1, le=16)]
    lookup_max: Annotated[StrictInt, Field(ge=1, le=64)] | None = None
    lookup_min: Annotated[StrictInt, Field(ge=1, le=64)] | None = None
    model: Annotated[str, _FOLDER] | None = None
    weights_gib: Annotated[float, Field(gt=0, le=1000)] | None = None

    @field_validator("model")
    @classmethod
    def _model_is_normalised(cls, path: str | None) -> str | None:
        return path if path is None else _normalised("speculative.model", path)

    @field_validator("method", mode="before")
    @classmethod
    def _method_is_taken(cls, value: object) -> object:
        if isinstance(value, str) and value in _SPECULATION_INSTEAD:
            raise ValueError(f"speculative.method is {value}: {_SPECULATION_INSTEAD[value]}")
        return value

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.method in _LOOKUP and (self.model is not None or self.weights_gib is not None):
            raise ValueError(f"speculative.method is {self.method}, wanted neither model nor weights_gib: it has none")
        if self.method not in _LOOKUP and (self.model is None or self.weights_gib is None):
            raise ValueError(
                f"speculative.method is {self.method}, wanted model, the draft's folder on the node, and weights_gib"
            )
        if self.method not in _LOOKUP and (self.lookup_max is not None or self.lookup_min is not None):
            raise ValueError(
                f"speculative.method is {self.method}, wanted no lookup_max and lookup_min: those of ngram"
            )
        least, most = self.lookup_min or self.lookup_max or 1, self.lookup_max or self.lookup_min or 1
        if least > most:
            raise ValueError(f"speculative.lookup_min is {least}, wanted at most lookup_max = {most}")
        return self


class Yarn(Frozen):
    """Positions beyond those the model was trained for, scaled by `factor` at every length, short prompts included.

    `theta` and `original_max_positions` repeat the model's own values: the override replaces them all, and a missing
    theta would silently become another.
    """

    factor: Annotated[float, Field(gt=1, le=64)]
    original_max_positions: Tokens
    theta: Annotated[float, Field(gt=0)]

    @property
    def max_positions(self) -> int:
        return int(self.factor * self.original_max_positions)


class ServingProfile(Frozen):
    """One file of inventories/profiles."""

    name: Name
    description: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    model: Model
    layout: Layout
    limits: Limits
    speculative: Speculative | None = None
    yarn: Yarn | None = None
    engine_args: tuple[StrictStr, ...] = ()
    head_args: tuple[StrictStr, ...] = ()

    @property
    def shutdown_timeout(self) -> int:
        """Seconds in which running requests may end after SIGTERM; vLLM's default of 0 cuts them off."""
        given = values_of((*self.engine_args, *self.head_args), _SHUTDOWN_TIMEOUT)
        return int(given[-1]) if given else 0

    @field_validator("description")
    @classmethod
    def _description_is_one_line(cls, text: str) -> str:
        if not text.isprintable():
            raise ValueError(f"description is {text!r:.80}, wanted one line without control characters")
        return text

    @model_validator(mode="after")
    def _yarn_is_needed_and_enough(self) -> Self:
        if self.yarn is None:
            return self
        most, least = self.yarn.max_positions, self.yarn.original_max_positions
        if not least < self.limits.max_model_len <= most:
            raise ValueError(
                f"limits.max_model_len is {self.limits.max_model_len} and yarn takes {least} positions to {most}; "
                "wanted a length in between, or no yarn: it costs accuracy on short prompts too"
            )
        return self

    @model_validator(mode="after")
    def _arguments_are_free_ones(self) -> Self:
        problems = [
            *_argument_problems("engine_args", self.engine_args),
            *_argument_problems("head_args", self.head_args),
        ]
        if self.layout.mode == "fused" and any(flag_of(word) == _API_SERVER_COUNT for word in self.engine_args):
            problems.append("engine_args has --api-server-count, which headless nodes refuse; move it to head_args")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _argument_problems(field: str, words: tuple[str, ...]) -> list[str]:
    problems = []
    option = ""  # the one that the next word may be a value of
    for word in words:
        problem = _option_problem(word) if _is_option(word) else _value_problem(word, option)
        if problem:
            problems.append(f"{field} has {problem}")
        if _is_option(word):
            option = "" if "=" in word else flag_of(word)
        elif option not in _SEVERAL_WORDS:
            option = ""
    for seconds in values_of(words, _SHUTDOWN_TIMEOUT):
        if _SECONDS.fullmatch(seconds) is None:
            problems.append(f"{field} has {_SHUTDOWN_TIMEOUT} {seconds!r}, wanted whole seconds")
    return problems


def _option_problem(word: str) -> str | None:
    flag = flag_of(word)
    if not flag.startswith("--") or flag == "--":
        return f"{flag}, wanted the option's long name, such as --quantization"
    if " " in flag or not word.isprintable():
        return f"{word.partition('=')[0]!r}, wanted option and value as two list items, and no control characters"
    if flag in OWNED_FLAGS:
        return f"{flag}, which is set from {OWNED_FLAGS[flag]}; set it there"
    if flag in REFUSED_FLAGS:
        return f"{flag}: {REFUSED_FLAGS[flag]}"
    whole = [name for name in _WRITTEN_OUT if name.startswith(flag) and name != flag]
    if whole and flag not in _WRITTEN_OUT:
        return f"{flag}, which vLLM may read as {whole[0]}; write the option out"
    return None


def _value_problem(word: str, option: str) -> str | None:
    if not word or not word.isprintable():
        return f"{word!r}, wanted words without line breaks or other control characters"
    if not option:
        return f"{word!r}, wanted an option such as --enforce-eager in front of it"
    return None


def _is_option(word: str) -> bool:
    return word.startswith("-") and _NEGATIVE_NUMBER.fullmatch(word) is None


def values_of(words: tuple[str, ...], option: str) -> list[str]:
    """What `option` is set to in `words`, in both ways of writing it; an option without a value gives an empty one."""
    return [
        word.partition("=")[2] if "=" in word else "".join(words[place + 1 : place + 2])
        for place, word in enumerate(words)
        if flag_of(word) == option
    ]


def flag_of(word: str) -> str:
    """The option in `word` as vLLM's parser reads it: `--max_num_seqs=8` is --max-num-seqs, as is --max-num-seqs.x."""
    if not word.startswith("-"):
        return ""
    flag = re.split("[=.]", word, maxsplit=1)[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag
