from __future__ import annotations  # scipy.optimize is imported on first use.

import math
from collections.abc import Sequence

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, FitReport
from trainables.calibrators._minimize import row_gradients
from trainables.calibrators._released import ReleasedRun, released_temperatures
from trainables.calibrators._temperature import TemperatureCalibrator, fit_temperature
from trainables.calibrators.objectives import Objective, RowTerms, build_objective
from trainables.common.fields import choice, fitted
from trainables.common.logit_rows import find_masked, mean_allowed, row_blocks

START = np.array([1.0, 0.0, 0.0])
PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
MAX_ROUNDS, MAX_ITERATIONS = 30, 200
TOLERANCE = 1e-8
TINY = 1e-300


@CALIBRATORS.register("ets")
class EnsembleTemperatureScaling(TemperatureCalibrator):
    """Mixes scaled, plain and uniform probabilities (Zhang et al., Mix-n-Match, ICML 2020).

    ``p = w1 softmax(z / T) + w2 softmax(z) + w3 / K`` with weights on the simplex. T is fitted
    first, then the weights with fixed T. The mixture keeps the order of every row. It is hardly
    better than ``ts`` if one temperature suits all rows. Masked classes have no share of ``w3``.

    Args:
        mixture: ``probabilities``, or ``logits`` as in eq. 13 of the class-wise scaling paper. With
            ``logits``, the uniform part has no effect and the other two parts are a single scaling,
            so that the converged fit equals ``ts``.
        variant: ``paper`` fits T and weights with the chosen objective. ``released`` repeats the
            code of Mix-n-Match, which uses the squared error whatever the objective. With
            ``mixture="logits"`` it repeats the class-wise scaling code: two fixed-length LBFGS
            runs, for T and for weights that may leave the simplex.
    """

    transfers = True
    mixture: str = choice(default="probabilities", choices=("probabilities", "logits"))
    variant: str = choice(default="paper", choices=("paper", "released"))
    temperature: Tensor = fitted()
    weights: Tensor = fitted()

    def __post_init__(self) -> None:
        super().__post_init__()
        # Weights outside the simplex may reverse the order.
        self.preserves_accuracy = (self.mixture, self.variant) != ("logits", "released")

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.mixture == "logits":
            return self._fit_logits(logits, labels)
        objective = build_objective("mse") if self.variant == "released" else self.objective
        self.temperature, scaled = fit_temperature(logits, labels, objective)
        mixture = Mixture(logits, labels, self.temperature, objective)
        self.weights, report = mixture.fit_weights()
        return report.after(scaled)

    def _fit_logits(self, logits: Tensor, labels: Tensor) -> FitReport:
        self.weights = torch.from_numpy(START.copy()).to(logits.device)
        if self.variant == "paper":
            self.temperature, report = fit_temperature(logits, labels, self.objective)
            return report
        self.temperature, _ = released_temperatures(1, logits, labels, self.objective)
        weights = self.weights.float()
        run = ReleasedRun(self._mixed_logits, [weights], logits, labels, self.objective)
        report = run.lbfgs()
        self.weights = weights.detach().double()
        return report

    def _mixed_logits(self, weights: Sequence[Tensor], logits: Tensor) -> Tensor:
        scaled, plain = weights[0][0] / self.temperature.to(logits), weights[0][1]
        return F.log_softmax(logits * (scaled + plain), dim=1)

    def _temperatures(self, logits: Tensor) -> Tensor:
        return self.temperature.to(logits.device)

    def _transform(self, logits: Tensor) -> Tensor:
        if self.mixture == "logits":
            return self._mixed_logits([self.weights.to(logits)], logits)
        log_weights = self.weights.to(logits.device).log()
        scaled = super()._transform(logits) + log_weights[0]
        plain = F.log_softmax(logits, dim=1) + log_weights[1]
        masked = find_masked(logits)
        uniform = log_weights[2] - math.log(logits.shape[1])
        if masked is not None:
            uniform = log_weights[2] - (~masked).sum(1, keepdim=True).log()
        return torch.logaddexp(torch.logaddexp(scaled, plain), uniform)

    def _summary(self) -> dict[str, float]:
        names = ("temperature", "weight_scaled", "weight_plain", "weight_uniform")
        return dict(zip(names, [*self.temperature.tolist(), *self.weights.tolist()], strict=True))


