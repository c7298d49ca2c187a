"""The machine: kernel, driver module, GPUDirect, IOMMU, and NCCL's version.

Keys: `kernel`, `module.version`, `module.open`, `peermem`, `iommu.groups`, `iommu.translating`, `nccl.NAME`.
"""

from pathlib import Path

from coderack.health.probes import files
from coderack.health.processes import Step
from coderack.health.readings import Answer

# NVIDIA's for Mellanox cards, and Amazon's for EFA.
PEER_MEMORY = ("nvidia_peermem", "efa_nv_peermem")


def read(sysfs: Path, proc: Path, nccl_in: tuple[Path, ...], step: Step) -> dict[str, Answer]:
    step("kernel and modules")
    answers = {
        "kernel": files.text(proc / "sys/kernel/osrelease"),
        "peermem": _loaded(proc / "modules", PEER_MEMORY),
    }
    answers |= _driver(proc / "driver/nvidia/version")
    step("IOMMU")
    groups = files.names(sysfs / "kernel/iommu_groups")
    answers["iommu.groups"] = Answer(len(groups))
    kinds = {files.text(sysfs / "kernel/iommu_groups" / group / "type").value for group in groups}
    answers["iommu.translating"] = Answer(int(any(str(kind).startswith("DMA") for kind in kinds if kind)))
    step("NCCL")
    for directory in nccl_in:
        for found in sorted(directory.glob("nvidia_nccl_cu*-*.dist-info")):
            name, version = found.name.removesuffix(".dist-info").rsplit("-", 1)
            answers[f"nccl.{name.replace('.', '_')}"] = Answer(version)
    return answers


def _loaded(modules: Path, names: tuple[str, ...]) -> Answer:
    answer = files.text(modules)
    if answer.error is not None:
        return answer
    return Answer(int(any(line.split(" ", 1)[0] in names for line in str(answer.value).splitlines())))


def _driver(path: Path) -> dict[str, Answer]:
    """`NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...`"""
    answer = files.text(path)
    if answer.error is not None:
        return {"module.version": answer, "module.open": answer}
    line = str(answer.value).splitlines()[0]
    versions = [word for word in line.split() if word[0].isdigit() and word.count(".") >= 1]
    return {
        "module.version": Answer(versions[0]) if versions else Answer(error=f"NO_VERSION: {line[:60]}"),
        "module.open": Answer(int("Open Kernel Module" in line)),
    }
