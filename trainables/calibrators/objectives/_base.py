"""The base of all fitting objectives: a loss and a weight per row."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.calibrators.objectives._registry import OBJECTIVES as OBJECTIVES
from trainables.common.fields import CheckedFields


@dataclass(frozen=True)
class RowTerms:
    """The terms of each calibrated row from which an objective is computed; tensors are (N,).

    Attributes:
        log_p: Log-probability of the row's label, <= 0.
        mean_log_p: Mean log-probability over the classes that are not masked.
        sum_p2: Sum of the squared probabilities, in (0, 1].
        num_classes: Number of classes K.
    """

    log_p: Tensor
    mean_log_p: Tensor
    sum_p2: Tensor
    num_classes: int


class Objective(CheckedFields, ABC):
    """A loss on calibrated rows that the fit of a calibrator minimises.

    A subclass declares its arguments as fields and implements ``per_row`` with differentiable
    operations on the row terms. Terms that it does not need are zeros.

    Attributes:
        needs_mean: Whether ``per_row`` uses ``mean_log_p``.
        needs_square: Whether ``per_row`` uses ``sum_p2``.
        log_loss: Whether ``per_row`` is ``-log p_y``, which has faster derivatives.
        adaptive: Whether the row weights depend on the losses, so that the fit is a fixed point.
        scheduled: Whether the released fit uses falling step sizes instead of a constant one.

    Raises:
        ValueError: If an argument is out of its range.
    """

    needs_mean = False
    needs_square = False
    log_loss = False
    adaptive = False
    scheduled = False

    @abstractmethod
    def per_row(self, terms: RowTerms) -> Tensor:
        """Return the loss of each row, with the shape of the terms."""

    def row_weights(self, losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Return the weight of each row, (N,); the objective is the sum of weight times loss.

        Args:
            losses: (N,), the losses of the rows, without gradient.
            labels: (N,), int64.
            num_classes: Number of classes K.
        """
        del labels, num_classes
        return torch.full_like(losses, 1.0 / len(losses))

    def begin(self, losses: Tensor, labels: Tensor, num_classes: int) -> None:
        """Use the row losses at the start of a fit; see ``row_weights`` for the arguments."""

    def freeze(self, losses: Tensor, labels: Tensor, num_classes: int) -> None:
        """Use the row losses after the first step, for example to fix the scaling of ``cls``."""

    def state(self) -> dict[str, float]:
        """Return the objective's own fitted values, such as alpha and beta of ``cls``."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Restore the values of ``state``.

        Raises:
            KeyError: If a name of ``state`` is missing.
        """
        for name in self.state():
            setattr(self, name, state[name])
