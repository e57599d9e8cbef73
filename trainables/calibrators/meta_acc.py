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
    """Keeps as many rows as possible with a target accuracy, and rejects the others.

    Ma and Blaschko, Meta-Cal, ICML 2021, algorithm 2. A tenth of the rows (at most 500) is divided
    into 20 bins of entropy. A non-increasing curve is fitted to the bins' mean entropy as a
    function of the running mean of their accuracies, which begins with the least uncertain bin. The
    threshold is the curve's value at ``accuracy``. Rejected rows become exactly uniform, so their
    first class wins: accuracy over all rows falls, and ECE looks too good. Never read its ECE
    without its accuracy; do not use it if every row needs a decision. As in the released code, each
    bin is open on the left, so that the least uncertain row is in no bin, and an empty bin counts
    as 0.

    Args:
        accuracy: Target accuracy of the kept rows, in (0, 1). If the running accuracy is always
            above it, no row is rejected; if it is always below, the fit raises an error.
        seed: Selects the rows for the threshold.
    """

    accuracy: float = number(default=0.97, low=0.0, high=1.0, open_low=True, open_high=True)

    def _threshold_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._draw(torch.arange(len(labels), device=labels.device))

    def _find_threshold(self, entropies: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
        right = (first_argmax(logits) == labels).cpu().numpy()
        running, means = accuracy_curve(entropies.cpu().numpy(), right)
        if self.accuracy > running.max():
            raise InputError(
                f"meta-acc: accuracy={self.accuracy:g} is out of reach on these rows; use at most "
                f"{running.max():.4g}"
            )
        if self.accuracy < running.min():
            return entropies.new_tensor(math.log(logits.shape[1]) + 1)
        # Imported late, because it imports pandas and every sweep imports this module.
        from sklearn.isotonic import IsotonicRegression

        curve = IsotonicRegression(increasing=False).fit(running, means)
        threshold = float(curve.predict([self.accuracy])[0])
        return torch.tensor(threshold, dtype=torch.float64, device=entropies.device)


def accuracy_curve(entropies: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the running mean accuracy and the mean entropy of 20 quantile bins of rows, (20,)."""
    cuts = np.quantile(entropies, np.linspace(0, 1, BINS + 1))
    accuracies, means = np.zeros(BINS), np.zeros(BINS)
    for index, (low, high) in enumerate(itertools.pairwise(cuts)):
        inside = (entropies > low) & (entropies <= high)
        if inside.any():
            accuracies[index], means[index] = right[inside].mean(), entropies[inside].mean()
    return np.cumsum(accuracies) / np.arange(1, BINS + 1), means
