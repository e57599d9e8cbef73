import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.common.fields import fitted, number
from trainables.losses import Loss, loss_aside
from trainables.models import Network
from trainables.schemes._base import SCHEMES, Scheme

FIRST_WEIGHT = 0.8
TOLERANCE = 1e-4


def simplex_frame(feature_dim: int, num_classes: int) -> Tensor:
    """Return a random simplex equiangular tight frame, (D, K), 2 <= K <= D, with unit columns.

    ``sqrt(K / (K - 1)) P (I - 1 1^T / K)``, where P is an orthonormal basis of the columns of a
    matrix of uniform random numbers from torch's global generator.
    """
    if not 2 <= num_classes <= feature_dim:
        raise ValueError(f"num_classes={num_classes} is outside [2, {feature_dim}]")
    basis, _ = torch.linalg.qr(torch.rand(feature_dim, num_classes))
    return frame_of(basis)


def frame_of(basis: Tensor) -> Tensor:
    """Return the simplex frame in the span of an orthonormal ``basis`` (D, K)."""
    count = basis.shape[1]
    centred = torch.eye(count).to(basis) - 1 / count
    return math.sqrt(count / (count - 1)) * basis @ centred


def class_lengths(targets: Tensor, num_classes: int) -> Tensor:
    """Return the length of each class's column of the frame, (K,), from the targets of a batch.

    ``sqrt((rows / classes present) / rows of the class)``; 1 for a class that is absent.
    """
    counts = torch.zeros(num_classes, device=targets.device)
    counts.index_add_(0, targets, torch.ones_like(targets, dtype=counts.dtype))
    share = counts.sum() / (counts > 0).sum().clamp(min=1)
    return torch.where(counts > 0, (share / counts.clamp(min=1)).sqrt(), 1.0)


def balancing_weight(
    linear_logits: Tensor,
    frame_logits: Tensor,
    targets: Tensor,
    delta: float,
    tolerance: float = TOLERANCE,
) -> float:
    """Search the weight of the linear classifier by bisection, on the device.

    The mixture ``w * linear + (1 - w) * frame`` of logits (N, K) should have a mean confidence of
    ``delta`` times the accuracy. As in the released code, the result is the last mid-point whose
    absolute gap is smaller than that of w = 1. It is 1 if there is none, or if the linear
    classifier alone is not confident enough. The search ends when the interval is as small as the
    tolerance.
    """
    first_gap = _excess(linear_logits, targets, delta)
    left, right = torch.zeros_like(first_gap), torch.ones_like(first_gap)
    found = torch.ones_like(first_gap)
    for _ in range(math.ceil(-math.log2(tolerance))):
        middle = (left + right) / 2
        mixed = torch.lerp(frame_logits, linear_logits, middle.to(linear_logits.dtype))
        gap = _excess(mixed, targets, delta)
        found = torch.where(gap.abs() < first_gap.abs(), middle, found)
        timid = gap < 0
        left, right = torch.where(timid, middle, left), torch.where(timid, right, middle)
    return float(torch.where(first_gap < 0, 1.0, found))


