"""Heads on cached features: a linear layer, or one hidden layer before it."""

import torch
from torch import Tensor, nn

from trainables.data import FeatureShape
from trainables.models._base import Network, register_model

HIDDEN = 256


class Standardised(nn.Module):
    """Subtracts the mean of each training feature and divides by its deviation.

    The constants are stored with the weights, so that an exported chain takes plain features.
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
        return (features - self.mean) * self.scale


@register_model("linear", takes=FeatureShape)
def linear(num_classes: int, shape: FeatureShape) -> Network:
    """Return a linear layer on standardised features."""
    return Network(nn.Sequential(Standardised(shape)), nn.Linear(shape.width, num_classes))


@register_model("mlp", takes=FeatureShape)
def mlp(num_classes: int, shape: FeatureShape) -> Network:
    """Return a hidden layer of 256 with ReLU on standardised features, and a linear layer."""
    hidden = nn.Sequential(nn.Linear(shape.width, HIDDEN), nn.ReLU(inplace=True))
    return Network(nn.Sequential(Standardised(shape), hidden), nn.Linear(HIDDEN, num_classes))
