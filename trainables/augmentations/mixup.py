"""Mixup."""

from __future__ import annotations

from torch import Generator, Tensor

from trainables.augmentations._base import Augmentation
from trainables.augmentations._mixing import draw_pairs, random_source
from trainables.augmentations._registry import AUGMENTATIONS
from trainables.checks import check_number
from trainables.losses import Loss
from trainables.models import Network


@AUGMENTATIONS.register("mixup")
class Mixup(Augmentation):
    """Trains on convex combinations of pairs of images and of their losses.

    One ratio l ~ Beta(alpha, alpha) for the batch, of which the larger of l and 1 - l is the
    image's own share, as in the code released with MIT: the accuracy of the outputs on the images'
    own targets then means something.

    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.

    Not a calibration method by itself: temperature scaling helps a network trained with it less
    than one trained without (Wang et al., CVPR 2023).

    Args:
        alpha: Both parameters of the beta distribution, > 0; the larger, the stronger the mixing.

    Raises:
        ValueError: If ``alpha`` is out of its range.
    """

    def __init__(self, *, alpha: float = 1.0) -> None:
        self.alpha = check_number("alpha", alpha, 0.0, open_low=True)

    def training_loss(
        self,
        network: Network,
        loss: Loss,
        images: Tensor,
        targets: Tensor,
        indices: Tensor,
        generator: Generator,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a mixed batch and its logits."""
        pairs = draw_pairs(images, targets, indices, generator)
        ratio = random_source(generator).beta(self.alpha, self.alpha)
        ratio = max(ratio, 1 - ratio)
        logits = network(ratio * pairs.images + (1 - ratio) * pairs.other_images)
        return pairs.loss(loss, logits, logits, ratio), logits
