"""Heads on cached features: linear, with a hidden layer, or initialised by class embeddings."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.data import FeatureShape
from trainables.models._base import Network, register_model

HIDDEN = 256
REDUCTION, RATIO = 4, 0.2  # As in CLIP-Adapter, section 3.2 and released code.


class Standardised(nn.Module):
    """Subtracts the training mean of each feature and divides by its standard deviation.

    The constants are stored with the weights, so that an exported chain accepts raw features.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: FeatureShape) -> None:
        super().__init__()
        constants = (shape.mean or (0.0,) * shape.width, shape.std or (1.0,) * shape.width)
        mean, std = (torch.tensor(each, dtype=torch.float64) for each in constants)
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", (1 / std).float())

    def forward(self, features: Tensor) -> Tensor:
        """Return the standardised features (N, D)."""
        return (features - self.mean).mul_(self.scale)


@register_model("linear", takes=FeatureShape)
def linear(num_classes: int, shape: FeatureShape) -> Network:
    """Return a linear layer on standardised features."""
    return Network(nn.Sequential(Standardised(shape)), nn.Linear(shape.width, num_classes))


@register_model("mlp", takes=FeatureShape)
def mlp(num_classes: int, shape: FeatureShape) -> Network:
    """Return a hidden layer of 256 with ReLU on standardised features, and a linear layer."""
    hidden = nn.Sequential(nn.Linear(shape.width, HIDDEN), nn.ReLU(inplace=True))
    return Network(nn.Sequential(Standardised(shape), hidden), nn.Linear(HIDDEN, num_classes))


class Unit(nn.Module):
    """Divides each row by its length."""

    def forward(self, features: Tensor) -> Tensor:
        """Return features (N, D) of length 1."""
        return F.normalize(features)


class Adapter(nn.Module):
    """``0.2 A(f) + 0.8 f``, divided by its length; A has two layers without bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(1, width // REDUCTION)
        down, up = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.layers = nn.Sequential(down, nn.ReLU(inplace=True), up, nn.ReLU(inplace=True))

    def forward(self, features: Tensor) -> Tensor:
        """Return the adapted features (N, D) of length 1."""
        return F.normalize(RATIO * self.layers(features) + (1 - RATIO) * features)


@register_model("probe", takes=FeatureShape)
def probe(num_classes: int, shape: FeatureShape) -> Network:
    """Return a linear layer on unit features, initialised as the zero-shot classifier."""
    return Network(nn.Sequential(Unit()), _zero_shot("probe", num_classes, shape))


@register_model("clip-adapter", takes=FeatureShape)
def clip_adapter(num_classes: int, shape: FeatureShape) -> Network:
    """Return CLIP-Adapter on image features (Gao et al., IJCV 2023, arXiv 2110.04544).

    The classifier is the zero-shot one and is fixed; only the adapter of the features learns.
    """
    classifier = _zero_shot("clip-adapter", num_classes, shape).requires_grad_(False)
    return Network(nn.Sequential(Unit(), Adapter(shape.width)), classifier)


def _zero_shot(model: str, num_classes: int, shape: FeatureShape) -> nn.Linear:
    classifier = nn.Linear(shape.width, num_classes)
    with torch.no_grad():
        classifier.weight.copy_(torch.tensor(shape.class_weights(model)))
        classifier.bias.zero_()
    return classifier
