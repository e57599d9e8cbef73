"""The family of calibrators that divide each row by a temperature, with a choice of objective."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators._base import Calibrator
from trainables.calibrators.objectives import Objective, build_objective


class TemperatureCalibrator(Calibrator):
    """A calibrator that divides every row by one positive temperature, so its order stays.

    Attributes:
        objective: What the fit minimises; ``ce`` unless ``build_calibrator`` is told otherwise.
        objective_name: Its name.
        objective_parameters: The hyper-parameters it was made with.
    """

    objective: Objective
    objective_name: str
    objective_parameters: dict[str, Any]

    takes_objective = True
    preserves_accuracy = True

    def __init__(self) -> None:
        self.set_objective("ce")

    def set_objective(self, name: str, **parameters: Any) -> None:
        """Choose what the fit minimises; see ``build_objective`` for arguments and errors."""
        self.objective = build_objective(name, **parameters)
        self.objective_name, self.objective_parameters = name, parameters

    @abstractmethod
    def _temperatures(self, logits: Tensor) -> Tensor:
        """Return the temperature of each row, (N,) or (1,), float64."""

    def _transform(self, logits: Tensor) -> Tensor:
        return divide([self._temperatures(logits).unsqueeze(1)], logits)


def divide(temperatures: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Return the log-probabilities of logits divided by the one tensor in ``temperatures``."""
    return F.log_softmax(logits / temperatures[0], dim=1)


def divide_by_exp(log_temperatures: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Return the log-probabilities of logits divided by the exponential of the one tensor."""
    return divide([log_temperatures[0].exp()], logits)