class Mixture:
    """The loss of the mixture's fitting rows as a function of its three weights."""

    def __init__(
        self, logits: Tensor, labels: Tensor, temperature: Tensor, objective: Objective
    ) -> None:
        self._logits, self._labels = logits, labels
        self._temperature, self._objective = temperature, objective
        self._masked = find_masked(logits)
        # The label's probability in each member, (N, 3), and sums over classes of the products of
        # two members, in the order of ``PAIRS``, (N, 6).
        label, gram = [], []
        for part in row_blocks(logits):
            softmaxes = self._softmaxes(part)
            masked, classes = self._allowed(part)
            uniform = torch.ones_like(softmaxes[0]) / classes
            members = (*softmaxes, uniform if masked is None else uniform.masked_fill_(masked, 0))
            index = labels[part].unsqueeze(1)
            label.append(torch.cat([m.gather(1, index) for m in members], dim=1))
            if objective.needs_square:
                products = [(members[a] * members[b]).sum(1) for a, b in PAIRS]
                gram.append(torch.stack(products, dim=1))
        self._label = torch.cat(label)
        self._gram = torch.cat(gram) if gram else None

    def fit_weights(self) -> tuple[Tensor, FitReport]:
        """Return weights on the simplex, fitted by SLSQP, and the report.

        Adaptive row weights are updated in rounds.
        """
        adaptive, classes = self._objective.adaptive, self._logits.shape[1]
        weights, iterations = START, 0
        for _ in range(MAX_ROUNDS if adaptive else 1):
            losses, _ = self.row_losses(weights)
            counts = self._objective.row_weights(losses, self._labels, classes)
            found = self._minimize(counts, weights)
            iterations += found.nit
            moved, weights = float(np.abs(found.x - weights).max()), _on_simplex(found.x)
            if moved < TOLERANCE:
                break
        converged = bool(found.success) and (not adaptive or moved < TOLERANCE)
        fitted = torch.from_numpy(weights).to(self._labels.device)
        note = "" if converged else f"weights: {found.message}"
        if found.success and not converged:
            note = f"weights still move by {moved:.1e} after {MAX_ROUNDS} rounds"
        return fitted, FitReport(converged, iterations, float(found.fun), note)

    def row_losses(self, weights: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, (N,), and its derivative by the three weights, (N, 3)."""
        w = torch.from_numpy(np.ascontiguousarray(weights)).to(self._label.device)
        chosen = (self._label @ w).clamp(min=TINY)
        average, in_average = self._mean_log(w)
        square, in_square = self._squares(w)
        terms = RowTerms(chosen.log(), average, square, self._logits.shape[1])
        loss, pulls = row_gradients(self._objective, terms)
        to_label, to_mean, to_square = (pull.unsqueeze(1) for pull in pulls)
        in_label = to_label * (self._label / chosen.unsqueeze(1))
        return loss, in_label + to_mean * in_average + to_square * in_square

    def _minimize(self, counts: Tensor, start: np.ndarray) -> scipy.optimize.OptimizeResult:
        def evaluate(weights: np.ndarray) -> tuple[float, np.ndarray]:
            losses, pulls = self.row_losses(weights)
            return float(counts @ losses), (counts @ pulls).cpu().numpy()

        return scipy.optimize.minimize(  # type: ignore[call-overload]
            evaluate,
            start,
            jac=True,
            method="SLSQP",
            bounds=((0.0, 1.0),) * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(3)},
            options={"ftol": 1e-12, "maxiter": MAX_ITERATIONS},
        )

    def _mean_log(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean log-probability of each mixed row, (N,), and its derivative by w, (N, 3).

        Both are zeros if the objective does not need them.
        """
        if not self._objective.needs_mean:
            return torch.zeros_like(self._label[:, 0]), torch.zeros_like(self._label)
        averages, slopes = [], []
        for part in row_blocks(self._logits):
            scaled, plain = self._softmaxes(part)
            masked, classes = self._allowed(part)
            mixture = torch.add(w[2] / classes, scaled, alpha=float(w[0])).add_(
                plain, alpha=float(w[1])
            )
            averages.append(mean_allowed(mixture.clamp_(min=TINY).log(), masked))
            inverse = mixture.reciprocal_().div_(classes)
            if masked is not None:
                inverse.masked_fill_(masked, 0)
            sums = torch.linalg.vecdot(scaled, inverse), torch.linalg.vecdot(plain, inverse)
            slopes.append(torch.stack([*sums, mean_allowed(inverse, masked)], dim=1))
        return torch.cat(averages), torch.cat(slopes)

    def _squares(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of squared probabilities of each mixed row, (N,), and its derivative by w.

        Both are zeros if the objective does not need them.
        """
        if self._gram is None:
            return torch.zeros_like(self._label[:, 0]), torch.zeros_like(self._label)
        matrix = self._gram.new_zeros(len(self._gram), 3, 3)
        for column, (a, b) in enumerate(PAIRS):
            matrix[:, a, b] = matrix[:, b, a] = self._gram[:, column]
        slope = matrix @ w
        return slope @ w, 2 * slope

    def _softmaxes(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return the first two members: scaled and plain probabilities."""
        logits = self._logits[part].double()
        return (logits / self._temperature).softmax(1), logits.softmax(1)

    def _allowed(self, part: slice) -> tuple[Tensor | None, Tensor | int]:
        """Return a block's mask and number of allowed classes, (n, 1); None and K without masks."""
        if self._masked is None:
            return None, self._logits.shape[1]
        masked = self._masked[part]
        return masked, (~masked).sum(1, keepdim=True)


def _on_simplex(weights: np.ndarray) -> np.ndarray:
    clipped = weights.clip(0.0, 1.0)
    return clipped / clipped.sum()
