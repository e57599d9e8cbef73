from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from torch import Generator, Tensor, nn
from torch.nn import functional as F

from trainables.common.fields import CheckedFields, count, number
from trainables.refinements._registry import REFINEMENTS as REFINEMENTS


class Refinement(CheckedFields, ABC):
    """A second stage that trains a new classifier on the features of a frozen extractor.

    A subclass declares its hyper-parameters as fields and keeps no state: everything that changes
    during training (a mask, a retention probability) is a parameter or buffer of the head, so that
    a checkpoint of the head contains it. In eval mode a head is a fixed function of the features.

    Args:
        epochs: Epochs of the second stage, at least 1.
        lr: Learning rate of the second stage, constant.

    Attributes:
        excludes: Methods that the refinement must not follow, each with the reason.
        second_pass: Whether ``end_epoch`` gets accuracy and confidence of ``feedback_logits`` from
            another pass after the epoch, instead of those of the training steps.
        held_out: Whether that pass uses held-out rows instead of the training set.
        accept: When the new classifier replaces the network's own: ``always``, or only if it is
            ``better``, which means that it lowers the validation NLL by more than the paired
            standard error.
        changes_batches: Whether ``start_batch`` has an effect.
        views: Features of the training set: ``augmented`` (one view of the augmented images per
            epoch) or ``original`` (of the unaugmented images).
        not_for: Why it cannot be used with a kind of data, by the kind's name.

    Raises:
        ValueError: If an argument is out of its range.
    """

    excludes: ClassVar[Mapping[str, str]] = {}
    second_pass = False
    held_out = False
    accept = "always"
    changes_batches = False
    views = "augmented"
    not_for: ClassVar[Mapping[str, str]] = {
        "images-with-masks": "its classifier takes one feature vector per image"
    }

    epochs: int = count(default=40, kw_only=True)
    lr: float = number(default=0.1, low=0.0, open_low=True, kw_only=True)

    @abstractmethod
    def build_head(self, feature_dim: int, num_classes: int) -> nn.Module:
        """Return a head from features (N, D) to logits (N, K); torch's generator draws weights."""

    def batch_loss(
        self, head: nn.Module, features: Tensor, targets: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the scalar to minimise and the logits (N, K): cross-entropy unless overridden.

        Args:
            head: A head of ``build_head``, in training mode.
            features: (N, D).
            targets: (N,), int64.
            generator: Source of random numbers on the features' device.
        """
        logits = head(features)
        return F.cross_entropy(logits, targets), logits

    def start_epoch(self, head: nn.Module, epoch: int, generator: Generator) -> None:
        """Prepare epoch ``epoch`` (from 0), for example draw a mask."""

    def start_batch(self, head: nn.Module, generator: Generator) -> None:
        """Prepare a step, for example draw a mask."""

    def start_batches_together(
        self,
        heads: Sequence[nn.Module],
        buffers: Mapping[str, Tensor],
        generators: Sequence[Generator],
    ) -> Callable[[], dict[str, Tensor]] | None:
        """Return a function that replaces ``start_batch`` for several heads at once.

        Args:
            heads: M heads, of any widths.
            buffers: The heads' buffers by name, stacked to (M, ...) and padded with zeros.
            generators: The generator of each head.

        Returns:
            A function that returns the changed buffers of the next batch. None, the default, if
            ``start_batch`` must be called for each head.
        """
        return None

    def end_epoch(self, head: nn.Module, accuracy: float, confidence: float) -> dict[str, float]:
        """Finish an epoch and return metrics to track.

        Args:
            head: The head.
            accuracy: Share of correct rows, in the training steps or in the second pass.
            confidence: Mean largest probability over the same rows.
        """
        return {}

    def feedback_logits(self, head: nn.Module, features: Tensor) -> Tensor:
        """Return the logits (N, K) that a second pass measures, in eval mode."""
        return head(features)

    def together_key(self) -> Hashable | None:
        """Return a key; refinements with the same key can be trained together.

        Return None, the default, if it must be trained alone. A key requires that the loss is the
        cross-entropy of the head; that random numbers are drawn only in ``start_epoch`` and
        ``start_batch``; that ``start_batch`` changes only buffers; and that a unit whose weights
        are all zero never gets an effect. Heads with the same key must have the same layers, of any
        width, and the same number of epochs and ``views``.
        """
        return None

    def movable(self, head: nn.Module) -> dict[str, Tensor]:
        """Return boolean masks, by parameter name, of the weights that the next step may change.

        A parameter without a mask may change completely. Weights whose entry is False are not
        changed by momentum or weight decay either.
        """
        return {}

    def remarks(self, head: nn.Module) -> list[str]:
        """Return messages for the user about a trained head, one line each."""
        return []


class FittedRefinement(Refinement):
    """A refinement that does not train: ``fit_head`` sets its head on validation rows.

    Its validation metrics are cross-fitted. ``epochs`` and ``lr`` are not arguments.
    """

    epochs: int = field(default=1, init=False)
    lr: float = field(default=1.0, init=False)

    @abstractmethod
    def fit_head(
        self, head: nn.Module, classifier: nn.Linear, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """Set the head on validation rows, and return metrics to track.

        Args:
            head: A head of ``build_head``, in eval mode.
            classifier: The network's own classifier, from (N, D) to (N, K).
            features: Features of validation rows, (N, D).
            labels: (N,), int64.
        """
