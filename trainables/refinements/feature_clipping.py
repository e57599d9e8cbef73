import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.refinements._base import REFINEMENTS, FittedRefinement

THRESHOLDS, SMALLEST = 64, 0.01


class ClippedHead(nn.Module):
    """A linear layer on features (N, D) clipped to [-threshold, threshold]."""

    threshold: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(feature_dim, num_classes)
        self.register_buffer("threshold", torch.tensor(math.inf))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (N, K)."""
        return self.classifier(features.clamp(-self.threshold, self.threshold))


@REFINEMENTS.register("feature-clipping")
class FeatureClipping(FittedRefinement):
    """Clips the features before the network's own classifier (Tao et al., AAAI 2025).

    Feature Clipping for Uncertainty Calibration, arXiv 2410.19796. The threshold minimises the NLL
    of validation rows, as in the authors' scripts. They search 0 to 19.99 in steps of 0.01; here
    there are 63 thresholds from 1 % to 93 % of the largest feature, each 8 % above the last, and
    infinity, so that features may have any scale. Features are clipped on both sides. (The authors'
    code has a class that does so and one that clips only from above; after a ReLU both give the
    same result.) Predicted classes may change.
    """

    excludes = dict.fromkeys(
        ("balcal", "mcdrop"), "feature-clipping needs a network with one linear classifier"
    )

    def build_head(self, feature_dim: int, num_classes: int) -> ClippedHead:
        """Return a head that clips nothing."""
        return ClippedHead(feature_dim, num_classes)

    def fit_head(
        self, head: nn.Module, classifier: nn.Linear, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """Set the classifier and the best threshold; return the share of clipped features."""
        assert isinstance(head, ClippedHead)
        head.classifier.load_state_dict(classifier.state_dict())
        sizes = features.abs()
        grid = sizes.max() * torch.logspace(math.log10(SMALLEST), 0, THRESHOLDS).to(sizes)
        grid[-1] = math.inf
        losses = [self._loss(head, threshold, features, labels) for threshold in grid]
        best = min(range(THRESHOLDS), key=lambda k: (losses[k], -k))
        head.threshold.copy_(grid[best])
        return {"clipped_share": float((sizes > grid[best]).double().mean())}

    @staticmethod
    def _loss(head: ClippedHead, threshold: Tensor, features: Tensor, labels: Tensor) -> float:
        head.threshold.copy_(threshold)
        return float(F.cross_entropy(head(features).double(), labels))

    def remarks(self, head: nn.Module) -> list[str]:
        """Return a message if nothing is clipped."""
        if not isinstance(head, ClippedHead) or head.threshold.isfinite():
            return []
        return [
            "feature-clipping: no threshold lowers the NLL of validation rows, so it clips nothing"
        ]
