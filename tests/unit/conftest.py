import copy
from pathlib import Path
from typing import Any

import pytest

from .cloud import _api_descriptions, aws, ec2, emulator, resetter
from .data import FLEET

__all__ = ["_api_descriptions", "aws", "ec2", "emulator", "resetter"]


@pytest.fixture
def fleet_data() -> dict[str, Any]:
    return copy.deepcopy(FLEET)


@pytest.fixture
def inventories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("aws", "lab", "profiles", ".cache"):
        (tmp_path / "inventories" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "inventories"
