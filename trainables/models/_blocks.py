"""Building blocks that several network families share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.common.errors import InputError
from trainables.data import ImageShape
from trainables.models._base import Network

EXPANSION = 4  # Output channels of a bottleneck divided by its width.

BlockMaker = Callable[[int, int, int], nn.Module]
"""Makes one block from its input channels, output channels and stride."""


class Residual(nn.Module):
    """``relu(shortcut(x) + branch(x))``, the unit of He et al. (2016a)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H', W')."""
        return F.relu(self.shortcut(images) + self.branch(images))


class PreActivation(nn.Module):
    """A residual unit whose normalisation and activation come first (He et al. 2016b).

    The shortcut is the identity if shapes are equal, else a 1x1 convolution.

    Args:
        branch: The branch, applied to the activated input; it ends with a convolution.
        inputs: Channels of the input.
        outputs: Channels of the branch's output.
        stride: Stride of the branch.
        bias: Whether the shortcut's convolution has a bias.
        from_activated: Whether the shortcut's convolution is applied to the activated input (as in
            the papers) or to the raw input (as in several released codes).
    """

    def __init__(
        self,
        branch: nn.Module,
        inputs: int,
        outputs: int,
        stride: int,
        bias: bool = False,
        from_activated: bool = False,
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.branch = branch
        changes = stride > 1 or inputs != outputs
        self.shortcut = convolution(inputs, outputs, 1, stride, bias) if changes else nn.Identity()
        self.from_activated = from_activated and changes

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H', W')."""
        activated = F.relu(self.norm(images))
        carried = self.shortcut(activated if self.from_activated else images)
        return carried + self.branch(activated)


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False
) -> nn.Conv2d:
    """Return a convolution padded by half its odd ``kernel``: stride 1 keeps the image size."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)


def norm_relu(channels: int) -> list[nn.Module]:
    """Return batch normalisation and a ReLU."""
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def stem(channels: int, outputs: int) -> nn.Sequential:
    """Return the first layer of a post-activation network for small images: 3x3, no pooling."""
    return nn.Sequential(convolution(channels, outputs, 3), *norm_relu(outputs))


def basic_branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return the two 3x3 convolutions of a post-activation basic block."""
    return nn.Sequential(
        convolution(inputs, outputs, 3, stride),
        *norm_relu(outputs),
        convolution(outputs, outputs, 3),
        nn.BatchNorm2d(outputs),
    )


def bottleneck_branch(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    """Return 1x1, 3x3 and 1x1 convolutions; the inner width is a quarter of the output channels."""
    width = outputs // EXPANSION
    return [
        convolution(inputs, width, 1),
        *norm_relu(width),
        convolution(width, width, 3, stride),
        *norm_relu(width),
        convolution(width, outputs, 1),
    ]


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the identity if shapes are equal, else a 1x1 convolution with normalisation."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def basic_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return a basic residual block, with a projection if the shape changes."""
    return Residual(basic_branch(inputs, outputs, stride), projection(inputs, outputs, stride))


def stages(
    inputs: int, widths: Sequence[int], counts: Sequence[int], block: BlockMaker
) -> nn.Sequential:
    """Return one stage per width, with the number of blocks in ``counts``.

    All stages but the first halve the image size.
    """
    parts: list[nn.Module] = []
    for position, (width, count) in enumerate(zip(widths, counts, strict=True)):
        blocks = [block(inputs, width, 2 if position else 1)]
        blocks += [block(width, width, 1) for _ in range(count - 1)]
        parts.append(nn.Sequential(*blocks))
        inputs = width
    return nn.Sequential(*parts)


def assemble(layers: Sequence[nn.Module], feature_dim: int, num_classes: int) -> Network:
    """Make a network of an extractor's layers and a new classifier, and initialise convolutions.

    Convolutions are initialised as in He et al. (2015) with ``fan_out``, as in the released
    networks of these families; normalisation and classifier keep torch's defaults.
    """
    extractor = nn.Sequential(*layers)
    for module in extractor.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return Network(extractor, nn.Linear(feature_dim, num_classes))


def split_at_classifier(
    name: str, model: nn.Module, classifier: nn.Module | None, shape: ImageShape
) -> Network:
    """Split a library's network before its last layer, and test the parts with a blank image.

    ``classifier`` is the module of ``model`` that returns the logits, and must be linear; the
    identity replaces it in ``model``.
    """
    places = [place for place, module in model.named_modules() if module is classifier]
    if not isinstance(classifier, nn.Linear) or not places:
        raise InputError(
            f"{name} does not end with a linear layer, whose inputs are the features for "
            "refinements; use another network"
        )
    model.set_submodule(places[0], nn.Identity())
    network = Network(model, classifier)
    try:
        with torch.no_grad():
            network.eval()(shape.blank(classifier.weight.device))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise cannot_take(name, shape, error) from error
    return network.train()


def cannot_take(name: str, shape: ImageShape, error: Exception) -> InputError:
    """Return the error for a library's network that does not accept images of a shape."""
    reason = " ".join(str(error).split())
    images = f"{shape.channels} x {shape.size} x {shape.size}"
    return InputError(f"{name} cannot be built for {images} images: {reason}")
