"""The family of maps that are mixed with temperature scaling, because they overfit few rows."""

from abc import abstractmethod
from dataclasses import replace

import scipy
import torch
from torch import Tensor

from trainables.calibrators._base import Calibrator, FitReport
from trainables.calibrators._shrinkage import EQUAL_NOTE, VARIANTS, validation_folds
from trainables.calibrators._temperature import divide, fit_temperature
from trainables.common.fields import choice, fitted

LARGEST_LOG_RATIO = 500.0  # Limit of the logarithm of likelihood ratios, so that sums stay finite.


class MixedCalibrator(Calibrator):
    """A calibrator whose probabilities are mixed with those of temperature scaling.

    The share of the calibrator's own map maximises the likelihood of held-out fitting rows; it is 0
    if the map does not improve them. A subclass implements ``_fit_alone`` and ``_transform_alone``.

    Args:
        variant: ``shrunk`` (the default) mixes as described above; ``paper`` is the calibrator's
            own map alone, which is far worse than no calibration if classes have few rows.
    """

    variant: str = choice(default="shrunk", choices=VARIANTS, kw_only=True)
    share: Tensor = fitted()
    temperature: Tensor = fitted()

    @abstractmethod
    def _fit_alone(self, logits: Tensor, labels: Tensor) -> FitReport:
        """Fit the calibrator's own map; gradients are disabled."""

    @abstractmethod
    def _transform_alone(self, logits: Tensor) -> Tensor:
        """Return log-probabilities of a block of rows from the own map, float64 to float64."""

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        report = self._fit_alone(logits, labels)
        self.temperature, scaled = fit_temperature(logits, labels)
        if self.variant == "paper":
            share = 1.0
        else:
            share = self._best_share(logits, labels)
            report = replace(report, doubt=report.doubt or scaled.doubt)
        self.share = torch.full_like(self.temperature, share)
        if share == 0:
            return replace(report, note="; ".join(filter(None, (EQUAL_NOTE, report.note))))
        return report

    def _best_share(self, logits: Tensor, labels: Tensor) -> float:
        own, scaled = [], []
        for held in validation_folds(len(labels), labels.device):
            alone = type(self)(**{**self.parameters(), "variant": "paper"})
            alone.fit(logits[~held], labels[~held])
            own.append(_at_labels(alone(logits[held]), labels[held]))
            by_temperature = divide([alone.temperature], logits[held].double())
            scaled.append(_at_labels(by_temperature, labels[held]))
        return likeliest_share(torch.cat(own), torch.cat(scaled)) if own else 0.0

    def _transform(self, logits: Tensor) -> Tensor:
        share = self.share.to(logits.device)
        scaled = divide([self.temperature.to(logits.device)], logits) + (1 - share).log()
        return torch.logaddexp(self._transform_alone(logits) + share.log(), scaled)


def _at_labels(log_probs: Tensor, labels: Tensor) -> Tensor:
    return log_probs.gather(1, labels.unsqueeze(1)).squeeze(1).double()


def likeliest_share(first: Tensor, second: Tensor) -> float:
    """Return the share of ``first``, in [0, 1], in its likeliest mixture with ``second``.

    Arguments are the log-probabilities of the rows' labels, (N,), float64.
    """
    ratio = (first - second).clamp(max=LARGEST_LOG_RATIO).exp()

    def slope(share: float) -> float:
        return float(((ratio - 1) / (1 + share * (ratio - 1))).mean())

    if slope(0.0) <= 0:
        return 0.0
    if slope(1.0) >= 0:
        return 1.0
    return float(scipy.optimize.brentq(slope, 0.0, 1.0, xtol=1e-6))
