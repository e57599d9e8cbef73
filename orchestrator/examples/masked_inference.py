"""MaC-Cal's Fig. 1, the curve without retraining: a classifier that is masked at inference."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from calsweep.plugins import METRICS, REFINEMENTS, Refinement, number


class MaskedAtInference(nn.Linear):
    """A linear classifier: all weights in training mode, those of the mask in eval mode."""

    mask: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.register_buffer("mask", torch.ones_like(self.weight, dtype=torch.bool))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (N, K) of features (N, D)."""
        weight = self.weight if self.training else self.weight * self.mask
        return F.linear(features, weight, self.bias)


@REFINEMENTS.register("masked-inference")
class MaskedInference(Refinement):
    """Masks a classifier that was trained without masks, unscaled, and does not retrain it.

    A refinement is given features, not the network's own classifier: one like it is fitted to
    them first, by cross-entropy and without masks.

    Source: MaC-Cal (Ni et al., 2025), sec. 4.1. Not for networks that are to be used.

    Args:
        dropped: Share of the weights that the mask leaves out, in [0, 1).
    """

    dropped: float = number(default=0.5, low=0.0, high=1.0, open_high=True)

    def build_head(self, feature_dim: int, num_classes: int) -> nn.Module:
        """Return a linear layer with fresh weights."""
        return MaskedAtInference(feature_dim, num_classes)

    def start_epoch(self, head: nn.Module, epoch: int, generator: Generator) -> None:
        """Draw the mask with which the epoch is judged; the last one stays."""
        mask = head.get_buffer("mask")
        noise = torch.rand(mask.shape, generator=generator, device=mask.device)
        mask.copy_(noise >= self.dropped)


@METRICS.register("conf", better="neither", label="Conf")
def confidence(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the largest probability of each row, in [1/K, 1]."""
    return probs.amax(dim=1)
