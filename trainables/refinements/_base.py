"""What all refinements share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import ClassVar

from torch import Generator, Tensor, nn
from torch.nn import functional as F

from trainables.checks import check_count, check_number


class Refinement(ABC):
    """A second stage that trains a new classifier on the features of a frozen extractor.

    A subclass takes its hyper-parameters in its constructor and keeps no state: whatever changes
    while it trains (a mask, a retention probability) lives in the head, as a parameter or buffer,
    so that a checkpoint of the head holds all of it. In eval mode a head is a fixed function of
    the features.

    Args:
        epochs: Epochs of the second stage, at least 1.
        lr: Learning rate of the second stage, constant.

    Attributes:
        excludes: Methods that the refinement must not follow, each with the reason.
        second_pass: Whether ``end_epoch`` is told accuracy and confidence of ``feedback_logits``
            after the epoch, at the price of another pass, rather than those of its steps.

    Raises:
        ValueError: If an argument is out of its range.
    """

    excludes: ClassVar[Mapping[str, str]] = {}
    second_pass: bool = False

    def __init__(self, *, epochs: int, lr: float) -> None:
        self.epochs = check_count("epochs", epochs)
        self.lr = check_number("lr", lr, 0.0, open_low=True)

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

    def start_epoch(  # noqa: B027
        self, head: nn.Module, epoch: int, generator: Generator
    ) -> None:
        """Hear that epoch ``epoch`` (from 0) begins, such as to draw a mask."""

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

    def pass_key(self) -> Hashable | None:
        """Return what two refinements must have in common to be trained in one pass.

        None, the default, for one that trains alone. Only a refinement whose loss is the
        cross-entropy of its head, with no random numbers within an epoch, can share a pass: its
        heads must have the same layers, of any width, and run the same number of epochs; and a
        unit whose weights are all zero must stay without effect.
        """
        return None

    def movable(self, head: nn.Module) -> dict[str, Tensor]:
        """Return boolean masks, by parameter name, of the weights that the next step may change.

        Parameters left out may change as a whole. Neither the momentum nor the weight decay of the
        optimiser touches a weight whose entry is False.
        """
        return {}
