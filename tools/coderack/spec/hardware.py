"""GPUs as the planner sees them: what their datasheets promise and what a process finds.

Not to be confused with `spec.gpu`, which says how a healthy GPU answers.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from coderack.spec.checked import Frozen

GiB = 2**30

Positive = Annotated[float, Field(gt=0)]


class GpuSpec(Frozen):
    """One GPU model. Rates are per GPU; FLOP/s are dense, for links bytes/s are of one direction.

    `memory_gib` is what CUDA reports as total, least and most that was seen: the label's number less what driver and
    ECC take. `nvlink_peers` is how many GPUs of a node reach each other by NVLink: 8 behind switches, 2 by a bridge,
    1 for none. `fp8_flops` is None where the tensor cores have no FP8.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
    product: str
    memory_gib: tuple[Positive, Positive]
    memory_bytes_per_second: Positive
    bf16_flops: Positive
    fp8_flops: Positive | None
    nvlink_bytes_per_second: Annotated[float, Field(ge=0)]
    nvlink_peers: Annotated[int, Field(ge=1, le=16)]
    pcie_bytes_per_second: Positive
    architecture: Literal["ampere", "ada", "hopper"]
    source: str

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if self.memory_gib[0] > self.memory_gib[1]:
            raise ValueError(f"{self.name}: memory_gib is {self.memory_gib}, wanted the lesser figure first")
        if (self.nvlink_bytes_per_second > 0) != (self.nvlink_peers > 1):
            raise ValueError(f"{self.name}: wanted both NVLink's rate and its peers, or neither")
        return self

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Total memory in bytes, least and most."""
        return int(self.memory_gib[0] * GiB), int(self.memory_gib[1] * GiB)


def _gpu(name: str, product: str, architecture: Literal["ampere", "ada", "hopper"], **figures: object) -> GpuSpec:
    return GpuSpec.model_validate({"name": name, "product": product, "architecture": architecture, **figures})


_PCIE_4, _PCIE_5 = 32e9, 64e9  # x16, before encoding losses
_NO_NVLINK = {"nvlink_bytes_per_second": 0.0, "nvlink_peers": 1}

GPUS: dict[str, GpuSpec] = {
    spec.name: spec
    for spec in (
        _gpu(
            "h100-sxm",
            "H100 SXM5 80 GB",
            "hopper",
            memory_gib=(79.10, 79.19),
            memory_bytes_per_second=3.35e12,
            bf16_flops=989.4e12,
            fp8_flops=1978.9e12,
            nvlink_bytes_per_second=450e9,
            nvlink_peers=8,
            pcie_bytes_per_second=_PCIE_5,
            source="NVIDIA H100 datasheet (NVLink: 900 GB/s both ways, sparse FLOP/s halved); memory: vLLM logs",
        ),
        _gpu(
            "h100-pcie",
            "H100 PCIe 80 GB",
            "hopper",
            memory_gib=(79.10, 79.65),
            memory_bytes_per_second=2.0e12,
            bf16_flops=756e12,
            fp8_flops=1513e12,
            nvlink_bytes_per_second=300e9,
            nvlink_peers=2,
            pcie_bytes_per_second=_PCIE_5,
            source="NVIDIA H100 PCIe product brief (600 GB/s over a bridge of two)",
        ),
        _gpu(
            "h100-nvl",
            "H100 NVL 94 GB",
            "hopper",
            memory_gib=(92.9, 93.6),
            memory_bytes_per_second=3.9e12,
            bf16_flops=835.5e12,
            fp8_flops=1670.5e12,
            nvlink_bytes_per_second=300e9,
            nvlink_peers=2,
            pcie_bytes_per_second=_PCIE_5,
            source="NVIDIA H100 datasheet, column NVL (600 GB/s over a bridge of two; sparse FLOP/s halved)",
        ),
        _gpu(
            "h200-sxm",
            "H200 SXM5 141 GB",
            "hopper",
            memory_gib=(139.7, 139.81),
            memory_bytes_per_second=4.8e12,
            bf16_flops=989.4e12,
            fp8_flops=1978.9e12,
            nvlink_bytes_per_second=450e9,
            nvlink_peers=8,
            pcie_bytes_per_second=_PCIE_5,
            source="NVIDIA H200 datasheet; memory: 139.8 GiB in vLLM's log on one H200",
        ),
        _gpu(
            "h200-nvl",
            "H200 NVL 141 GB",
            "hopper",
            memory_gib=(139.7, 139.81),
            memory_bytes_per_second=4.8e12,
            bf16_flops=835.5e12,
            fp8_flops=1670.5e12,
            nvlink_bytes_per_second=450e9,
            nvlink_peers=4,
            pcie_bytes_per_second=_PCIE_5,
            source="NVIDIA H200 datasheet, column NVL (900 GB/s over a bridge of up to four)",
        ),
        _gpu(
            "a100-80-sxm",
            "A100 SXM4 80 GB",
            "ampere",
            memory_gib=(79.15, 79.33),
            memory_bytes_per_second=2.039e12,
            bf16_flops=312e12,
            fp8_flops=None,
            nvlink_bytes_per_second=300e9,
            nvlink_peers=8,
            pcie_bytes_per_second=_PCIE_4,
            source="NVIDIA A100 datasheet (600 GB/s NVLink in both directions)",
        ),
        _gpu(
            "a100-40-sxm",
            "A100 SXM4 40 GB",
            "ampere",
            memory_gib=(39.39, 39.50),
            memory_bytes_per_second=1.555e12,
            bf16_flops=312e12,
            fp8_flops=None,
            nvlink_bytes_per_second=300e9,
            nvlink_peers=8,
            pcie_bytes_per_second=_PCIE_4,
            source="NVIDIA A100 datasheet (600 GB/s NVLink in both directions)",
        ),
        _gpu(
            "a100-80-pcie",
            "A100 PCIe 80 GB",
            "ampere",
            memory_gib=(79.15, 79.33),
            memory_bytes_per_second=1.935e12,
            bf16_flops=312e12,
            fp8_flops=None,
            nvlink_bytes_per_second=300e9,
            nvlink_peers=2,
            pcie_bytes_per_second=_PCIE_4,
            source="NVIDIA A100 datasheet, column PCIe (600 GB/s over a bridge of two)",
        ),
        _gpu(
            "l40s",
            "L40S 48 GB",
            "ada",
            memory_gib=(44.3, 44.53),
            memory_bytes_per_second=864e9,
            bf16_flops=362.05e12,
            fp8_flops=733e12,
            **_NO_NVLINK,
            pcie_bytes_per_second=_PCIE_4,
            source="NVIDIA L40S datasheet (dense figures)",
        ),
    )
}
