"""What the methods that mix pairs of samples share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from trainables.losses import Loss
from trainables.losses._aside import loss_aside


class Pairs(NamedTuple):
    """A batch and the same batch in another order, sample by sample.

    Attributes:
        images: (N, C, H, W).
        other_images: (N, C, H, W).
        targets: (N,).
        other_targets: (N,).
        indices: (N,).
        other_indices: (N,).
    """

    images: Tensor
    other_images: Tensor
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


def draw_pairs(images: Tensor, targets: Tensor, indices: Tensor, generator: Generator) -> Pairs:
    """Pair every sample of a batch with another one, or by chance with itself."""
    order = torch.randperm(len(images), generator=generator).to(images.device, non_blocking=True)
    return Pairs(images, images[order], targets, targets[order], indices, indices[order])


def random_source(generator: Generator) -> np.random.Generator:
    """Return a numpy source seeded from ``generator``; torch's beta draws take no generator."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
