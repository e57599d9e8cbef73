"""The family that calibrates each class against the rest and puts the rows together again."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator, FitReport, chunks

FLOOR = 1e-9


class OneVersusRestCalibrator(Calibrator):
    """Maps the probability of each class by its own curve, then normalises the rows.

    A curve may send a probability to 0, and with it a whole row: every entry keeps a billionth of
    its uncalibrated probability, so that log-probabilities stay finite.
    """

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        probabilities = torch.cat(
            [logits[part].double().softmax(1).to(logits.dtype) for part in chunks(logits)]
        )
        self._fit_classes(probabilities, labels)
        empty = self.num_classes - len(labels.unique())
        note = f"{empty} classes have no fitting row" if empty else ""
        return FitReport(True, 1, float("nan"), note)

    @abstractmethod
    def _fit_classes(self, probabilities: Tensor, labels: Tensor) -> None:
        """Fit the curve of every class on probabilities (N, K)."""

    @abstractmethod
    def _map(self, probabilities: Tensor) -> Tensor:
        """Return the mapped probability of each class, each on its own, (N, K)."""

    def _transform(self, logits: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1)
        mapped = self._map(log_probs.exp()).clamp(min=0).log()
        kept = torch.logaddexp(mapped, log_probs + torch.tensor(FLOOR).log())
        return F.log_softmax(kept, dim=1)
