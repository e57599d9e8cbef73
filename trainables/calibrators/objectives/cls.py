import numpy as np
import scipy
import torch
from torch import Tensor

from trainables.calibrators.objectives._base import OBJECTIVES, Objective, RowTerms
from trainables.common.fields import choice

ALPHA_START, BETA_START = 1.0, 1.5
ALPHA_LOW, BETA_BOUNDS = 0.1, (1.5, 2.0)


@OBJECTIVES.register("cls")
class ClasswiseScaling(Objective):
    """Cross-entropy summed over classes, with larger weights for classes with a higher loss.

    With the class losses L_c, normalised to x_c, the weight is
    ``beta * (sigmoid(x_c / alpha) - 1/2) + 1``; it is treated as a constant in the gradient.
    ``alpha`` and ``beta`` start at 1 and 1.5, are fitted by SLSQP to the class losses before and
    after the first optimiser step, and do not change afterwards (class-wise loss scaling paper,
    sec. 4.3). Do not use it if a class has very few fitting rows: its noisy mean has as much weight
    as any other.

    Classes without fitting rows are ignored (the released code returns nan there). If all class
    losses are equal, every weight is 1.

    Args:
        normalization: ``nd`` (standardised), ``cm`` (centred, divided by the range) or ``mm``
            (minimum to maximum mapped to [0, 1]).
        bounds: ``released`` bounds alpha to [0.1, ln(K)/2] and beta to [1.5, 2]; ``paper`` names
            no bounds, so only alpha > 0 and beta >= 0 are required. The default is ``released``
            because all published figures come from that code, and without bounds the search may
            diverge.
        reduction: Whether the loss of a class is the ``mean`` of its rows, so that all classes
            have the same weight, or their ``sum`` (eq. 3), divided by the number of all rows. The
            default is ``mean``, as in the released code.
        deviation: The standard deviation of the C class losses by which ``nd`` divides: that of
            the ``population`` (over C, eq. 4), or of a ``sample`` (over C - 1, the released code).
    """

    log_loss = True
    adaptive = True

    alpha, beta = ALPHA_START, BETA_START
    _first = np.zeros(0)

    normalization: str = choice(default="nd", choices=("nd", "cm", "mm"))
    bounds: str = choice(default="released", choices=("paper", "released"))
    reduction: str = choice(default="mean", choices=("mean", "sum"))
    deviation: str = choice(default="sample", choices=("sample", "population"))

    def per_row(self, terms: RowTerms) -> Tensor:
        """Return ``-log p_y``."""
        return -terms.log_p

    def row_weights(self, losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Return the weight of each row's class, divided by a number of rows.

        For ``mean`` this is the number of the class's rows, for ``sum`` that of all rows.
        """
        totals, counts = self._class_losses(losses, labels, num_classes)
        present = counts > 0
        weights = torch.zeros_like(totals)
        weights[present] = self._scale(self._normalized(totals[present]))
        rows = counts.clamp(min=1) if self.reduction == "mean" else len(losses)
        return (weights / rows)[labels]

    def begin(self, losses: Tensor, labels: Tensor, num_classes: int) -> None:
        """Reset the scaling and store the class losses at the start of the fit."""
        self.alpha, self.beta = ALPHA_START, BETA_START
        self._first = self._present_losses(losses, labels, num_classes)

    def freeze(self, losses: Tensor, labels: Tensor, num_classes: int) -> None:
        """Fit alpha and beta to the class losses before and after the first step (eq. 6)."""
        second = self._present_losses(losses, labels, num_classes)
        x = self._normalized(torch.from_numpy(second)).numpy()

        def distance(scaling: np.ndarray) -> float:
            swing = scaling[1] / (1 + np.exp(-x / scaling[0])) - scaling[1] / 2
            gap = self._first - swing * (second - self._first) - second.mean()
            return float(np.sqrt((gap**2).sum()))

        start, bounds = np.array([ALPHA_START, BETA_START]), self._bounds(num_classes)
        found = scipy.optimize.minimize(distance, start, method="SLSQP", bounds=bounds)
        self.alpha, self.beta = map(float, found.x)

    def state(self) -> dict[str, float]:
        """Return the frozen alpha and beta."""
        return {"alpha": self.alpha, "beta": self.beta}

    def _normalized(self, losses: Tensor) -> Tensor:
        return normalize(losses, self.normalization, correction=int(self.deviation == "sample"))

    def _scale(self, x: Tensor) -> Tensor:
        return self.beta * (torch.sigmoid(x / self.alpha) - 0.5) + 1

    def _bounds(self, num_classes: int) -> tuple[tuple[float, float | None], ...]:
        if self.bounds == "paper":
            return (1e-6, None), (0.0, None)
        return (ALPHA_LOW, float(np.log(num_classes)) / 2), BETA_BOUNDS

    def _class_losses(
        self, losses: Tensor, labels: Tensor, num_classes: int
    ) -> tuple[Tensor, Tensor]:
        """Return the loss (0 for absent classes) and the number of rows of each class, (K,)."""
        counts = torch.bincount(labels, minlength=num_classes).to(losses.dtype)
        sums = torch.zeros_like(counts).index_add_(0, labels, losses)
        return (sums / counts.clamp(min=1) if self.reduction == "mean" else sums), counts

    def _present_losses(self, losses: Tensor, labels: Tensor, num_classes: int) -> np.ndarray:
        """Return the losses of the classes that have rows."""
        totals, counts = self._class_losses(losses, labels, num_classes)
        return totals[counts > 0].cpu().numpy().astype(np.float64)


def normalize(means: Tensor, how: str, correction: int = 1) -> Tensor:
    """Normalise class losses by ``nd``, ``cm`` or ``mm``; equal losses (or one class) give zeros.

    For the variance of ``nd``, squares are summed and divided by the number of classes minus
    ``correction``.
    """
    spread = means.max() - means.min()
    if not spread > 0:
        return torch.zeros_like(means)
    if how == "nd":
        return (means - means.mean()) / means.std(correction=correction)
    return (means - (means.mean() if how == "cm" else means.min())) / spread
