"""Reference values of losses."""

from pathlib import Path

import pytest
from reference_values import Goldens


@pytest.fixture(scope="session")
def loss_goldens(shared: Path) -> Goldens:
    return Goldens(shared / "goldens", "losses.npz")


@pytest.fixture(scope="session")
def stateful_goldens(shared: Path) -> Goldens:
    return Goldens(shared / "goldens", "stateful.npz")
