"""Every way to lay a model over a number of GPUs, and why some ways are none."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupLayout:
    """`replicas` engine groups, each of `data_parallel` ranks of `tensor_parallel` GPUs over `nodes` nodes.

    With `expert_parallel` each GPU of a group holds whole experts; without it, a slice of every expert.
    """

    tensor_parallel: int
    data_parallel: int
    expert_parallel: bool
    nodes: int
    replicas: int

    @property
    def gpus(self) -> int:
        """GPUs of one group; also the expert parallel size, if experts are spread."""
        return self.tensor_parallel * self.data_parallel

    @property
    def all_gpus(self) -> int:
        return self.gpus * self.replicas

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes

    @property
    def mode(self) -> str:
        """As in a serving profile: fused groups span nodes, split ones do not."""
        return "fused" if self.nodes > 1 else "split"

    @property
    def name(self) -> str:
        words = [f"DP{self.data_parallel}"] if self.data_parallel > 1 else []
        words.append(f"TP{self.tensor_parallel}")
        if self.expert_parallel:
            words.append(f"EP{self.gpus}")
        one = " ".join(words)
        return one if self.replicas == 1 else f"{self.replicas} x {one}"


def group_layouts(gpus: int, gpus_per_node: int, *, experts: bool) -> Iterator[GroupLayout]:
    """All layouts that use `gpus` GPUs, tensor parallel groups staying inside a node. Legal for some model or other.

    A node runs one engine, so a group has whole nodes. `experts` says whether the model has any to spread.
    Raises ValueError when the GPUs do not fill whole nodes.
    """
    per_node = min(gpus, gpus_per_node)
    if gpus < 1 or gpus_per_node < 1 or gpus % per_node:
        raise ValueError(f"{gpus} GPUs do not fill nodes of {gpus_per_node}; wanted a multiple of it, or less than it")
    all_nodes = gpus // per_node
    for nodes in _divisors(all_nodes):
        for tensor in _divisors(per_node):
            # On a single GPU there is nothing to spread them over.
            for spread in (True, False) if experts and nodes * per_node > 1 else (False,):
                yield GroupLayout(tensor, nodes * per_node // tensor, spread, nodes, all_nodes // nodes)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]
