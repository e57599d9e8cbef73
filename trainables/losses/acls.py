from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import choice, number
from trainables.common.logit_rows import raise_masked
from trainables.losses._base import LOSSES, VARIANTS, allowed_classes
from trainables.losses._confidence import predicted_prob
from trainables.losses._history import RankingLoss

PARTS = ("full", "adaptive-only", "conditional", "ranking")


@LOSSES.register("acls")
class AdaptiveConditionalLabelSmoothingLoss(RankingLoss):
    """Cross-entropy plus squared distances of logits beyond a margin M.

    The predicted class (not the true one) and the others have separate penalties:

    - ``paper`` (Eq. 13): ``weight_pos * max(0, max z - min z - M)^2`` plus the *sum* over the
      others of ``weight_neg * max(0, max z - z_j - M)^2``; the gradient flows through all of it.
    - ``released``: the first penalty is ``max(0, max z - M)^2``, without the minimum, so that it
      depends on the logits' offset; it is added once for each class that ties for the maximum. The
      second penalty is divided by K - 1, and its maximum is a constant for the gradient.

    Eq. 12, the smoothing that the paper describes, is not the gradient of Eq. 13: if the gradient
    flows through the maximum, it also has a term for each other penalised class, and the squares
    give a factor of 2. Both variants minimise a penalty; neither follows Eq. 12.

    Masked classes have no distance, are ignored in the minimum and do not count in K.

    ``released`` is the default, because the published weights were chosen with it (its code writes
    them as products: ``alpha * pos_lambda = 0.1``, ``alpha * neg_lambda = 0.01``).

    ``parts`` selects the full method or an ablation of the paper:

    - ``full``: the method.
    - ``adaptive-only``: no condition (Eq. 10), so distances from the margin are squared on either
      side of it.
    - ``conditional``: no adaptation. Distances are not squared, so every logit beyond the margin is
      pushed equally.
    - ``ranking``: the condition of CRL instead of the margin. A sample is penalised, with a margin
      of 0, if it was right less often than the next sample of the batch, but is not less confident
      by that difference. The paper describes this only in words; the formula is our reading. Like
      ``crl``, it needs ``prepare`` and ``indices``.

    The metric ``spared`` of an epoch is the share of training rows without a penalty.

    Source: Park et al., ACLS: Adaptive and Conditional Label Smoothing for Network Calibration,
    ICCV 2023.

    ``released`` is not for logits with an arbitrary offset, such as after a normalisation that
    shifts them.

    Args:
        margin: Margin M in units of logits, at least 0.
        weight_pos: Weight λ1 of the predicted class's term, at least 0.
        weight_neg: Weight λ2 of the other classes' term, at least 0.
        variant: ``released`` or ``paper``, see above.
        parts: ``full``, ``adaptive-only``, ``conditional`` or ``ranking``, see above.

    Raises:
        ValueError: Under ``ranking`` when called without ``prepare`` or ``indices``.
    """

    margin: float = number(default=6.0, low=0.0)
    weight_pos: float = number(default=0.1, low=0.0)
    weight_neg: float = number(default=0.01, low=0.0)
    variant: str = choice(default="released", choices=VARIANTS)
    parts: str = choice(default="full", choices=PARTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ranked = self.parts == "ranking"

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        penalty = self._penalty(logits)
        if self.ranked:
            penalty = penalty * self._condition(logits.detach(), targets, valid, indices)
        self.count(penalty, valid)
        cross_entropy = F.cross_entropy(logits, targets, reduction="none")
        return self.reduce(cross_entropy + penalty, valid)

    def _penalty(self, logits: Tensor) -> Tensor:
        largest = logits.max(dim=1, keepdim=True).values
        masked, more = allowed_classes(logits, apart=1)
        if self.variant == "paper":
            smallest = raise_masked(logits, masked).min(dim=1, keepdim=True).values
            predicted = self._amount(largest - smallest).squeeze(1)
            others = self._others((largest - logits).masked_fill(masked, 0))
        else:
            tied = (logits == largest).sum(dim=1)
            predicted = self._amount(largest).squeeze(1) * tied
            distances = (largest.detach() - logits).masked_fill(masked, 0)
            others = self._others(distances) / max(logits.shape[1] - 1, 1) * more
        return self.weight_pos * predicted + self.weight_neg * others

    def _others(self, distances: Tensor) -> Tensor:
        """Return the sum of penalties of the other classes, (N,), given their distances (N, K)."""
        amounts = self._amount(distances)
        if self.parts == "adaptive-only":  # With other parts, a distance of 0 has no penalty.
            amounts = amounts.where(distances > 0, 0)
        return amounts.sum(dim=1)

    def _amount(self, distance: Tensor) -> Tensor:
        excess = distance - (0.0 if self.ranked else self.margin)
        if self.parts != "adaptive-only":
            excess = excess.relu_()
        return excess if self.parts == "conditional" else excess.square()

    def _condition(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        """Return 1 for rows of samples that are too confident for their history, else 0, (N,)."""
        right = logits.argmax(dim=1) == targets
        pairs = self.rank(predicted_prob(logits), right, valid, indices)
        too_sure = (pairs.sign < 0) & (pairs.violation > 0)
        return too_sure.to(logits.dtype).repeat_interleave(len(logits) // len(too_sure))
