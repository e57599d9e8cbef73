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

    One ratio l ~ Beta(alpha, alpha) for the batch; the larger of l and 1 - l is the
    input's own share, as in the code released with MIT: the accuracy of the outputs on the inputs'
    own targets then means something.

    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.

    Not a calibration method by itself: temperature scaling helps a network trained with it less
    than one trained without (Wang et al., CVPR 2023).

    Args:
        alpha: Both parameters of the beta distribution, > 0; the larger, the stronger the mixing.
    """

    def draw_mixture(
        self, network: Network, shape: torch.Size, source: np.random.Generator
    ) -> tuple[Tensor]:
        """Return the shares of the inputs and of their partners, (2,), the larger one first."""
        ratio = source.beta(self.alpha, self.alpha)
        return (shares_of(max(ratio, 1 - ratio)),)

    def loss_of_pairs(
        self, network: Network, loss: Loss, pairs: Pairs, *mixture: Tensor
    ) -> tuple[Tensor, Tensor]:
        (shares,) = mixture
        own, rest = shares
        logits = network(own * pairs.inputs + rest * pairs.other_inputs)
        return pairs.loss(loss, logits, logits, shares), logits
