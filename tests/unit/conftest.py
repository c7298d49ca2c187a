import copy
from typing import Any

import pytest

from .data import FLEET


@pytest.fixture
def fleet_data() -> dict[str, Any]:
    return copy.deepcopy(FLEET)
