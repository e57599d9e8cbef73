import itertools
import math

import numpy as np
import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS, first_argmax
from trainables.calibrators._meta import MetaCalibrator
from trainables.common.errors import InputError
from trainables.common.fields import number

BINS = 20


@CALIBRATORS.register("meta-acc")
class MetaAccuracy(MetaCalibrator):
    """Keeps as many rows as reach a wanted accuracy, and sets the others apart.

    Ma and Blaschko, Meta-Cal, ICML 2021, algorithm 2. On a tenth of the rows, cut into 20 bins of
    entropy, mean entropy is regressed on the running accuracy by a non-increasing step curve; the
    threshold is that curve at ``accuracy``. Rows set apart become exactly uniform, so their first
    class wins: accuracy over all rows falls, and ECE alone flatters. Never read its ECE without its
    accuracy; do not use it where every row needs a decision. As in the released code, each bin is
    open on the left, so that the least uncertain row is in none, and an empty bin counts as 0.

    Args:
        accuracy: Wanted accuracy of the rows that are kept, in (0, 1). Where all rows together
            reach it, none is set apart; where no bin of rows reaches it, the fit is an error.
        seed: Decides which rows the threshold is read from.
    """

    accuracy: float = number(default=0.97, low=0.0, high=1.0, open_low=True, open_high=True)

    def _threshold_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._draw(torch.arange(len(labels), device=labels.device))

    def _find_threshold(self, entropies: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
        right = (first_argmax(logits) == labels).cpu().numpy()
        running, means = accuracy_curve(entropies.cpu().numpy(), right)
        if self.accuracy > running.max():
            raise InputError(
                f"meta-acc: accuracy={self.accuracy:g} is out of reach on these rows; allowed are "
                f"values up to {running.max():.4g}"
            )
        if self.accuracy < running.min():
            return entropies.new_tensor(math.log(logits.shape[1]) + 1)
        # Not imported with this module, which every sweep imports: it brings pandas with it.
        from sklearn.isotonic import IsotonicRegression

        curve = IsotonicRegression(increasing=False).fit(running, means)
        threshold = float(curve.predict([self.accuracy])[0])
        return torch.tensor(threshold, dtype=torch.float64, device=entropies.device)


def accuracy_curve(entropies: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return running mean of the bin accuracies and mean entropy of each of 20 quantile bins."""
    cuts = np.quantile(entropies, np.linspace(0, 1, BINS + 1))
    accuracies, means = np.zeros(BINS), np.zeros(BINS)
    for index, (low, high) in enumerate(itertools.pairwise(cuts)):
        inside = (entropies > low) & (entropies <= high)
        if inside.any():
            accuracies[index], means[index] = right[inside].mean(), entropies[inside].mean()
    return np.cumsum(accuracies) / np.arange(1, BINS + 1), means
