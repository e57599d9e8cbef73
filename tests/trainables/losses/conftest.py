"""Fixtures of the loss tests: the reference values, and losses with a history behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_values import Goldens

from trainables.losses import Loss, build_loss


@pytest.fixture(scope="session")
def loss_goldens(shared: Path) -> Goldens:
    return Goldens(shared / "goldens", "losses.npz")


@pytest.fixture(scope="session")
def stateful_goldens(shared: Path) -> Goldens:
    return Goldens(shared / "goldens", "stateful.npz")


def seasoned(name: str, rows: int = 24, classes: int = 10, **parameters: Any) -> Loss:
    """Return a loss that has seen three epochs and no longer changes: a pure function."""
    loss = build_loss(name, **parameters)
    loss.prepare(rows, classes)
    generator = torch.Generator().manual_seed(7)
    for epoch in range(3):
        loss.start_epoch(epoch)
        logits = torch.randn(rows, classes, generator=generator)
        targets = torch.randint(classes, (rows,), generator=generator)
        # Half of the targets are the predictions, so that samples differ in their history.
        targets = torch.where(
            torch.rand(rows, generator=generator) < 0.5, logits.argmax(1), targets
        )
        with torch.no_grad():
            loss(logits, targets, torch.arange(rows))
    loss.start_epoch(3)
    return loss.eval()


@pytest.fixture(scope="session")
def make_seasoned() -> Callable[..., Loss]:
    return seasoned
