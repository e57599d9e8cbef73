"""A small second stage: noisy features of four classes in two views."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.refinements import HeadTrainer, build_refinement

ROWS, FEATURES, CLASSES = 256, 12, 4

MakeTrainer = Callable[..., HeadTrainer]


@pytest.fixture(scope="session")
def problem() -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(CLASSES, (ROWS,), generator=generator)
    centres = 1.5 * torch.randn(CLASSES, FEATURES, generator=generator)
    views = [
        (centres[labels] + torch.randn(ROWS, FEATURES, generator=generator)).relu()
        for _ in range(2)
    ]
    return views, labels


@pytest.fixture
def make_trainer(problem: tuple[list[Tensor], Tensor]) -> MakeTrainer:
    """Return a function that makes the trainer of a refinement, for four epochs unless told."""
    views, labels = problem

    def make(name: str, seed: int = 0, **parameters: Any) -> HeadTrainer:
        refinement = build_refinement(name, **({"epochs": 4} | parameters))
        return HeadTrainer(
            refinement,
            views,
            labels,
            num_classes=CLASSES,
            batch_size=16,
            momentum=0.9,
            weight_decay=5e-4,
            seed=seed,
            held_out=(views[1][:50], labels[:50]),
        )

    return make
