"""A training method of a recipe: a loss, an augmentation, a scheme, or several together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from trainables.augmentations import AUGMENTATIONS
from trainables.common.errors import InputError, known_names
from trainables.common.later import Generator, Tensor
from trainables.common.outlines import outlined
from trainables.common.registry import Registry
from trainables.losses import LOSSES, build_loss
from trainables.schemes import SCHEMES

if TYPE_CHECKING:
    from trainables.augmentations import Augmentation
    from trainables.losses import Loss
    from trainables.models import Network
    from trainables.schemes import Scheme

_REGISTRIES: dict[str, Registry[Any]] = {
    "loss": LOSSES,
    "augmentation": AUGMENTATIONS,
    "scheme": SCHEMES,
}


def method_names() -> list[str]:
    """Return the names of all methods, sorted."""
    return sorted(name for registry in _REGISTRIES.values() for name in registry.names())


def method_kind(name: str) -> str | None:
    """Return ``loss``, ``augmentation`` or ``scheme``, or None if there is no such method."""
    return next((kind for kind, registry in _REGISTRIES.items() if name in registry), None)


class TrainingMethod:
    """A loss, with an optional augmentation and training scheme.

    Args:
        loss: The loss.
        augmentation: Computes the loss of a batch, if given.
        scheme: Decides which weights are trained when; the default trains all in every epoch.
    """

    def __init__(
        self, loss: Loss, augmentation: Augmentation | None = None, scheme: Scheme | None = None
    ) -> None:
        self.loss = loss
        self.augmentation = augmentation
        self.scheme = scheme or _usual_scheme()

    def attach(self, network: Network, num_samples: int, num_classes: int) -> Network:
        """Prepare for a training set and return the network to train."""
        self.loss.prepare(num_samples, num_classes)
        self.scheme.prepare(num_samples)
        return self.scheme.attach(network, num_classes)

    def start_epoch(self, network: Network, epoch: int, epochs: int) -> None:
        """Prepare epoch ``epoch`` (from 0) of ``epochs``."""
        self.loss.start_epoch(epoch)
        self.scheme.start_epoch(network, epoch, epochs)

    def draw(self, network: Network, inputs: Tensor, generator: Generator) -> tuple[Tensor, ...]:
        """Draw a batch's random values, on the CPU; see ``Augmentation.draw``."""
        if self.augmentation is None:
            return ()
        return self.augmentation.draw(network, inputs, generator)

    def training_loss(
        self, network: Network, inputs: Tensor, targets: Tensor, indices: Tensor, *drawn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the scalar to minimise and the logits (N, K) of a batch.

        ``drawn`` is the result of ``draw``, on the inputs' device.
        """
        if self.augmentation is not None:
            return self.augmentation.training_loss(
                network, self.loss, inputs, targets, indices, *drawn
            )
        return self.scheme.training_loss(network, self.loss, inputs, targets, indices)

    def end_epoch(self, network: Network, epoch: int) -> dict[str, float]:
        """Finish an epoch and return metrics to track."""
        return {**self.loss.end_epoch(), **self.scheme.end_epoch(network, epoch)}


def _usual_scheme() -> Scheme:
    from trainables.schemes import Scheme  # It imports PyTorch.

    return Scheme()


def build_method(parts: Mapping[str, Mapping[str, Any]]) -> TrainingMethod:
    """Make a training method from its parts, such as ``{"mbls": {"margin": 6.0}, "mixup": {}}``.

    Args:
        parts: Hyper-parameters by name; at most one loss, one augmentation and one scheme. The
            default loss is cross-entropy.

    Raises:
        InputError: If a part is unknown, or parts cannot be combined.
        ValueError: If a hyper-parameter is out of its range.
    """
    built = _built(parts)
    return TrainingMethod(
        built.get("loss") or build_loss("ce"), built.get("augmentation"), built.get("scheme")
    )


def check_method(parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise the errors of ``build_method``; import PyTorch only if the parts need it."""
    outlined(partial(_built, parts))


def _built(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    built: dict[str, Any] = {}
    for name, parameters in parts.items():
        kind = method_kind(name)
        if kind is None:
            known = known_names(name, method_names(), "methods")
            raise InputError(f"unknown method {name!r}; {known}")
        if kind in built:
            raise InputError(f"a method has one {kind} at most; {name!r} is a second one")
        built[kind] = _REGISTRIES[kind].build(name, **parameters)
    if "augmentation" in built and "scheme" in built and built["scheme"].forms_loss:
        raise InputError(
            f"{' and '.join(parts)} cannot be combined: the augmentation and the scheme both "
            "replace the computation of the loss"
        )
    return built
