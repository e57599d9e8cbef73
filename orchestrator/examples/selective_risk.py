"""AURC and E-AURC: the risk of a network that answers its most confident rows alone."""

import torch
from torch import Tensor

from calsweep import METRICS


@METRICS.register("aurc", better="lower", label="AURC", percent=False, digits=4)
def aurc(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean, over all coverages k/N, of the error rate of the k most confident rows.

    Confidence is the largest probability; rows that tie have the error rate of their group.
    Source: Geifman et al., Bias-Reduced Uncertainty Estimation, ICLR 2019.
    """
    confidence, predicted = probs.max(dim=1)
    return _area(confidence, (predicted != labels).to(probs.dtype))


@METRICS.register("e_aurc", better="lower", label="E-AURC", percent=False, digits=4)
def e_aurc(probs: Tensor, labels: Tensor) -> Tensor:
    """Return how far AURC is above that of the best order, in which all errors come last.

    It is 0 where every error is less confident than every hit, whatever the accuracy.
    """
    wrong = (probs.argmax(dim=1) != labels).to(probs.dtype)
    return aurc(probs, labels) - _area(-wrong, wrong)


def _area(confidence: Tensor, wrong: Tensor) -> Tensor:
    _, group, counts = confidence.neg().unique(return_inverse=True, return_counts=True)
    errors = wrong.new_zeros(len(counts)).index_add_(0, group, wrong) / counts
    risks = errors.repeat_interleave(counts).cumsum(0)
    return (risks / torch.arange(1, len(risks) + 1, device=risks.device)).mean()
