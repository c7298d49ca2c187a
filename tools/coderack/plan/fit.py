"""The ladder that is climbed when a layout runs out of memory: what to give up first, and what that costs."""

from collections.abc import Iterator
from dataclasses import dataclass

from coderack.plan.check import Check, check, layout_problems, tensor_parallel_values
from coderack.spec.checked import SpecError
from coderack.spec.hardware import GpuSpec
from coderack.spec.model import ModelSpec
from coderack.spec.profile import Layout, Limits, ServingProfile

_FEWEST_BATCHED_TOKENS = 1024
_FEWEST_SEQUENCES = 16
_SHORTEST = 8192
_LENGTH_STEP = 4096
_WIDEST = 8
_EIGHT_BIT = "fp8"

PROMPT_ADVICE = (
    "shorten the prompts instead: send only the tables that a question can be about, leave sample rows out, keep the "
    "schema first and unchanged so that its cache is shared between questions, and cap max_tokens of the answer"
)


@dataclass(frozen=True)
class Rung:
    """One step: what is set, what it costs, and how the whole plan stands with it and all earlier steps.

    `settings` are profile keys with their new values, `changes` those of all steps so far, and `cost` is this step's. A
    step of tensor parallelism starts over from the profile's own cache type and length, which it is there to spare.
    """

    name: str
    settings: tuple[tuple[str, str], ...]
    cost: str
    profile: ServingProfile
    check: Check
    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Fit:
    """All rungs in order; `first` is the first that fits, None when none does and only `advice` is left."""

    rungs: tuple[Rung, ...]
    first: Rung | None
    advice: str | None

    def costs(self, rung: Rung) -> tuple[str, ...]:
        """What `rung` costs with the steps that it builds on."""
        return tuple(
            step.cost
            for step in self.rungs[: self.rungs.index(rung) + 1]
            if step.settings and set(step.settings) <= set(rung.changes)
        )


def fit(profile: ServingProfile, model: ModelSpec, gpu: GpuSpec, gpus_per_node: int = 8) -> Fit:
    """Climb the ladder from `profile` as it is. Raises SpecError where the planner cannot count."""
    rungs = tuple(
        Rung(name, settings, cost, changed, check(changed, model, gpu, gpus_per_node), _changes(profile, changed))
        for name, settings, cost, changed in _ladder(profile, model, gpu, gpus_per_node)
    )
    first = next((rung for rung in rungs if rung.check.fits), None)
    return Fit(rungs=rungs, first=first, advice=None if first else PROMPT_ADVICE)


_Step = tuple[str, tuple[tuple[str, str], ...], str, ServingProfile]


def _ladder(profile: ServingProfile, model: ModelSpec, gpu: GpuSpec, gpus_per_node: int) -> Iterator[_Step]:
    yield "as it is", (), "nothing", profile
    if layout_problems(profile.layout, model, gpus_per_node):
        yield from _other_layouts(profile, model, gpus_per_node)
        return
    current = profile
    for step in (*_fewer_tokens(profile), *_fewer_sequences(profile)):
        name, values, cost = step
        current = with_limits(current, **values)
        yield name, _settings(values), cost, current
    if (profile.limits.kv_cache_dtype or "auto") in ("auto", "bfloat16", "float16"):
        current = with_limits(current, kv_cache_dtype=_EIGHT_BIT)
        yield (
            "8-bit KV cache",
            _settings({"kv_cache_dtype": _EIGHT_BIT}),
            "keys and values lose precision, without scales in the checkpoint; measure the accuracy of the SQL first",
            current,
        )
    length = _longest(current, model, gpu, gpus_per_node)
    if length is not None:
        yield (
            "shorter requests",
            _settings({"max_model_len": length}),
            f"requests beyond {length:,} tokens are refused",
            with_limits(current, max_model_len=length),
        )
    yield from _wider(profile, model, gpu, gpus_per_node)


