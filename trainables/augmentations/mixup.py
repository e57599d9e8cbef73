import numpy as np
from torch import Tensor

from trainables.augmentations._base import AUGMENTATIONS
from trainables.augmentations._mixing import PairAugmentation, Pairs
from trainables.losses import Loss
from trainables.models import Network


@AUGMENTATIONS.register("mixup")
class Mixup(PairAugmentation):
    """Trains on convex combinations of pairs of inputs and of their losses.

    One ratio l ~ Beta(alpha, alpha) for the batch, of which the larger of l and 1 - l is the
    input's own share, as in the code released with MIT: the accuracy of the outputs on the inputs'
    own targets then means something.

    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.

    Not a calibration method by itself: temperature scaling helps a network trained with it less
    than one trained without (Wang et al., CVPR 2023).

    Args:
        alpha: Both parameters of the beta distribution, > 0; the larger, the stronger the mixing.

    Raises:
        ValueError: If ``alpha`` is out of its range.
    """

    def loss_of_pairs(
        self, network: Network, loss: Loss, pairs: Pairs, source: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a mixed batch and its logits."""
        ratio = source.beta(self.alpha, self.alpha)
        ratio = max(ratio, 1 - ratio)
        logits = network(ratio * pairs.inputs + (1 - ratio) * pairs.other_inputs)
        return pairs.loss(loss, logits, logits, ratio), logits
