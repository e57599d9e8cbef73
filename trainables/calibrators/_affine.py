"""The family that maps logits, or log-probabilities, by a matrix and a bias."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._affine_fit import AffineFit, product_precision
from trainables.calibrators._base import Calibrator, FitReport, by_chunk
from trainables.calibrators._temperature import fit_temperature
from trainables.calibrators.objectives import build_objective
from trainables.common.checks import check_choice, check_number

# From the strongest to the weakest: each fit starts where the one before has ended, and those that
# follow noise, which take the longest, are hardly ever asked for.
PULLS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
FOLDS, SEED = 5, 0
ENOUGH_ROWS = 2000
ROUGH = 1e-4  # Gain at which fits end that only choose the pull.
EQUAL_NOTE = "temperature scaling: on held-out rows a matrix gains nothing"


def choose_pull(score: Callable[[float], float], without: float) -> float:
    """Return the pull with the lowest held-out loss, infinity where no deviation lowers it.

    Args:
        score: Held-out loss at a pull; asked from the strongest on, until one is no better than
            temperature scaling. The loss may rise and fall again before.
        without: Held-out loss of temperature scaling, which is the infinite pull.
    """
    most, chosen = 0.0, math.inf
    for pull in PULLS:
        gain = without - score(pull)
        if gain > most:
            most, chosen = gain, pull
        if gain <= 0:
            break
    return chosen


def validation_folds(rows: int, device: torch.device) -> Iterator[Tensor]:
    """Yield masks (N,) of held-out rows: of each fold until ``ENOUGH_ROWS`` rows were held out.

    Folds are drawn without regard to classes: in stratified ones the frequencies of the classes
    are the same, so that biases which follow the chance in them look good on held-out rows. A
    single row cannot be held out; nothing is yielded then.
    """
    parts = min(FOLDS, rows)
    fold = torch.randperm(rows, generator=torch.Generator().manual_seed(SEED)) % parts
    for index in range(parts if parts > 1 else 0):
        if index * rows // parts >= ENOUGH_ROWS:
            return
        yield (fold == index).to(device)


class AffineCalibrator(Calibrator):
    """``softmax(W f(z) + b)``, with W full, fitted by maximum likelihood with ODIR.

    The penalty is ``weight_offdiag`` times the sum of the squared off-diagonal entries of W plus
    ``weight_bias`` times that of the biases, added to the mean negative log-likelihood (ODIR: Kull
    et al., NeurIPS 2019, who divide by K(K - 1) and by K; without, one value suits every K). The
    problem is convex; the fit starts at the best temperature.

    Args:
        weight_offdiag: Off-diagonal penalty lambda, >= 0.
        weight_bias: Bias penalty mu, >= 0.
        variant: ``shrunk`` also pulls the map towards the best temperature, as strongly as held-out
            fitting rows ask for, all the way where they gain nothing from a matrix; ``paper`` has
            the two penalties alone, and with ten rows a class is far worse than no calibration. The
            default is the one that never is.

    Raises:
        ValueError: If a weight is negative, or there is no such variant.
    """

    state_names = ("matrix", "bias")
    matrix: Tensor
    bias: Tensor

    def __init__(
        self, *, weight_offdiag: float = 0.01, weight_bias: float = 0.01, variant: str = "shrunk"
    ) -> None:
        self.weight_offdiag = check_number("weight_offdiag", weight_offdiag, 0.0)
        self.weight_bias = check_number("weight_bias", weight_bias, 0.0)
        self.variant = check_choice("variant", variant, ("shrunk", "paper"))

    @staticmethod
    def _offsets(logits: Tensor) -> Tensor:
        """Return what is subtracted from each row before the matrix acts on it, (N,)."""
        return torch.zeros_like(logits[:, 0])

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        whole = self._problem(logits, labels)
        pull = 0.0 if self.variant == "paper" else self._pull(logits, labels)
        if math.isinf(pull):
            weights = whole.scaled
            report = FitReport(True, 0, whole.loss(weights) / len(labels), EQUAL_NOTE)
        else:
            weights, report = whole.minimize(pull)
        self.matrix, self.bias = weights[:, :-1].contiguous(), weights[:, -1].clone()
        return report

    def _problem(self, logits: Tensor, labels: Tensor) -> AffineFit:
        common, _ = fit_temperature(logits, labels, build_objective("ce"))
        offsets = by_chunk(logits, lambda rows: self._offsets(rows.double()))
        weights = self.weight_offdiag, self.weight_bias
        return AffineFit(logits, offsets, labels, common, weights)

    def _pull(self, logits: Tensor, labels: Tensor) -> float:
        folds = [
            (self._problem(logits[~held], labels[~held]), self._problem(logits[held], labels[held]))
            for held in validation_folds(len(labels), labels.device)
        ]
        found = [known.scaled for known, _ in folds]

        def loss() -> float:
            return sum(held.loss(at) for (_, held), at in zip(folds, found, strict=True))

        def score(pull: float) -> float:
            for index, (known, _) in enumerate(folds):
                found[index], _ = known.minimize(pull, found[index], ROUGH)
            return loss()

        return choose_pull(score, loss())

    def _transform(self, logits: Tensor) -> Tensor:
        """Multiply in the precision of the fit."""
        features = logits - self._offsets(logits).unsqueeze(1)
        dtype = product_precision(logits.shape[1])
        matrix, bias = (t.to(logits.device, dtype) for t in (self.matrix, self.bias))
        return F.log_softmax(F.linear(features.to(dtype), matrix, bias).double(), dim=1)

    def _summary(self) -> dict[str, float]:
        """Return mean diagonal, root mean square off the diagonal, and largest absolute bias."""
        diagonal = self.matrix.diagonal()
        outside = self.matrix - torch.diag(diagonal)
        pairs = self.num_classes * (self.num_classes - 1)
        return {
            "diagonal_mean": float(diagonal.mean()),
            "offdiagonal_rms": float((outside.square().sum() / pairs).sqrt()),
            "bias_max": float(self.bias.abs().max()),
        }
