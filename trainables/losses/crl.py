import math

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES
from trainables.losses._confidence import SCORES, confidence
from trainables.losses._history import RankingLoss


@LOSSES.register("crl")
class CorrectnessRankingLoss(RankingLoss):
    """Cross-entropy plus ``weight`` times a penalty that ranks confidences by past correctness.

    Each sample i is paired with the next one j of the batch, the last with the first. If the share
    of past epochs in which i was right is larger by m than that of j, the confidence of i should be
    larger by m: the penalty is ``max(0, m - (c_i - c_j))``, and 0 for samples that were right
    equally often. It is averaged (or summed, see ``reduction``) over all pairs. Shares do not
    include the present batch, and are normalised by the smallest count in the training set and the
    number of epochs, as in the released code. There is no penalty in the first epoch or if every
    sample has always been right (then the released code divides 0 by 0).

    In training mode a call also counts the batch, so use each batch once per epoch; in evaluation
    mode the history does not change. For logits (N, K, H, W) confidence and correctness are
    averaged over an image's pixels, and ``indices`` are those of the images.

    ``condition="margin"`` is the ablation of the acls paper (Table 6). It does not use a history:
    the penalty is the confidence of each row whose logits have a spread above ``margin``. The paper
    gives no formula for it: this is our reading.

    Source: Moon et al., Confidence-Aware Learning for Deep Neural Networks, ICML 2020.

    Not for trainings of a few epochs, nor if indices change between epochs: samples then have no
    history.

    Args:
        weight: Weight λ of the penalty, at least 0.
        score: Confidence score: ``msp``, ``margin`` or ``neg_entropy`` (divided by log K).
        condition: ``ranking`` or ``margin``, see above.
        margin: Spread of logits above which ``condition="margin"`` penalises, at least 0.
        reduction: ``mean`` or ``sum`` over the rows that are not ignored, of cross-entropy and
            penalty.

    Raises:
        ValueError: With ``ranking``, when called without ``prepare`` or ``indices``.
    """

    weight: float = number(default=1.0, low=0.0)
    score: str = choice(default="msp", choices=SCORES)
    condition: str = choice(default="ranking", choices=("ranking", "margin"))
    margin: float = number(default=10.0, low=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ranked = self.condition == "ranking"

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1)
        cross_entropy = F.nll_loss(log_probs, targets, reduction="none")
        scores = self._confidence(log_probs)
        if self.ranked:
            right = logits.argmax(dim=1) == targets
            pairs = self.rank(scores, right, valid, indices)
            penalty = self.reduce(pairs.violation, pairs.valid)
        else:
            spread = logits.detach().amax(dim=1) - logits.detach().amin(dim=1)
            penalty = self.reduce(torch.where(spread > self.margin, scores, 0), valid)
        return self.reduce(cross_entropy, valid) + self.weight * penalty

    def _confidence(self, log_probs: Tensor) -> Tensor:
        limits = torch.finfo(log_probs.dtype).tiny, 1.0
        scores = confidence(log_probs.exp(), self.score, limits)
        if self.score == "neg_entropy":
            scores = scores / math.log(max(log_probs.shape[1], 2))
        return scores
