from itertools import pairwise

from torch import nn

from trainables.data import ImageShape
from trainables.models._base import Network, register_model


@register_model("convnet")
def convnet(num_classes: int, shape: ImageShape) -> Network:
    """Return three convolutions with batch normalisation and a 64-dimensional feature layer.

    No paper uses it, so its numbers are not comparable with published ones.
    """
    widths = (shape.channels, 16, 32, 64)
    layers: list[nn.Module] = []
    for position, (inputs, outputs) in enumerate(pairwise(widths)):
        stride = 2 if position else 1
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Network(nn.Sequential(*layers), nn.Linear(widths[-1], num_classes))
