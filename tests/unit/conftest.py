import copy
from pathlib import Path
from typing import Any

import pytest

from .cloud import aws, ec2, emulator
from .data import FLEET

__all__ = ["aws", "ec2", "emulator"]


@pytest.fixture
def fleet_data() -> dict[str, Any]:
    return copy.deepcopy(FLEET)


@pytest.fixture
def inventories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("aws", "lab", "profiles", ".cache"):
        (tmp_path / "inventories" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "inventories"
