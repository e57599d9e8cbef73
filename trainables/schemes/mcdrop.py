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
    """A network with dropout of features, with probability ``rate``, before the classifier.

    In eval mode the class probabilities are averaged over ``samples`` fixed dropout masks, the same
    for every input, so that an output depends on neither its batch nor a generator.
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
        """Return logits with a random mask (in training) or the log of averaged probabilities."""
        with self.in_float32(features) as exact:
            if self.training:
                return self.classifier(F.dropout(exact, self.rate))
            masks = self.masks.to(exact.dtype)
            return log_mean_probabilities(self.classifier(exact * mask) for mask in masks)


@SCHEMES.register("mcdrop")
class MonteCarloDropout(Scheme):
    """Dropout in training and at inference, whose outputs are averaged (Gal & Ghahramani, 2016).

    Dropout is only before the classifier, where it works with every network and each draw costs no
    more than the classifier. None of the papers that compare with it states a rate or a number of
    draws. The defaults are ours: the usual rate before a classifier, and few enough draws to be
    fast.

    Without dropout in the extractor, this is not a full Bayesian approximation.

    Args:
        rate: Probability of dropping a feature, in (0, 1).
        samples: Number of draws averaged at inference.
    """

    not_for: ClassVar = {"images-with-masks": "it drops entries of one feature vector per image"}

    rate: float = number(default=0.5, low=0.0, high=1.0, open_low=True, open_high=True)
    samples: int = count(default=50)

    def attach(self, network: Network, num_classes: int) -> Network:
        """Return the network with dropout before its classifier."""
        return DropoutNetwork(network.extractor, network.classifier, self.rate, self.samples)
