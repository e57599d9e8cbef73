from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, FitReport, first_argmax
from trainables.calibrators._mixing import MixedCalibrator
from trainables.calibrators._released import adam
from trainables.calibrators._temperature import divide
from trainables.calibrators.pts import forward, released_weights
from trainables.common.fields import count, fitted
from trainables.common.logit_rows import find_masked, raise_masked

NODES, LAYERS, RATE = 16, 2, 0.005
PATIENCE, LEAST_GAIN = 20, 1e-4
LOWEST = 0.1  # Lowest temperature.
BINS, WIDTH, DELTA, TINY = 15, 0.05, 1e-3, 1e-6


@CALIBRATORS.register("smart")
class MarginTemperatureScaling(MixedCalibrator):
    """A small network maps each row's margin to its temperature, fitted to a smooth ECE.

    Guo et al., Sample Margin-Aware Recalibration of Temperature (SMART), ICML 2026, arXiv
    2506.23492. The margin is the largest logit minus the second largest, standardised over the
    fitting rows; the network has two hidden layers of 16 nodes and ends in softplus plus 0.1. It
    minimises the ECE with Gaussian bins and a smooth absolute value by full-batch Adam in float32,
    as in the authors' code (seed 1, early stopping, last weights). The smooth ECE depends only on
    the predicted class's probability, so the map is mixed with temperature scaling; see
    ``MixedCalibrator``.

    Args:
        steps: Maximum number of steps of Adam. The default is that of the authors' class; their
            scripts use 2000 steps and wait 200 steps for a gain instead of 20.
    """

    preserves_accuracy = True
    steps: int = count(default=200)
    centre: Tensor = fitted()
    spread: Tensor = fitted()

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the fitted tensors; those of the network come last."""
        return (*super().state_names, *_NETWORK)

    def _fit_alone(self, logits: Tensor, labels: Tensor) -> FitReport:
        margins = margins_of(logits)
        self.centre = margins.mean().reshape(1)
        # Without the correction, a single row would give NaN.
        self.spread = margins.std(correction=min(1, len(margins) - 1)).reshape(1) + 1e-8
        weights = released_weights(1, NODES, LAYERS, logits.device)
        parameters = [weight.requires_grad_() for weight in weights]
        loss = _loss(parameters, self._inputs(margins).float(), logits.float(), labels)
        report = adam(loss, parameters, RATE, self.steps, PATIENCE, LEAST_GAIN)
        for name, tensor in zip(_NETWORK, parameters, strict=True):
            setattr(self, name, tensor.detach().double())
        return report

    def _inputs(self, margins: Tensor) -> Tensor:
        centre, spread = self.centre.to(margins.device), self.spread.to(margins.device)
        return ((margins - centre) / spread).unsqueeze(1)

    def _temperatures(self, margins: Tensor) -> Tensor:
        weights = [getattr(self, name).to(margins.device) for name in _NETWORK]
        return temperatures(weights, self._inputs(margins))

    def _transform_alone(self, logits: Tensor) -> Tensor:
        return divide([self._temperatures(margins_of(logits)).unsqueeze(1)], logits)

    def _summary(self) -> dict[str, float]:
        """Return the own map's share and its temperature at the mean margin."""
        return {"share": float(self.share), "temperature": float(self._temperatures(self.centre))}


_NETWORK = [f"{kind}_{layer}" for layer in range(LAYERS + 1) for kind in ("weight", "bias")]


def margins_of(logits: Tensor) -> Tensor:
    """Return the largest minus the second largest logit of each row, (N,), float64."""
    first, second = raise_masked(logits, find_masked(logits)).double().topk(2).values.unbind(1)
    return first - second


def temperatures(weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Return the temperature of each row, (N,), from standardised margins (N, 1)."""
    return F.softplus(forward(weights, inputs)) + LOWEST


def smooth_ece(confidences: Tensor, correct: Tensor) -> Tensor:
    """Return the ECE of rows (N,) in 15 soft bins.

    The weight of a row in a bin is a Gaussian function of the distance between its confidence and
    the bin's centre. The absolute gap of a bin is ``sqrt(gap^2 + 1e-6) - 1e-3``.
    """
    half = 0.5 / BINS
    centres = torch.linspace(half, 1 - half, BINS, device=confidences.device)
    away = (confidences.unsqueeze(1) - centres) / WIDTH
    parts = (-0.5 * away.square()).exp()
    parts = parts / (parts.sum(1, keepdim=True) + TINY)
    rows = parts.sum(0)
    gaps = (parts.T @ (confidences - correct)) / (rows + TINY)
    return ((gaps.square() + DELTA**2).sqrt() - DELTA) @ rows / (len(correct) + TINY)


def _loss(
    weights: Sequence[Tensor], inputs: Tensor, logits: Tensor, labels: Tensor
) -> Callable[[], Tensor]:
    """Return a function that computes the loss at the network's present weights."""
    below = logits - logits.amax(1, keepdim=True)
    correct = (first_argmax(logits) == labels).to(logits.dtype)

    def loss() -> Tensor:
        scaled = below / temperatures(weights, inputs).unsqueeze(1)
        return smooth_ece(scaled.exp().sum(1).reciprocal(), correct)

    return loss
