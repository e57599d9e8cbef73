import torch
from torch import Tensor

from trainables.common.fields import choice, number
from trainables.losses._base import LOSSES, RowLoss
from trainables.losses._confidence import predicted_prob
from trainables.losses.fl import power, true_log_prob

SCHEDULES = ("two-threshold", "one-threshold", "predicted")
LOW_GAMMA, LOW_THRESHOLD = 5.0, 0.2
MIDDLE_GAMMA, HIGH_THRESHOLD = 3.0, 0.5


@LOSSES.register("flsd")
class SampleDependentFocalLoss(RowLoss):
    """Focal loss whose exponent depends on the row's probability p (FLSD-53 for ``gamma=3``).

    The published forms differ in p and in the thresholds, which are strict:

    - ``two-threshold``: p of the true class; 5 below 0.2, 3 below 0.5, else ``gamma`` (released
      code of Mukhoti et al., which sums over the batch).
    - ``one-threshold``: p of the true class; 5 below 0.2, else ``gamma`` (papers mbls and aurc, and
      the released code of aurc).
    - ``predicted``: 5 if p of the *predicted* class is below 0.2, else ``gamma`` (acls, supplement
      S1.1, Eq. 1). The loss itself stays that of the true class.

    ``two-threshold`` is the default, because the loss's authors released it; for ``gamma=3`` it
    equals ``one-threshold``.

    Source: Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020.

    With five classes or fewer, ``predicted`` is plain focal loss: the largest probability is never
    below 0.2.

    Args:
        gamma: Focusing parameter γ of the highest range of p, at least 0.
        schedule: One of the forms above.
    """

    gamma: float = number(default=3.0, low=0.0)
    schedule: str = choice(default="two-threshold", choices=SCHEDULES)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_prob = true_log_prob(logits, targets)
        prob = log_prob.exp()
        deciding = prob.detach()
        if self.schedule == "predicted":
            deciding = predicted_prob(logits.detach())
        return -power(1 - prob, self._exponents(deciding)) * log_prob

    def _exponents(self, prob: Tensor) -> Tensor:
        high = torch.full_like(prob, self.gamma)
        if self.schedule == "two-threshold":
            high = torch.where(prob < HIGH_THRESHOLD, MIDDLE_GAMMA, high)
        return torch.where(prob < LOW_THRESHOLD, LOW_GAMMA, high)
