"""The base class of networks: a feature extractor and a linear classifier."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from trainables.models._registry import register_model as register_model

GRANULARITIES = ("block", "stage")


class GlobalAverage(nn.Module):
    """``AdaptiveAvgPool2d(1)`` and ``Flatten``, with two kernel launches fewer per gradient."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


class GlobalMaximum(nn.Module):
    """Returns the maxima of images (N, C, H, W) over their pixels, (N, C)."""

    def forward(self, images: Tensor) -> Tensor:
        return images.amax(dim=(2, 3))


_POOLING = (
    GlobalAverage,
    GlobalMaximum,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.AvgPool2d,
    nn.Flatten,
    nn.Identity,
    nn.MaxPool2d,
)


def units(module: nn.Module, granularity: str) -> list[list[nn.Module]]:
    """Return the modules of a network in groups.

    Each module with weight matrices begins a group. Normalisation, activation and pooling belong to
    the group of the layer before them.

    Args:
        module: The network, or its extractor.
        granularity: ``block`` opens every sequence that has composite modules, down to single
            residual blocks, dense layers or transformer blocks; ``stage`` opens only sequences of
            sequences, down to runs of such blocks.
    """
    groups: list[list[nn.Module]] = []
    for part in _opened(list(module.children()), granularity):
        if not groups or _has_weights(part):
            groups.append([])
        groups[-1].append(part)
    return groups


def _opened(parts: list[nn.Module], granularity: str) -> list[nn.Module]:
    found = []
    for part in parts:
        children = list(part.children())
        if isinstance(part, nn.Sequential) and _opens(children, granularity):
            found += _opened(children, granularity)
        else:
            found.append(part)
    return found


def _opens(children: list[nn.Module], granularity: str) -> bool:
    if granularity == "stage":
        return bool(children) and all(isinstance(child, nn.Sequential) for child in children)
    return any(list(child.children()) for child in children)


def _has_weights(part: nn.Module) -> bool:
    return any(parameter.ndim > 1 for parameter in part.parameters())


def _is_pooling(part: nn.Module) -> bool:
    leaves = [module for module in part.modules() if not list(module.children())]
    return all(isinstance(leaf, _POOLING) for leaf in leaves)


class Network(nn.Module):
    """A network split into feature extractor and classifier, as refinements need it.

    Args:
        extractor: Maps inputs (N, ...), such as images (N, C, H, W), to features (N, D).
        classifier: Maps features (N, D) to logits (N, K).

    Attributes:
        feature_dim: D.
        num_classes: K.
        precision: Type of the extractor's computations; see ``trainables.stages.engine.place``.
    """

    precision: str = "float32"

    def __init__(self, extractor: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier
        self.feature_dim = classifier.in_features
        self.num_classes = classifier.out_features

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features (N, D)."""
        return self.extractor(inputs)

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the inputs as floats that can be interpolated; the network accepts these as well.

        Integer inputs, such as word ids, are embedded by the extractor's first module.
        """
        if inputs.is_floating_point():
            return inputs
        return next(self.extractor.children())(inputs)

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits (N, K) of features (N, D); training schemes may replace this."""
        with self.in_float32(features) as exact:
            return self.classifier(exact)

    @contextmanager
    def in_float32(self, features: Tensor) -> Iterator[Tensor]:
        """Yield features (N, D) in the precision of the classifier's weights, without autocast.

        Compute logits in this context: in bfloat16 they would have less than three digits, too few
        for confidences, and would not be faster.
        """
        device = features.device.type
        known = torch.amp.is_autocast_available(device)
        with torch.autocast(device, enabled=False) if known else nullcontext():
            yield features.to(self.classifier.weight.dtype)

    def blocks(self) -> list[nn.Module]:
        """Return modules whose composition is the extractor.

        The last one is the final pooling, or the identity. An extractor that is not a sequence,
        such as a library's network, is a single block.
        """
        if not isinstance(self.extractor, nn.Sequential):
            return [self.extractor, nn.Identity()]
        groups = units(self.extractor, "stage")
        pooling: list[nn.Module] = []
        while groups and groups[-1] and _is_pooling(groups[-1][-1]):
            pooling.insert(0, groups[-1].pop())
        return [nn.Sequential(*group) for group in [*filter(None, groups), pooling]]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        return self.classify(self.features(inputs))
