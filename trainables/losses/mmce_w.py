import torch
from torch import Tensor

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, VARIANTS
from trainables.losses._laplacian import laplacian_gram
from trainables.losses._penalised import PenalisedLoss, top_label

# Guards of the divisions and of the square root in the released code.
_DIVISION_GUARD = 1e-5
_ROOT_GUARD = 1e-10


@LOSSES.register("mmce-w")
class WeightedMMCELoss(PenalisedLoss):
    """Cross-entropy plus the weighted maximum mean calibration error.

    The penalty is the distance between the kernel embeddings of the right rows, weighted by 1 - r,
    and of the wrong rows, weighted by r, for confidences r. It gives the few wrong rows of a batch
    enough weight. It is 0 if all rows of a batch are right or all are wrong, so it is not for very
    small batches or very accurate networks. Takes O(N log N) time and O(N) memory for N rows.

    For pixels, it uses a sample of 4096 per batch.

    Source: Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean
    Embeddings, ICML 2018.

    Args:
        weight: Factor of the penalty, at least 0.
        variant: ``paper`` uses the means over pairs; ``released`` divides each of them by the
            number of pairs once more, so that the penalty shrinks as the batch grows. Both add
            1e-10 and take the square root. The default is ``released``, with which the published
            weight was found.
    """

    most_pixels = 4096
    weight: float = number(default=2.0, low=0.0)
    variant: str = choice(default="released", choices=VARIANTS)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the weighted error of the batch, at least 0."""
        confidence, correct = top_label(probs, targets)
        right, wrong = valid & correct, valid & ~correct
        features = [(1 - confidence).where(right, 0), confidence.where(wrong, 0)]
        gram = laplacian_gram(confidence, torch.stack(features, dim=1))
        counts = torch.stack([right.sum(), wrong.sum()]).to(gram.dtype)
        squared = (gram * self._pair_weights(counts)).sum()
        root = (squared + _ROOT_GUARD).clamp(min=_ROOT_GUARD**2).sqrt()
        return root.where((counts > 0).all(), 0)

    def _pair_weights(self, counts: Tensor) -> Tensor:
        """Return the factors of the kernel sums, (2, 2), negative off the diagonal.

        Their size is 1 / pairs, for ``released`` about 1 / pairs^2.
        """
        signs = 2 * torch.eye(2, dtype=counts.dtype, device=counts.device) - 1
        pairs = counts.outer(counts)
        weights = signs / pairs.clamp(min=1)
        return weights / (pairs + _DIVISION_GUARD) if self.variant == "released" else weights
