"""A short training of any method on a small image problem."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from small_stages import Workshop
from torch import Tensor

from trainables.data import ImageShape
from trainables.methods import build_method
from trainables.models import Network, build_model

Parts = Mapping[str, Mapping[str, Any]]
TrainShortly = Callable[..., Network]
CLASSES, ROWS, SIDE, BATCH = 3, 96, 8, 24


def small_images() -> tuple[Tensor, Tensor]:
    """Return noisy images (96, 1, 8, 8) of three patterns, and their classes."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(ROWS) % CLASSES
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=generator)
    return patterns[labels] + torch.randn(ROWS, 1, SIDE, SIDE, generator=generator), labels


@pytest.fixture(scope="session")
def image_problem() -> tuple[Tensor, Tensor]:
    return small_images()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def train_shortly(image_problem: tuple[Tensor, Tensor]) -> TrainShortly:
    """Return a function that trains a network with the parts of a method and returns it."""
    images, labels = image_problem

    def train(
        parts: Parts, epochs: int = 4, model: str = "convnet", seed: int = 0, lr: float = 0.05
    ) -> Network:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        method = build_method(parts)
        network = method.attach(build_model(model, CLASSES, ImageShape(1, SIDE)), ROWS, CLASSES)
        optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        for epoch in range(epochs):
            network.train()
            method.start_epoch(network, epoch, epochs)
            for rows in torch.randperm(ROWS, generator=generator).split(BATCH):
                drawn = method.draw(network, images[rows], generator)
                loss, logits = method.training_loss(
                    network, images[rows], labels[rows], rows, *drawn
                )
                assert logits.shape == (BATCH, CLASSES)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            method.end_epoch(network, epoch)
        return network.eval()

    return train
