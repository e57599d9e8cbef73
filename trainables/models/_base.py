"""The form that every network takes: a feature extractor and a linear classifier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from trainables.models._parts import blocks


class Network(nn.Module):
    """An image classifier split where the refinements need it.

    Args:
        extractor: Maps images (N, C, H, W) to features (N, D).
        classifier: Maps features (N, D) to logits (N, K).

    Attributes:
        feature_dim: D.
        num_classes: K.
        precision: What the extractor computes in, see ``trainables.engine.place``.
    """

    precision: str = "float32"

    def __init__(self, extractor: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier
        self.feature_dim = classifier.in_features
        self.num_classes = classifier.out_features

    def features(self, images: Tensor) -> Tensor:
        """Return the features (N, D) that the classifier sees."""
        return self.extractor(images)

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits (N, K) of features (N, D); what a training scheme may replace."""
        with self.in_float32(features) as exact:
            return self.classifier(exact)

    @contextmanager
    def in_float32(self, features: Tensor) -> Iterator[Tensor]:
        """Give features (N, D) in the precision of the classifier's weights, autocast switched off.

        Whatever gives logits computes in this context: in bfloat16 they would have hardly three
        digits, too few for confidences, and cost as much.
        """
        device = features.device.type
        known = torch.amp.is_autocast_available(device)
        with torch.autocast(device, enabled=False) if known else nullcontext():
            yield features.to(self.classifier.weight.dtype)

    def blocks(self) -> list[nn.Module]:
        """Return modules that, applied one after the other, give the features of images.

        The last one is the pooling, without parameters. A network that is no plain sequence is one
        block.
        """
        return blocks(self.extractor)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        return self.classify(self.features(images))
