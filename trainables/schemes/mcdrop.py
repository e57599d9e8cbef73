from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.common.fields import count, number
from trainables.common.logit_rows import log_mean_probabilities
from trainables.models import Network
from trainables.schemes._base import SCHEMES, Scheme

MASK_SEED = 0


class DropoutNetwork(Network):
    """A network whose features are dropped before the classifier, with a probability, the rate.

    In eval mode the class probabilities are averaged over so many fixed dropout masks, the same for
    every input, so that an output depends on neither its batch nor a generator.
    """

    masks: Tensor

    def __init__(
        self, extractor: nn.Module, classifier: nn.Linear, rate: float, samples: int
    ) -> None:
        super().__init__(extractor, classifier)
        self.rate = rate
        generator = torch.Generator().manual_seed(MASK_SEED)
        kept = torch.rand(samples, self.feature_dim, generator=generator) >= rate
        self.register_buffer("masks", kept / (1 - rate))

    def classify(self, features: Tensor) -> Tensor:
        """Return logits under one random mask, or the log of the probabilities' average."""
        with self.in_float32(features) as exact:
            if self.training:
                return self.classifier(F.dropout(exact, self.rate))
            masks = self.masks.to(exact.dtype)
            return log_mean_probabilities(self.classifier(exact * mask) for mask in masks)


@SCHEMES.register("mcdrop")
class MonteCarloDropout(Scheme):
    """Dropout in training and at inference, whose outputs are averaged (Gal & Ghahramani, 2016).

    Dropout is before the classifier only, where every network has a place for it and where the
    draws cost no more than the classifier. None of the five papers states a rate or a number of
    draws; the defaults are ours: the usual rate before a classifier, and draws that cost little.

    Not a full Bayesian approximation: the extractor is not dropped.

    Args:
        rate: Probability that a feature is dropped, in (0, 1).
        samples: Draws that inference averages over.
    """

    not_for: ClassVar = {"images-with-masks": "it drops entries of one feature vector an image"}

    rate: float = number(default=0.5, low=0.0, high=1.0, open_low=True, open_high=True)
    samples: int = count(default=50)

    def attach(self, network: Network, num_classes: int) -> Network:
        """Return the network with dropout before its classifier."""
        return DropoutNetwork(network.extractor, network.classifier, self.rate, self.samples)
