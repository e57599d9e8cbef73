import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, FitReport, by_block
from trainables.calibrators._mixing import MixedCalibrator
from trainables.common.fields import fitted

BANDWIDTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
JUDGED_ROWS = 1000
BLOCK = 64
LEAST, FLOOR = 1e-9, 1e-9


@CALIBRATORS.register("kernel")
class KernelCalibration(MixedCalibrator):
    """The share of each label among fitting rows of similar probabilities, by a Dirichlet kernel.

    ``sum_i k(p, p_i) [y_i = c] / sum_i k(p, p_i)``, where k is the density at p of
    Dirichlet(p_i / h + 1): the estimate of E[y | p] of Popordanoska et al., Consistent and
    asymptotically unbiased estimation of proper calibration errors, AISTATS 2024, used as a map.
    The bandwidth h is one of seven: the one with the highest leave-one-out likelihood of the labels
    of up to 1,000 fitting rows (our choice; the authors use the likelihood of the density). A
    billionth of the uncalibrated probability is added for every class. Accuracy may change. The
    calibrator stores the fitting rows, so its time and memory are proportional to their number. See
    ``MixedCalibrator`` for ``variant``.
    """

    probs: Tensor = fitted()
    labels: Tensor = fitted()
    bandwidth: Tensor = fitted()

    def _fit_alone(self, logits: Tensor, labels: Tensor) -> FitReport:
        self.probs = by_block(logits, lambda rows: rows.double().softmax(1).to(logits.dtype))
        self.labels = labels.clone()
        judged = torch.arange(len(labels), device=labels.device)[:: -(-len(labels) // JUDGED_ROWS)]
        losses = torch.zeros(len(BANDWIDTHS), dtype=torch.float64)
        norms = [self._log_norms(bandwidth) for bandwidth in BANDWIDTHS]
        for rows in judged.split(BLOCK):
            points = self.probs[rows].clamp(min=LEAST).log()
            inner = points @ self.probs.T
            same = (labels[rows].unsqueeze(1) == labels).to(inner.dtype)
            own = points.gather(1, labels[rows].unsqueeze(1)).squeeze(1).double().exp()
            for index, bandwidth in enumerate(BANDWIDTHS):
                kernel = inner / bandwidth - norms[index]
                weights = _weights(kernel.scatter_(1, rows.unsqueeze(1), -torch.inf))
                share = (weights * same).sum(1) + FLOOR * own
                losses[index] -= float((share / (weights.sum(1) + FLOOR)).log().sum())
        best = int(losses.argmin())
        self.bandwidth = torch.tensor([BANDWIDTHS[best]], dtype=torch.float64)
        return FitReport(True, len(BANDWIDTHS), float(losses[best]) / len(judged))

    def _log_norms(self, bandwidth: float) -> Tensor:
        """Return the logarithm of the beta function of each fitting row's kernel, (N,)."""

        def of_some(rows: Tensor) -> Tensor:
            alpha = rows / bandwidth + 1
            return torch.lgamma(alpha).sum(1) - torch.lgamma(alpha.sum(1))

        return by_block(self.probs, of_some)

    def _shares(self, kernel: Tensor, log_probs: Tensor) -> Tensor:
        """Return log-probabilities (n, K) from log kernels (n, N)."""
        weights = _weights(kernel)
        sums = torch.zeros_like(log_probs).index_add_(1, self.labels, weights.to(log_probs.dtype))
        return F.log_softmax(torch.log(sums + FLOOR * log_probs.exp()), dim=1)

    def _transform_alone(self, logits: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1).clamp(min=float(torch.tensor(LEAST).log()))
        self.probs, self.labels = self.probs.to(logits.device), self.labels.to(logits.device)
        norms = self._log_norms(float(self.bandwidth))
        parts = [
            self._shares(
                points.to(norms.dtype) @ self.probs.T / self.bandwidth.item() - norms, points
            )
            for points in log_probs.split(BLOCK)
        ]
        return torch.cat(parts)

    def _summary(self) -> dict[str, float]:
        return {"bandwidth": float(self.bandwidth)}


def _weights(kernel: Tensor) -> Tensor:
    """Return the weights of the fitting rows, (n, N): sums are 1, or 0 if all kernels are 0."""
    return kernel.softmax(1).nan_to_num(0.0)
