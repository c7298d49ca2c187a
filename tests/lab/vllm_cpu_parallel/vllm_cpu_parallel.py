"""vLLM plugin: lets a data-parallel, expert-parallel group run on vLLM's CPU build (0.32).

Two things are missing there. The CPU communicator has no gather and scatter for parts of different sizes, which the
default all-to-all needs; and the CPU expert kernels ignore the expert map, so they would index experts that live on
another rank. Both are added from outside through the entry point group `vllm.general_plugins`. Lab only: on GPUs
vLLM's own implementations are used.
"""

from __future__ import annotations

from typing import Any

_MARK = "_cpu_parallel_plugin"


def _all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Rows of all ranks, in rank order. Each rank sends its part to the others, so no padding is needed."""
    import torch
    import torch.distributed as dist

    if isinstance(input_, list | tuple):
        return [_all_gatherv(self, part, dim, sizes) for part in input_]
    if dim != 0:
        raise NotImplementedError(f"all_gatherv along dimension {dim}; this plugin gathers rows (dimension 0)")
    rows = sizes or [input_.shape[0]] * self.world_size
    gathered = torch.empty((sum(rows), *input_.shape[1:]), dtype=input_.dtype)
    for sender, part in enumerate(gathered.split(rows)):
        if sender == self.rank_in_group:
            part.copy_(input_)
        if rows[sender]:
            dist.broadcast(part, src=self.ranks[sender], group=self.device_group)
    return gathered


def _reduce_scatterv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """This rank's rows of the sum over all ranks. Each part is reduced straight to its owner."""
    import torch.distributed as dist

    if dim not in (0, -input_.dim()):
        raise NotImplementedError(f"reduce_scatterv along dimension {dim}; this plugin scatters rows (dimension 0)")
    rows = sizes or [input_.shape[0] // self.world_size] * self.world_size
    parts = [part.contiguous().clone() for part in input_.split(rows)]
    for owner, part in enumerate(parts):
        if rows[owner]:
            dist.reduce(part, dst=self.ranks[owner], group=self.device_group)
    return parts[self.rank_in_group]


def _keep_local_experts(apply: Any) -> Any:
    """Wrap an expert kernel: translate expert ids to this rank's own, and give other ranks' experts weight zero."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        import inspect

        call = inspect.signature(apply).bind(self, *args, **kwargs)
        expert_map = call.arguments.get("expert_map")
        if expert_map is not None:
            ids = call.arguments["topk_ids"]
            local = expert_map.to(ids.device)[ids.long()]
            elsewhere = local < 0
            call.arguments["topk_weights"] = call.arguments["topk_weights"].masked_fill(elsewhere, 0)
            call.arguments["topk_ids"] = local.masked_fill(elsewhere, 0).to(ids.dtype)
        return apply(*call.args, **call.kwargs)

    return wrapped


def register() -> None:
    """Entry point: called by vLLM in every one of its processes, possibly more than once."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    if hasattr(CpuCommunicator, _MARK):
        return
    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv
    CPUUnquantizedExperts.apply = _keep_local_experts(CPUUnquantizedExperts.apply)
    setattr(CpuCommunicator, _MARK, True)
