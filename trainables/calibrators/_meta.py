"""The family that rejects uncertain rows and calibrates the others by a temperature."""

import math
from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator, FitReport, by_block
from trainables.calibrators._temperature import fit_temperature
from trainables.common.errors import InputError
from trainables.common.fields import count, fitted

MOST_THRESHOLD_ROWS = 500
THRESHOLD_SHARE = 10


class MetaCalibrator(Calibrator):
    """Rows whose entropy reaches a threshold become uniform; the rest is temperature scaled.

    Args:
        seed: Selects the rows for the threshold. The temperature is fitted on those of the other
            rows whose entropy is below the threshold.
    """

    seed: int = count(default=0, low=0, kw_only=True)
    threshold: Tensor = fitted()
    temperature: Tensor = fitted()

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        entropies = row_entropies(logits)
        for_threshold = self._threshold_rows(logits, labels)
        self.threshold = self._find_threshold(
            entropies[for_threshold], labels[for_threshold], logits[for_threshold]
        ).reshape(1)
        rest = torch.ones_like(labels, dtype=torch.bool)
        rest[for_threshold] = False
        accepted = rest & (entropies < self.threshold)
        if not bool(accepted.any()):
            raise InputError(
                f"{self.name}: no fitting row has an entropy below the threshold "
                f"{float(self.threshold):.4g}; relax the constraint or use more rows"
            )
        self.temperature, report = fit_temperature(logits[accepted], labels[accepted])
        return report

    @abstractmethod
    def _threshold_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the positions of the rows that determine the threshold."""

    @abstractmethod
    def _find_threshold(self, entropies: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
        """Return the threshold: the entropy, in nats, at or above which rows are rejected."""

    def _draw(self, candidates: Tensor) -> Tensor:
        """Draw a tenth of the candidates, at least one and at most 500."""
        wanted = max(1, min(MOST_THRESHOLD_ROWS, len(candidates) // THRESHOLD_SHARE))
        draw = torch.Generator().manual_seed(self.seed)
        shuffle = torch.randperm(len(candidates), generator=draw)
        return candidates[shuffle[:wanted].to(candidates.device)]

    def _transform(self, logits: Tensor) -> Tensor:
        accepted = row_entropies(logits) < self.threshold.to(logits.device)
        scaled = F.log_softmax(logits / self.temperature.to(logits.device), dim=1)
        uniform = torch.full_like(scaled, -math.log(logits.shape[1]))
        return torch.where(accepted.unsqueeze(1), scaled, uniform)

    def _summary(self) -> dict[str, float]:
        return {"threshold": float(self.threshold), "temperature": float(self.temperature)}


def row_entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each row's softmax in nats, (N,), float64."""

    def of_some(rows: Tensor) -> Tensor:
        log_probs = F.log_softmax(rows.double(), dim=1)
        return -(log_probs.exp() * log_probs).sum(1)

    return by_block(logits, of_some)
