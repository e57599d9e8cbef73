"""What all fitting objectives share: a value a row, and how much each row counts."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowTerms:
    """What an objective may know of each calibrated row; tensors are (N,), or (P, N) for P fits.

    Attributes:
        log_p: Log-probability of the row's label, <= 0.
        mean_log_p: Mean log-probability over the classes.
        sum_p2: Sum of the squared probabilities, in (0, 1].
        num_classes: Number of classes K.
    """

    log_p: Tensor
    mean_log_p: Tensor
    sum_p2: Tensor
    num_classes: int


class Objective(ABC):
    """A loss on calibrated rows that the fit of a calibrator minimises.

    A subclass checks its arguments in its constructor and implements ``per_row`` with
    differentiable operations on the row terms. Terms that it does not ask for arrive as zeros.
    Its float arguments are tensors (P, 1) while P fits are computed together: ``per_row`` may
    calculate with them, but not decide by them.

    Attributes:
        needs_mean: Whether ``per_row`` reads ``mean_log_p``.
        needs_square: Whether ``per_row`` reads ``sum_p2``.
        adaptive: Whether the row weights depend on the losses: the fit then solves a fixed point.
        scheduled: Whether the released fit uses the falling step sizes instead of the constant one.
    """

    needs_mean = False
    needs_square = False
    adaptive = False
    scheduled = False

    @abstractmethod
    def per_row(self, terms: RowTerms) -> Tensor:
        """Return the loss of each row, in the shape of the terms."""

    def row_weights(self, losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Return what each row counts, (N,); the objective is the sum of weight times loss.

        Args:
            losses: (N,), the losses of the rows, without gradient.
            labels: (N,), int64.
            num_classes: Number of classes K.
        """
        del labels, num_classes
        return torch.full_like(losses, 1.0 / len(losses))

    def begin(  # noqa: B027
        self, losses: Tensor, labels: Tensor, num_classes: int
    ) -> None:
        """Hear the row losses at the start of a fit; see ``row_weights`` for the arguments."""

    def freeze(  # noqa: B027
        self, losses: Tensor, labels: Tensor, num_classes: int
    ) -> None:
        """Hear the row losses after the first step, when ``cls`` sets its scaling for good."""

    def state(self) -> dict[str, float]:
        """Return what the objective itself has learned, such as alpha and beta of ``cls``."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Take over what ``state`` gave; names that are not this objective's are an error.

        Raises:
            KeyError: If the names are not those of ``state``.
        """
        for name in self.state():
            setattr(self, name, state[name])

    def kind(self) -> tuple[Any, ...]:
        """Return what two objectives must have in common to be ``stacked``."""
        numbers = self._numbers()
        others = [name for name in _argument_names(type(self)) if name not in numbers]
        return type(self), *(getattr(self, name) for name in others)

    def identity(self) -> tuple[Any, ...]:
        """Return what two objectives share exactly if they were made with equal arguments."""
        return *self.kind(), *(getattr(self, name) for name in self._numbers())

    @staticmethod
    def stacked(members: Sequence[Objective], device: torch.device) -> Objective:
        """Return one objective for the rows of P fits, (P, N), that are of one ``kind``."""
        stack = copy.copy(members[0])
        for name in stack._numbers():
            values = [[getattr(member, name)] for member in members]
            setattr(stack, name, torch.tensor(values, dtype=torch.float64, device=device))
        return stack

    def _numbers(self) -> list[str]:
        """Return the names of the float arguments."""
        names = _argument_names(type(self))
        return [name for name in names if isinstance(getattr(self, name), float)]


@cache
def _argument_names(kind: type[Objective]) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)
