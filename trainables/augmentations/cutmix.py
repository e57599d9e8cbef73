import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from trainables.augmentations._base import AUGMENTATIONS
from trainables.augmentations._mixing import PairAugmentation, Pairs, shares_of
from trainables.common.errors import InputError
from trainables.losses import Loss
from trainables.models import Network


@AUGMENTATIONS.register("cutmix")
class CutMix(PairAugmentation):
    """Pastes a box of another image into each image and weighs the losses by area.

    Each batch has one box, with the share 1 - l of the area, l ~ Beta(alpha, alpha). Its centre is
    uniform over the image. Parts outside of the image are cut off, and the losses are weighted by
    the area that remains.

    Source: Yun et al., CutMix, ICCV 2019.

    Args:
        alpha: Both parameters of the beta distribution, > 0; 1, the published default, is uniform.

    Only for images: training raises ``InputError`` for other data.
    """

    not_for: ClassVar = {
        "images-with-masks": "it weighs labels of whole images by area, but a pasted pixel has one "
        "class",
        **dict.fromkeys(("texts", "features"), "it pastes boxes of images; use mixup or mit"),
    }

    def draw_mixture(
        self, network: Network, shape: torch.Size, source: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return a box as a mask (H, W), bool, and the shares of image and box, (2,)."""
        if len(shape) != 4:
            raise InputError("cutmix needs images to paste boxes; use mixup or mit")
        side = math.sqrt(1 - source.beta(self.alpha, self.alpha))
        spans = []
        for length in shape[-2:]:
            centre, half = int(source.integers(length)), int(length * side) // 2
            spans.append(slice(max(centre - half, 0), centre + half))
        box = torch.zeros(shape[-2:], dtype=torch.bool)
        box[tuple(spans)] = True
        return box, shares_of(1 - int(box.sum()) / box.numel())

    def loss_of_pairs(
        self, network: Network, loss: Loss, pairs: Pairs, *mixture: Tensor
    ) -> tuple[Tensor, Tensor]:
        box, shares = mixture
        logits = network(torch.where(box, pairs.other_inputs, pairs.inputs))
        return pairs.loss(loss, logits, logits, shares), logits
