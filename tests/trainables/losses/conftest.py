"""Fixtures of the loss tests: the reference values, and losses with a history behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reference_values import Goldens

from trainables.contracts import seasoned
from trainables.losses import Loss


@pytest.fixture(scope="session")
def loss_goldens(shared: Path) -> Goldens:
    return Goldens(shared / "goldens", "losses.npz")


@pytest.fixture(scope="session")
def stateful_goldens(shared: Path) -> Goldens:
    return Goldens(shared / "goldens", "stateful.npz")


@pytest.fixture(scope="session")
def make_seasoned() -> Callable[..., Loss]:
    return seasoned
