"""The form of every network, a feature extractor and a linear classifier; networks by name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

from trainables.common.errors import InputError, known_names
from trainables.common.fields import check_count
from trainables.common.registry import Catalogue
from trainables.data import ImageShape, InputShape

GRANULARITIES = ("block", "stage")


class GlobalAverage(nn.Module):
    """Averages images (N, C, H, W) over their pixels, to (N, C).

    To the last bit ``AdaptiveAvgPool2d(1)`` and ``Flatten``, with two launches fewer a gradient.
    """

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


class GlobalMaximum(nn.Module):
    """Takes the maxima of images (N, C, H, W) over their pixels, (N, C)."""

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
    """Return the parts of a network, grouped so that each group begins with a layer of weights.

    Normalisation, activation and pooling belong to the group before them.

    Args:
        module: The network, or its extractor.
        granularity: ``block`` opens every sequence that holds composite modules, down to single
            residual blocks, dense layers or transformer blocks; ``stage`` only sequences of
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
    """A classifier split where the refinements need it.

    Args:
        extractor: Maps inputs (N, ...), such as images (N, C, H, W), to features (N, D).
        classifier: Maps features (N, D) to logits (N, K).

    Attributes:
        feature_dim: D.
        num_classes: K.
        precision: What the extractor computes in, see ``trainables.stages.engine.place``.
    """

    precision: str = "float32"

    def __init__(self, extractor: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.extractor = extractor
        self.classifier = classifier
        self.feature_dim = classifier.in_features
        self.num_classes = classifier.out_features

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features (N, D) that the classifier sees."""
        return self.extractor(inputs)

    def embed(self, inputs: Tensor) -> Tensor:
        """Return inputs as real numbers that can be mixed, which the network takes as well.

        Integers, such as the numbers of words, are embedded by the extractor's first module.
        """
        if inputs.is_floating_point():
            return inputs
        return next(self.extractor.children())(inputs)

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits (N, K) of features (N, D); what a training scheme may replace."""
        with self.in_float32(features) as exact:
            return self.classifier(exact)

    @contextmanager
    def in_float32(self, features: Tensor) -> Iterator[Tensor]:
        """Give features (N, D) in the precision of the classifier's weights, autocast switched off.

        Whatever gives logits computes in this context: in bfloat16 they would have hardly three
        digits, too few for confidences, and cost as much.
        """
        device = features.device.type
        known = torch.amp.is_autocast_available(device)
        with torch.autocast(device, enabled=False) if known else nullcontext():
            yield features.to(self.classifier.weight.dtype)

    def blocks(self) -> list[nn.Module]:
        """Return modules that, applied one after the other, give the features of inputs.

        The last one is the pooling that ends the extractor, perhaps the identity. An extractor that
        is no sequence, such as a library's network, is a single block.
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


SHOWN = 32
PRETRAINED = "@pretrained"  # Ends names of networks that do not begin with random weights.

Builder = Callable[..., Network]
MODELS: Catalogue[tuple[Builder, type[InputShape]]] = Catalogue("model", "trainables.models")


def register_model(name: str, takes: type[InputShape] = ImageShape) -> Callable[[Builder], Builder]:
    """Return a decorator that makes a builder known under ``name``.

    Args:
        name: The network's name, or ``LIBRARY:`` for all names that begin so; what follows is then
            the builder's first argument.
        takes: What the builder is told of its inputs, after the number of classes.
    """

    def add(builder: Builder) -> Builder:
        MODELS.add(name, (builder, takes))
        return builder

    return add


def model_names(takes: type[InputShape] = InputShape) -> list[str]:
    """Return the names of our networks for such inputs, sorted; those of libraries work too."""
    return [
        name
        for name in MODELS.names()
        if issubclass(MODELS[name][1], takes) and not name.endswith(":")
    ]


def build_model(name: str, num_classes: int, shape: InputShape) -> Network:
    """Make a network with random weights from torch's global generator.

    Args:
        name: A name from ``model_names()``, ``timm:NAME``, ``timm:NAME@pretrained`` (weights from
            the network instead of random ones, but for the classifier) or ``torchvision:NAME``.
        num_classes: K.
        shape: What there is to know of the inputs, ``DatasetInfo.inputs.shape``.

    Raises:
        InputError: If there is no network of that name, or it cannot take such inputs.
        ValueError: If ``num_classes`` is below 1.
    """
    check_count("num_classes", num_classes)
    known = model_names()
    prefix, colon, rest = name.partition(":")
    if prefix + colon not in MODELS:
        libraries = [f"{key}NAME" for key in MODELS.names() if key.endswith(":")]
        raise unknown_model(name, [*known, *libraries])
    check_takes(name, type(shape))
    builder, _ = MODELS[prefix + colon]
    return builder(rest, num_classes, shape) if colon else builder(num_classes, shape)


def check_takes(name: str, shape: type[InputShape]) -> None:
    """Make sure that the network of a known name takes such inputs; ``InputShape`` stands for any.

    Raises:
        InputError: If not; the text says what it takes, and what the data are.
    """
    MODELS.load()
    _, takes = MODELS["".join(name.partition(":")[:2])]
    if not issubclass(shape, takes) and shape is not InputShape:
        ours = ", ".join(model_names(shape)) or "there is none"
        raise InputError(
            f"model {name!r} takes {takes.kind}, the data are {shape.kind}; for those: {ours}"
        )


@cache
def check_model(name: str) -> None:
    """Make sure that there is a network of that name, without memory for or download of weights.

    Raises:
        InputError: If there is none, or refinements and calibrators cannot build on it.
    """
    if name not in model_names():
        with torch.device("meta"):
            build_model(name.removesuffix(PRETRAINED), 10, ImageShape(3, 32))


def unknown_model(name: str, known: Sequence[str]) -> InputError:
    """Return the error for a name that is not in ``known``: near names, or a list where short."""
    listed = known_names(name, known, "models")
    if listed.startswith("there") and len(known) > SHOWN:
        first = [*known[:SHOWN], f"... ({len(known) - SHOWN} more)"]
        listed = known_names(name, first, "models")
    return InputError(f"unknown model {name!r}; {listed}")
