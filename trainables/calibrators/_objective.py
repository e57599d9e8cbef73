"""The family of calibrators whose fitting objective can be chosen."""

from dataclasses import field
from typing import Any

from trainables.calibrators._base import Calibrator
from trainables.calibrators.objectives import Objective, build_objective


class ObjectiveCalibrator(Calibrator):
    """A calibrator that is fitted with any fitting objective.

    Attributes:
        objective: Minimised by the fit; ``ce`` unless ``build_calibrator`` gets another.
        objective_name: Its name.
        objective_parameters: The hyper-parameters it was made with.
    """

    objective: Objective = field(init=False)
    objective_name: str = field(init=False)
    objective_parameters: dict[str, Any] = field(init=False)

    takes_objective = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_objective("ce")

    def set_objective(self, name: str, **parameters: Any) -> None:
        """Choose the objective of the fit; see ``build_objective`` for arguments and errors."""
        self.objective = build_objective(name, **parameters)
        self.objective_name, self.objective_parameters = name, parameters
