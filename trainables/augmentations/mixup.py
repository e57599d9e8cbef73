import numpy as np
import torch
from torch import Tensor

from trainables.augmentations._base import AUGMENTATIONS
from trainables.augmentations._mixing import PairAugmentation, Pairs, shares_of
from trainables.losses import Loss
from trainables.models import Network


@AUGMENTATIONS.register("mixup")
class Mixup(PairAugmentation):
    """Trains on convex combinations of pairs of inputs and of their losses.

    Each batch has one ratio l ~ Beta(alpha, alpha). The first input of a pair has the larger share
    of l and 1 - l, as in the code released with MIT, so that the accuracy on its targets is
    meaningful.

    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.

    Not a calibration method on its own: temperature scaling helps a network trained with mixup less
    than one trained without it (Wang et al., CVPR 2023).

    Args:
        alpha: Both parameters of the beta distribution, > 0; larger values mix more strongly.
    """

    def draw_mixture(
        self, network: Network, shape: torch.Size, source: np.random.Generator
    ) -> tuple[Tensor]:
        """Return the shares of both inputs of a pair, (2,), the larger one first."""
        ratio = source.beta(self.alpha, self.alpha)
        return (shares_of(max(ratio, 1 - ratio)),)

    def loss_of_pairs(
        self, network: Network, loss: Loss, pairs: Pairs, *mixture: Tensor
    ) -> tuple[Tensor, Tensor]:
        (shares,) = mixture
        own, rest = shares
        logits = network(own * pairs.inputs + rest * pairs.other_inputs)
        return pairs.loss(loss, logits, logits, shares), logits
