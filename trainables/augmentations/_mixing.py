from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from trainables.augmentations._base import Augmentation
from trainables.common.checks import check_number
from trainables.data import move
from trainables.losses import Loss, loss_aside
from trainables.models import Network


class Pairs(NamedTuple):
    """A batch, inputs (N, ...) and all else (N,), and the same in another order."""

    inputs: Tensor
    other_inputs: Tensor
    targets: Tensor
    other_targets: Tensor
    indices: Tensor
    other_indices: Tensor

    def loss(
        self, loss: Loss, logits: Tensor, other_logits: Tensor, weight: float | Tensor
    ) -> Tensor:
        """Return ``weight`` of the loss on the targets, the rest on the other targets.

        A loss is weighted rather than its targets mixed, so that every loss can be used; for
        cross-entropy the two are the same. A history counts the first of the two only.
        """
        first = loss(logits, self.targets, self.indices)
        second = loss_aside(loss, other_logits, self.other_targets, self.other_indices)
        return weight * first + (1 - weight) * second


class PairAugmentation(Augmentation):
    """Trains on pairs of samples, mixed in ratios from a beta distribution.

    Words are mixed as their embeddings.

    Args:
        alpha: Both parameters of the beta distribution, > 0.

    Raises:
        ValueError: If ``alpha`` is out of its range.
    """

    def __init__(self, *, alpha: float = 1.0) -> None:
        self.alpha = check_number("alpha", alpha, 0.0, open_low=True)

    def training_loss(
        self,
        network: Network,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        indices: Tensor,
        generator: Generator,
    ) -> tuple[Tensor, Tensor]:
        pairs = draw_pairs(network.embed(inputs), targets, indices, generator)
        return self.loss_of_pairs(network, loss, pairs, random_source(generator))

    @abstractmethod
    def loss_of_pairs(
        self, network: Network, loss: Loss, pairs: Pairs, source: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch and the logits (N, K) of the inputs' own side."""


def draw_pairs(inputs: Tensor, targets: Tensor, indices: Tensor, generator: Generator) -> Pairs:
    """Pair every sample of a batch with another one, or by chance with itself."""
    order = move(torch.randperm(len(inputs), generator=generator), inputs.device)
    return Pairs(inputs, inputs[order], targets, targets[order], indices, indices[order])


def random_source(generator: Generator) -> np.random.Generator:
    """Return a numpy source seeded from ``generator``; torch's beta draws take no generator."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
