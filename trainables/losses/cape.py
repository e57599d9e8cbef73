"""Calibrated probability estimation."""

from dataclasses import field

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.common.fields import count
from trainables.losses._base import LOSSES, ReducedLoss
from trainables.losses._history import sample_means, sample_places


@LOSSES.register("cape")
class CalibratedProbabilityLoss(ReducedLoss):
    """Cross-entropy, alternating with epochs that fit confidences to frequencies (CaPE).

    An epoch of calibration follows after every ``every`` epochs of cross-entropy. At its start the
    training samples are sorted by confidence into ``bins`` of equal size. The accuracy of a bin is
    the goal g of its samples. A sample with the confidence c has the loss
    ``-g log c - (1 - g) log(1 - c)``.

    Source: Liu et al., Deep Probability Estimation, ICML 2022 (CaPE-bin) and its released code,
    which is for two classes and uses the probability of the second class as c; here c is the
    probability of the predicted class. The code starts from a network that was stopped early, and
    predicts the whole training set before an epoch of calibration. Here the epochs alternate from
    the start, and a sample's confidence is that of the latest epoch.

    In training mode a call also stores the batch; ``indices`` and pixels are as for ``crl``.

    Not for a network that fits its training set perfectly: every goal is then 1.

    Args:
        bins: Number of bins.
        every: Epochs of cross-entropy before each epoch of calibration.

    Raises:
        ValueError: When called without ``prepare`` or ``indices``.
    """

    bins: int = count(default=10)
    every: int = count(default=5)
    confidences: Tensor = field(init=False)
    right: Tensor = field(init=False)
    goals: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("confidences", torch.zeros(0))
        self.register_buffer("right", torch.zeros(0))
        self.register_buffer("goals", torch.zeros(0), persistent=False)
        self.calibrating = False

    def prepare(self, num_samples: int, num_classes: int) -> None:
        """Allocate a confidence and a correctness for each training sample."""
        self.confidences = self.confidences.new_zeros(num_samples)
        self.right = self.right.new_zeros(num_samples)

    def start_epoch(self, epoch: int) -> None:
        """Set the goals if epoch ``epoch`` (from 0) is one of calibration."""
        self.calibrating = (epoch + 1) % (self.every + 1) == 0
        if self.calibrating:
            self.goals = torch.zeros_like(self.right)
            for places in self.confidences.argsort(stable=True).tensor_split(self.bins):
                self.goals[places] = self.right[places].mean()

    def compute(
        self, logits: Tensor, targets: Tensor, valid: Tensor, indices: Tensor | None
    ) -> Tensor:
        """Return cross-entropy, or in epochs of calibration the loss of confidences and goals."""
        places = sample_places(self, self.confidences, valid, indices)
        top = logits.argmax(dim=1, keepdim=True)
        total = logits.logsumexp(dim=1)
        log_sure = logits.gather(1, top).squeeze(1) - total
        if self.training:
            self._note(log_sure.detach().exp(), top.squeeze(1) == targets, valid, places)
        if not self.calibrating:
            return self.reduce(F.cross_entropy(logits, targets, reduction="none"), valid)
        log_unsure = logits.scatter(1, top, -torch.inf).logsumexp(dim=1) - total
        goals = self.goals.gather(0, places).to(logits.dtype)
        goals = goals.repeat_interleave(len(valid) // len(places))
        return self.reduce(-goals * log_sure - (1 - goals) * log_unsure, valid)

    @torch.no_grad()
    def _note(self, confidences: Tensor, right: Tensor, valid: Tensor, places: Tensor) -> None:
        rows = valid.view(len(places), -1)
        for kept, values in ((self.confidences, confidences), (self.right, right)):
            kept.index_copy_(0, places, sample_means(values.to(kept.dtype), rows))
