import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from trainables.data import ImageShape
from trainables.models._base import GlobalMaximum, Network, register_model

PATCH = 2
WIDTHS = (32, 128, 128)


class WhitenedPatches(nn.Module):
    """Maps patches of 2 x 2 pixels to decorrelated coefficients and their negatives.

    A cosine transform over rows, columns and channels is nearly the principal axes of natural
    images (Ahmed et al., 1974), and batch normalisation scales each to unit variance. The transform
    is fixed and does not depend on the data.

    Args:
        channels: C of the images.
    """

    kernel: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        side = cosine_basis(PATCH)
        kernel = torch.einsum("ac,bh,dw->abdchw", cosine_basis(channels), side, side)
        self.register_buffer("kernel", kernel.reshape(-1, channels, PATCH, PATCH), persistent=False)
        self.norm = nn.BatchNorm2d(len(self.kernel), affine=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return coefficients (N, 8C, H-1, W-1) of images (N, C, H, W)."""
        found = self.norm(nn.functional.conv2d(images, self.kernel))
        return torch.cat((found, -found), dim=1)


def cosine_basis(size: int) -> Tensor:
    """Return the orthonormal cosine basis (DCT-II) of vectors of ``size``, in rows."""
    place = torch.arange(size)
    basis = torch.cos(math.pi / size * place[:, None] * (place + 0.5)) * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis


@register_model("whitened-cnn")
def whitened_cnn(num_classes: int, shape: ImageShape) -> Network:
    """Return six convolutions on whitened patches, for short trainings on a CPU.

    The architecture is airbench94's (Jordan, 2024: arXiv 2404.00498) at about half its width, with
    convolutions that are initialised as the identity.
    """
    widths = (2 * PATCH**2 * shape.channels, *WIDTHS)
    layers: list[nn.Module] = [WhitenedPatches(shape.channels), nn.GELU()]
    for before, after in pairwise(widths):
        layers += [
            _identity_convolution(before, after),
            nn.MaxPool2d(2, ceil_mode=shape.size < 2**5),
        ]
        layers += [nn.BatchNorm2d(after), nn.GELU()]
        layers += [_identity_convolution(after, after), nn.BatchNorm2d(after), nn.GELU()]
    return Network(nn.Sequential(*layers, GlobalMaximum()), nn.Linear(widths[-1], num_classes))


def _identity_convolution(before: int, after: int) -> nn.Conv2d:
    convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight.data[:before])
    return convolution
