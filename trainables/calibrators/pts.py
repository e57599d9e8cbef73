import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.calibrators._base import CALIBRATORS, FitReport, by_block
from trainables.calibrators._minimize import TemperaturePasses, WeightedLoss, minimize
from trainables.calibrators._released import ReleasedRun
from trainables.calibrators._temperature import (
    HIGH,
    LOW,
    TemperatureCalibrator,
    TemperatureFit,
    divide,
)
from trainables.common.fields import choice, count, fitted, number
from trainables.common.logit_rows import find_masked, raise_masked

RELEASED_SEED = 1
MAX_ITERATIONS = 200
TOLERANCE = 1e-7


@CALIBRATORS.register("pts")
class ParametrizedTemperatureScaling(TemperatureCalibrator):
    """A small network predicts each row's temperature from its largest logits.

    Tomani et al., ECCV 2022. The inputs are the ``top`` largest log-probabilities in descending
    order, or all if there are fewer classes (not logits, so that files of logits and files of
    probabilities give the same result). The output is added to the logarithm of the common
    temperature and is 0 at first; T stays in [0.01, 100]. The fit is full-batch L-BFGS, so it is
    deterministic and practically never worse than ``ts`` on its rows. Do not use it with a few
    hundred rows, which it overfits.

    Args:
        top: Number of the network's inputs.
        nodes: Number of nodes of each hidden layer.
        layers: Number of hidden layers.
        weight_decay: Weight of half the squared norm of the network's weights, >= 0, in the units
            of the mean loss. With the paper's 0.002, the network overfits a few thousand rows; with
            0.02, an option of the released code, it overfits 300 rows. The default does not.
        seed: Seed of the initial weights.
        variant: ``paper`` as above; ``released`` repeats the class-wise scaling code: raw logits,
            the network's output (with any sign) as the temperature, no decay, 1000 steps of Adam in
            float32 from PyTorch's default weights with seed 1 (that code uses 4 layers, 2 nodes).
            Negative temperatures reverse the order of classes, so ``released`` does not keep
            accuracy; ``paper`` does.
    """

    transfers = True
    top: int = count(default=10)
    nodes: int = count(default=5)
    layers: int = count(default=2)
    weight_decay: float = number(default=0.05, low=0.0)
    seed: int = count(default=0, low=0)
    variant: str = choice(default="paper", choices=("paper", "released"))
    centre: Tensor = fitted()
    scale: Tensor = fitted()
    common: Tensor = fitted()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.preserves_accuracy = self.variant == "paper"

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the fitted tensors; those of the network come last."""
        return (*super().state_names, *self._network_names())

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        if self.variant == "released":
            return self._fit_as_released(logits, labels)
        passes = TemperaturePasses(logits, labels, self.objective)
        common, _ = TemperatureFit(passes).solve()
        self.common = common.log()
        features = self._largest(logits)
        self.centre = features.mean(0)
        self.scale = features.std(0, correction=0).clamp(min=1e-12)
        inputs = (features - self.centre) / self.scale
        start = initial_weights(inputs.shape[1], self.nodes, self.layers, self.seed, logits.device)
        loss = _NetworkLoss(passes, self.common, inputs, self.weight_decay)
        found, report = minimize(loss, start, MAX_ITERATIONS, TOLERANCE)
        self._keep(found)
        return report

    def _fit_as_released(self, logits: Tensor, labels: Tensor) -> FitReport:
        width = min(self.top, logits.shape[1])
        weights = released_weights(width, self.nodes, self.layers, logits.device)
        self.common = torch.zeros(1, dtype=torch.float64)
        self.centre = torch.zeros(width, dtype=torch.float64)
        self.scale = torch.ones(width, dtype=torch.float64)

        def transform(parameters: Sequence[Tensor], z: Tensor) -> Tensor:
            return divide([forward(parameters, _top(z, width)).unsqueeze(1)], z)

        report = ReleasedRun(transform, weights, logits, labels, self.objective).adam()
        self._keep([w.detach().double() for w in weights])
        return report

    def _takes(self, classes: int) -> bool:
        return min(self.top, classes) == len(self.centre)

    def _largest(self, logits: Tensor) -> Tensor:
        """Return the largest log-probabilities of each row in descending order, (N, top)."""
        width = min(self.top, logits.shape[1])
        return by_block(logits, lambda rows: _top(F.log_softmax(rows.double(), dim=1), width))

    def _temperatures(self, logits: Tensor) -> Tensor:
        weights = [getattr(self, name).to(logits.device) for name in self._network_names()]
        if self.variant == "released":
            return forward(weights, _top(logits, min(self.top, logits.shape[1])))
        kept = self.centre, self.scale, self.common
        centre, scale, common = (tensor.to(logits.device) for tensor in kept)
        inputs = (self._largest(logits) - centre) / scale
        return (common + forward(weights, inputs)).clamp(LOW, HIGH).exp()

    def _network_names(self) -> list[str]:
        layers = range(self.layers + 1)
        return [f"{kind}_{layer}" for layer in layers for kind in ("weight", "bias")]

    def _keep(self, weights: Sequence[Tensor]) -> None:
        for name, tensor in zip(self._network_names(), weights, strict=True):
            setattr(self, name, tensor)

    def _summary(self) -> dict[str, float]:
        """Return the common ``temperature`` (1 for ``released``)."""
        return {"temperature": float(self.common.exp())}


class _NetworkLoss(WeightedLoss):
    """The loss of rows with temperatures from a network, with decay of its weights."""

    def __init__(
        self, passes: TemperaturePasses, common: Tensor, inputs: Tensor, weight_decay: float
    ) -> None:
        super().__init__(passes.logits, passes.labels, passes.objective)
        self._passes, self._common, self._inputs = passes, common, inputs
        self._weight_decay = weight_decay

    def row_losses(self, parameters: Sequence[Tensor]) -> Tensor:
        return self._passes(self._log_temperatures(parameters)).loss

    def evaluate(
        self, parameters: Sequence[Tensor], weights: Tensor
    ) -> tuple[float, Sequence[Tensor]]:
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in parameters]
            theta = self._log_temperatures(leaves)
        rows = self._passes(theta.detach())
        slopes = torch.autograd.grad(theta, leaves, weights * rows.slope)
        decay = self._weight_decay * weights.sum()
        norm = torch.stack([p.square().sum() for p in parameters]).sum()
        value = float(weights @ rows.loss) + float(0.5 * decay * norm)
        return value, [s + decay * p for s, p in zip(slopes, parameters, strict=True)]

    def _log_temperatures(self, weights: Sequence[Tensor]) -> Tensor:
        return (self._common + forward(weights, self._inputs)).clamp(LOW, HIGH)


def _top(rows: Tensor, width: int) -> Tensor:
    """Return the largest entries of each row; masked ones count as the smallest allowed one."""
    return raise_masked(rows, find_masked(rows)).topk(width).values


def forward(weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Return the network's output for each row, (N,), with ReLU between layers."""
    hidden = inputs
    for layer in range(0, len(weights) - 2, 2):
        hidden = F.relu(F.linear(hidden, weights[layer], weights[layer + 1]))
    return F.linear(hidden, weights[-2], weights[-1]).squeeze(1)


def initial_weights(
    inputs: int, nodes: int, layers: int, seed: int, device: torch.device
) -> list[Tensor]:
    """Return He-normal hidden layers from the seed and a last layer of zeros, float64."""
    draw = torch.Generator().manual_seed(seed)
    tensors: list[Tensor] = []
    for width in (inputs, *[nodes] * (layers - 1)):
        spread = math.sqrt(2 / width)
        drawn = torch.randn(nodes, width, generator=draw, dtype=torch.float64) * spread
        tensors += [drawn, torch.zeros(nodes, dtype=torch.float64)]
    tensors += [torch.zeros(1, nodes, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    return [tensor.to(device) for tensor in tensors]


def released_weights(inputs: int, nodes: int, layers: int, device: torch.device) -> list[Tensor]:
    """Return the initial float32 weights of PyTorch's linear layers with the released seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RELEASED_SEED)
        widths = [inputs, *[nodes] * layers, 1]
        modules = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    parameters = (p for module in modules for p in module.parameters())
    return [p.detach().to(device) for p in parameters]
