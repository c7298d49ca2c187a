import pytest

from coderack.spec.checked import SpecError, validate
from coderack.spec.hardware import GPUS, GpuSpec


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS.keys())
def test_a_gpu_shows_less_memory_than_its_label_and_names_its_source(gpu: GpuSpec) -> None:
    label = next(float(word) for word in gpu.product.split() if word.isdigit())  # GB in the product's name
    assert 0.9 * label * 1e9 < gpu.memory_bytes[0] <= gpu.memory_bytes[1]
    assert gpu.memory_gib[1] < label * 1.08
    assert "datasheet" in gpu.source or "product brief" in gpu.source


def test_nvlink_without_a_peer_is_refused() -> None:
    data = GPUS["h100-sxm"].model_dump() | {"nvlink_peers": 1}
    with pytest.raises(SpecError, match="wanted both NVLink's rate and its peers, or neither"):
        validate(GpuSpec, data, "gpu")
