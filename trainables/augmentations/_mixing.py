from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from trainables.augmentations._base import Augmentation
from trainables.common.fields import number
from trainables.losses import Loss, loss_aside
from trainables.models import Network


class Pairs(NamedTuple):
    """A batch and the same batch in another order; inputs are (N, ...), the rest (N,)."""

    inputs: Tensor
    other_inputs: Tensor
    targets: Tensor
    other_targets: Tensor
    indices: Tensor
    other_indices: Tensor

    def loss(
        self, loss: Loss, logits: Tensor, other_logits: Tensor, shares: Tensor | tuple[float, float]
    ) -> Tensor:
        """Return the weighted sum of the losses on the targets and on the other targets.

        Losses are mixed instead of targets, so that any loss can be used; for cross-entropy this
        makes no difference. A loss with a history adds the batch to it once, for the targets.
        """
        first = loss(logits, self.targets, self.indices)
        second = loss_aside(loss, other_logits, self.other_targets, self.other_indices)
        own, rest = shares
        return own * first + rest * second


class PairAugmentation(Augmentation):
    """Trains on pairs of samples, mixed in ratios from a beta distribution.

    For texts, the word embeddings are mixed.

    Args:
        alpha: Both parameters of the beta distribution, > 0.
    """

    alpha: float = number(default=1.0, low=0.0, open_low=True)

    def draw(self, network: Network, inputs: Tensor, generator: Generator) -> tuple[Tensor, ...]:
        order = torch.randperm(len(inputs), generator=generator)
        # Beta draws of torch do not take a generator.
        source = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        return order, *self.draw_mixture(network, inputs.shape, source)

    def training_loss(
        self,
        network: Network,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        indices: Tensor,
        *drawn: Tensor,
    ) -> tuple[Tensor, Tensor]:
        order, *mixture = drawn
        pairs = paired(network.embed(inputs), targets, indices, order)
        return self.loss_of_pairs(network, loss, pairs, *mixture)

    @abstractmethod
    def draw_mixture(
        self, network: Network, shape: torch.Size, source: np.random.Generator
    ) -> tuple[Tensor, ...]:
        """Draw the ``mixture`` of ``loss_of_pairs`` for inputs of a shape (N, ...), on the CPU."""

    @abstractmethod
    def loss_of_pairs(
        self, network: Network, loss: Loss, pairs: Pairs, *mixture: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch and the logits (N, K) for the first sample of each pair."""


def paired(inputs: Tensor, targets: Tensor, indices: Tensor, order: Tensor) -> Pairs:
    """Pair every sample of a batch with the sample at its position in ``order``, (N,)."""
    return Pairs(inputs, inputs[order], targets, targets[order], indices, indices[order])


def shares_of(own: float) -> Tensor:
    """Return the shares of both inputs of a pair in a mixture, (2,)."""
    return torch.tensor([own, 1 - own])