class BalancedNetwork(Network):
    """A network with a second classifier: an adaptor before a fixed simplex frame.

    The adaptor is a residual bottleneck with batch normalisation. In the released code it has two
    3x3 convolutions before the pooling; here it has two linear layers after the pooling, so that it
    works with every network and the linear classifier keeps its ``features``. If there are fewer
    features than classes, they are padded with zeros to K dimensions.
    """

    frame: Tensor
    weight: Tensor

    def __init__(self, extractor: nn.Module, classifier: nn.Linear) -> None:
        super().__init__(extractor, classifier)
        width = max(self.feature_dim, self.num_classes)
        self.missing = width - self.feature_dim
        bottleneck = max(width // 2, 1)
        self.adaptor = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, bottleneck, bias=False),
            nn.BatchNorm1d(bottleneck),
            nn.ReLU(),
            nn.Linear(bottleneck, width, bias=False),
        )
        self.adaptor_end = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU())
        self.register_buffer("frame", simplex_frame(width, self.num_classes))
        self.register_buffer("weight", torch.tensor(FIRST_WEIGHT))

    def classify(self, features: Tensor) -> Tensor:
        """Return the mixture of both classifiers' logits, (N, K)."""
        linear, frame = self.both(features)
        return self.weight * linear + (1 - self.weight) * frame

    def both(self, features: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits (N, K) of the linear and of the simplex classifier.

        The frame's columns have ``lengths`` (K,), by default 1.
        """
        frame = self.frame if lengths is None else self.frame * lengths
        with self.in_float32(features) as exact:
            padded = F.pad(exact, (0, self.missing))
            adapted = self.adaptor_end(padded + self.adaptor(padded))
            return self.classifier(exact), F.normalize(adapted, dim=1) @ frame


@SCHEMES.register("balcal")
class BalCAL(Scheme):
    """Balances a learnt linear classifier and a fixed simplex one (Ni et al., CVPR 2025).

    The logits of the simplex classifier are in [-1, 1] times the class lengths, so that it is never
    confident. After each epoch, the weight of the linear classifier is searched on the epoch's
    outputs, such that the mean confidence is ``delta`` times the accuracy. The loss is the same
    mixture of both classifiers' losses, and in training the columns of rare classes are longer.

    Follows the released code, except for the position of the adaptor (``BalancedNetwork``). The
    released script runs ``delta = 0.95`` on CIFAR-10; its argument defaults to 1.

    Cannot be combined with an augmentation that computes the loss from mixed inputs: each
    classifier has its own loss, and the search needs outputs with labels.

    Args:
        delta: Target of the confidence, as a factor of the training accuracy, in (0, 2].
    """

    forms_loss = True
    not_for: ClassVar = {
        "images-with-masks": "its second classifier takes one feature vector per image"
    }

    delta: float = number(default=0.95, low=0.0, high=2.0, open_low=True)
    # Logits of both classifiers, (2, N, K), for the epoch's rows so far.
    _logits: Tensor = fitted()
    _targets: Tensor = fitted()
    _seen: Tensor = fitted()

    def prepare(self, num_samples: int) -> None:
        """Store the number of training rows."""
        self._num_samples = num_samples

    def attach(self, network: Network, num_classes: int) -> Network:
        """Return the network with a second classifier."""
        return BalancedNetwork(network.extractor, network.classifier)

    def start_epoch(self, network: Network, epoch: int, epochs: int) -> None:
        """Allocate tensors for the epoch's outputs."""
        frame = _balanced(network).frame
        self._logits = frame.new_empty(2, self._num_samples, frame.shape[1])
        self._targets = frame.new_empty(self._num_samples, dtype=torch.int64)
        self._seen = frame.new_zeros((), dtype=torch.int64)

    def training_loss(
        self, network: Network, loss: Loss, inputs: Tensor, targets: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted loss of both classifiers and the mixed logits."""
        balanced = _balanced(network)
        lengths = class_lengths(targets, balanced.num_classes)
        linear, frame = balanced.both(balanced.features(inputs), lengths)
        self._keep(torch.stack((linear, frame)).detach(), targets)
        weight = balanced.weight
        total = weight * loss(linear, targets, indices)
        total = total + (1 - weight) * loss_aside(loss, frame, targets, indices)
        return total, weight * linear + (1 - weight) * frame

    def end_epoch(self, network: Network, epoch: int) -> dict[str, float]:
        """Fit the weight on the epoch's outputs; return it as ``balcal_weight``."""
        seen = int(self._seen)
        linear, frame = self._logits[:, :seen]
        weight = balancing_weight(linear, frame, self._targets[:seen], self.delta)
        del self._logits, self._targets
        _balanced(network).weight.fill_(weight)
        return {"balcal_weight": weight}

    def _keep(self, logits: Tensor, targets: Tensor) -> None:
        """Store a step's outputs; a tensor counts rows, because a GPU may replay the step alone."""
        rows = self._seen + torch.arange(len(targets), device=targets.device)
        self._logits.index_copy_(1, rows, logits)
        self._targets.index_copy_(0, rows, targets)
        self._seen += len(targets)


def _excess(logits: Tensor, targets: Tensor, delta: float) -> Tensor:
    """Return mean confidence minus ``delta`` times accuracy, a scalar."""
    confidences, predictions = logits.softmax(dim=1).max(dim=1)
    return confidences.mean() - delta * (predictions == targets).to(confidences.dtype).mean()


def _balanced(network: Network) -> BalancedNetwork:
    if not isinstance(network, BalancedNetwork):
        raise TypeError(f"balcal needs its own network, not {type(network).__name__}")
    return network
