"""The family that calibrates each class against the rest and then normalises the rows."""

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import FitReport, by_block
from trainables.calibrators._mixing import MixedCalibrator
from trainables.common.logit_rows import find_masked, row_blocks
from trainables.common.words import have, many

FLOOR = 1e-9
Curve = tuple[Sequence[float], ...]


class OneVersusRestCalibrator(MixedCalibrator):
    """Maps the probability of each class by its own curve, then normalises the rows.

    Curves can map all probabilities of a row to 0. So a billionth of the uncalibrated probability
    is added to every entry, and log-probabilities stay finite. See ``MixedCalibrator`` for the
    mixture and ``variant``.
    """

    def _fit_alone(self, logits: Tensor, labels: Tensor) -> FitReport:
        curves: list[Curve] = []
        masked = find_masked(logits)
        for scores in class_probabilities(logits):
            classes = torch.arange(len(curves), len(curves) + len(scores), device=labels.device)
            hidden = None if masked is None else masked[:, classes].T
            curves.extend(self._curves(scores, labels == classes.unsqueeze(1), hidden))
        self._keep(curves)
        empty = self.num_classes - len(labels.unique())
        note = f"{many(empty, 'class', 'classes')} {have(empty)} no fitting row" if empty else ""
        return FitReport(True, 1, float("nan"), note)

    @abstractmethod
    def _curves(self, scores: Tensor, hits: Tensor, masked: Tensor | None) -> Iterator[Curve]:
        """Yield the curve of each of C classes.

        Scores (probabilities), hits (rows with this label) and masked entries are (C, N).

        Curves are plain floats, because small arrays would fragment the memory between freed
        temporary arrays.
        """

    @abstractmethod
    def _keep(self, curves: Sequence[Curve]) -> None:
        """Store the curves of all classes."""

    @abstractmethod
    def _map(self, probabilities: Tensor) -> Tensor:
        """Return the mapped probability of each class, (N, K), before normalisation."""

    def _transform_alone(self, logits: Tensor) -> Tensor:
        log_probs = F.log_softmax(logits, dim=1)
        mapped = self._map(log_probs.exp()).clamp(min=0).log()
        kept = torch.logaddexp(mapped, log_probs + torch.tensor(FLOOR).log())
        return F.log_softmax(kept, dim=1)


class CurveCalibrator(OneVersusRestCalibrator):
    """A one-versus-rest calibrator that fits one curve at a time."""

    def _curves(self, scores: Tensor, hits: Tensor, masked: Tensor | None) -> Iterator[Curve]:
        del masked  # A masked class counts as a miss with probability 0, which is correct.
        return itertools.starmap(self._curve, zip(scores, hits, strict=True))

    @abstractmethod
    def _curve(self, scores: Tensor, hits: Tensor) -> Curve:
        """Fit the curve of one class; scores and hits are (N,)."""


def class_probabilities(logits: Tensor) -> Iterator[Tensor]:
    """Yield the probabilities of blocks of classes, (C, N), in the dtype of the logits."""

    def top_and_total(rows: Tensor) -> Tensor:
        values = rows.double()
        top = values.amax(1, keepdim=True)
        return torch.cat([top, (values - top).exp_().sum(1, keepdim=True)], dim=1)

    top, total = by_block(logits, top_and_total).split(1, dim=1)
    for part in row_blocks(logits.T):
        values = logits[:, part].double().sub(top).exp_().div_(total)
        yield values.to(logits.dtype).T.contiguous()