def _fewer_tokens(profile: ServingProfile) -> Iterator[tuple[str, dict[str, int], str]]:
    tokens = profile.limits.max_num_batched_tokens
    floor = max(_FEWEST_BATCHED_TOKENS, profile.limits.max_num_seqs)
    while tokens // 2 >= floor:
        tokens //= 2
        steps = -(-8192 // tokens)
        yield (
            "fewer tokens per step",
            {"max_num_batched_tokens": tokens},
            f"an 8k prompt takes {steps} steps, which lengthens its time to first token",
        )


def _fewer_sequences(profile: ServingProfile) -> Iterator[tuple[str, dict[str, int], str]]:
    sequences = profile.limits.max_num_seqs
    while sequences // 2 >= _FEWEST_SEQUENCES:
        sequences //= 2
        yield (
            "fewer sequences and graphs",
            {"max_num_seqs": sequences},
            f"at most {sequences} requests run at once per rank, others wait",
        )


def _longest(profile: ServingProfile, model: ModelSpec, gpu: GpuSpec, gpus_per_node: int) -> int | None:
    """The longest request that fits for sure, in steps that read well; None when the profile's own does or none."""
    found = check(profile, model, gpu, gpus_per_node)
    if found.memory is None or found.fits:
        return None
    length = int(found.memory.kv.tokens.low) // _LENGTH_STEP * _LENGTH_STEP
    return length if length >= _SHORTEST else None


def _wider(profile: ServingProfile, model: ModelSpec, gpu: GpuSpec, gpus_per_node: int) -> Iterator[_Step]:
    """The same GPUs in fewer, wider ranks, with the profile's own limits; fewer tokens per step only if those do it."""
    fewest = max(_FEWEST_BATCHED_TOKENS, profile.limits.max_num_seqs)
    layout = profile.layout
    while layout.data_parallel_per_node % 2 == 0 and layout.tensor_parallel * 2 <= _WIDEST:
        layout = _layout(layout, layout.tensor_parallel * 2, layout.data_parallel // 2)
        changed = profile.model_copy(update={"layout": layout})
        settings = _layout_settings(layout)
        small = with_limits(changed, max_num_batched_tokens=min(fewest, profile.limits.max_num_batched_tokens))
        if not check(changed, model, gpu, gpus_per_node).fits and check(small, model, gpu, gpus_per_node).fits:
            settings += _settings({"max_num_batched_tokens": small.limits.max_num_batched_tokens})
            changed = small
        width = layout.tensor_parallel
        yield (
            f"tensor_parallel {width // 2} to {width}",
            settings,
            "half the ranks run attention of many short requests less in parallel, and each layer's all-reduce joins "
            f"{width} GPUs; one long prompt starts sooner",
            changed,
        )


def _other_layouts(profile: ServingProfile, model: ModelSpec, gpus_per_node: int) -> Iterator[_Step]:
    """Layouts that divide the model, nearest first, for one that does not: all GPUs of the same nodes."""
    asked = profile.layout
    sizes = tensor_parallel_values(model, asked, gpus_per_node)
    for size in sorted(sizes, key=lambda size: (abs(size - asked.tensor_parallel), -size)):
        ranks = gpus_per_node // size * (asked.nodes if asked.mode == "fused" else 1)
        layout = _layout(asked, size, ranks)
        if layout_problems(layout, model, gpus_per_node):
            continue
        cost = "nothing that could have run is given up"
        yield f"tensor_parallel {size}", _layout_settings(layout), cost, profile.model_copy(update={"layout": layout})


def _layout(like: Layout, tensor_parallel: int, data_parallel: int) -> Layout:
    return like.model_copy(update={"tensor_parallel": tensor_parallel, "data_parallel": data_parallel})


def _layout_settings(layout: Layout) -> tuple[tuple[str, str], ...]:
    return (
        ("layout.tensor_parallel", str(layout.tensor_parallel)),
        ("layout.data_parallel", str(layout.data_parallel)),
    )


def with_limits(profile: ServingProfile, **values: object) -> ServingProfile:
    """`profile` with other limits. Raises SpecError when they do not hold together."""
    try:
        limits = Limits.model_validate(profile.limits.model_dump() | values)
    except ValueError as error:
        raise SpecError(f"profile {profile.name}", (f"limits cannot be {values}: {error}",)) from None
    # A length within the model's own positions needs no scaling.
    yarn = profile.yarn
    if yarn is not None and limits.max_model_len <= yarn.original_max_positions:
        yarn = None
    return profile.model_copy(update={"limits": limits, "yarn": yarn})


def _settings(values: dict[str, int] | dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((f"limits.{key}", str(value)) for key, value in values.items())


def _changes(before: ServingProfile, after: ServingProfile) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{part}.{key}", str(value))
        for part in ("layout", "limits")
        for key, value in getattr(after, part).model_dump().items()
        if value != getattr(before, part).model_dump()[key]
    )
