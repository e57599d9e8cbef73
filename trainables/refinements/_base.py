from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

from torch import Generator, Tensor, nn
from torch.nn import functional as F

from trainables.common.fields import CheckedFields, count, number
from trainables.refinements._registry import REFINEMENTS as REFINEMENTS


class Refinement(CheckedFields, ABC):
    """A second stage that trains a new classifier on the features of a frozen extractor.

    A subclass declares its hyper-parameters as fields and keeps no state: whatever changes
    while it trains (a mask, a retention probability) lives in the head, as a parameter or buffer,
    so that a checkpoint of the head holds all of it. In eval mode a head is a fixed function of
    the features.

    Args:
        epochs: Epochs of the second stage, at least 1.
        lr: Learning rate of the second stage, constant.

    Attributes:
        excludes: Methods that the refinement must not follow, each with the reason.
        second_pass: Whether ``end_epoch`` gets accuracy and confidence of ``feedback_logits``
            after the epoch, at the price of another pass, rather than those of its steps.
        held_out: Whether that pass is over held-out rows rather than the training set.
        accept: ``always``, or ``better``: only if validation NLL is lower than the network's own
            by more than its paired standard error; else the network keeps its own classifier.
        changes_batches: Whether ``start_batch`` does anything.
        views: Which features of the training set it is trained on: ``augmented`` ones, a view of
            the augmented images an epoch, or ``original``, those of the images as they are.
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
        "images-with-masks": "its classifier is of one feature vector an image"
    }

    epochs: int = count(default=40, kw_only=True)
    lr: float = number(default=0.1, low=0.0, open_low=True, kw_only=True)

    @abstractmethod
    def build_head(self, feature_dim: int, num_classes: int) -> nn.Module:
        """Return a head, features (N, D) to logits (N, K), with weights from torch's generator."""

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
        """Prepare epoch ``epoch`` (from 0), such as by drawing a mask."""

    def start_batch(self, head: nn.Module, generator: Generator) -> None:
        """Prepare a step, such as by drawing a mask."""

    def start_batches_together(
        self,
        heads: Sequence[nn.Module],
        buffers: Mapping[str, Tensor],
        generators: Sequence[Generator],
    ) -> Callable[[], dict[str, Tensor]] | None:
        """Return what does for several heads at once what ``start_batch`` does for each of them.

        Args:
            heads: M of them, of any width.
            buffers: Theirs, by name, one tensor (M, ...) of all heads each, filled up with zeros to
                the largest.
            generators: Of each head.

        Returns:
            What gives, for every batch of an epoch, the buffers that change; None, the default,
            where ``start_batch`` has to be called.
        """
        return None

    def end_epoch(self, head: nn.Module, accuracy: float, confidence: float) -> dict[str, float]:
        """Finish an epoch and return figures worth tracking.

        Args:
            head: The head.
            accuracy: Share of the training samples that were classified correctly.
            confidence: Mean largest probability over the training samples.
        """
        return {}

    def feedback_logits(self, head: nn.Module, features: Tensor) -> Tensor:
        """Return the logits (N, K) of eval mode that a second pass measures."""
        return head(features)

    def together_key(self) -> Hashable | None:
        """Return what two refinements must have in common to be trained together.

        None, the default, for one that trains alone. Only a refinement whose loss is the
        cross-entropy of its head, and that draws its random numbers in ``start_epoch`` and
        ``start_batch``, can be trained together with others: its heads must have the same layers,
        of any width, and run the same number of epochs on the same ``views``; ``start_batch`` may
        change their buffers only; and a unit whose weights are all zero must stay without effect.
        """
        return None

    def movable(self, head: nn.Module) -> dict[str, Tensor]:
        """Return boolean masks, by parameter name, of the weights that the next step may change.

        Parameters left out may change as a whole. Neither the momentum nor the weight decay of the
        optimiser touches a weight whose entry is False.
        """
        return {}

    def remarks(self, head: nn.Module) -> list[str]:
        """Return what a person should know of a head that is done, a line each."""
        return []
