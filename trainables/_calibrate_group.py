"""Calibrations of the same logits that are computed together, in common passes over them."""

from __future__ import annotations

from typing import Any

from trainables._group_run import GroupRun
from trainables.errors import TrainingDivergedError
from trainables.stages import CalibrateStage, fit_calibrators

__all__ = ["CalibrateGroup"]


class CalibrateGroup(GroupRun[CalibrateStage]):
    """The run of one calibration, with others of the same rows; see ``GroupRun``."""

    epochs = 1

    def run_epoch(self) -> dict[str, float]:
        """Cross-fit and fit all of them; return the figures of the one that is asked for."""
        fitted, *further = fit_calibrators([self._run, *self._others])
        figures = self._run.take(*fitted)
        for other, one in zip(list(self._others), further, strict=True):
            try:
                metrics = other.take(*one)
            except TrainingDivergedError:
                self._others.remove(other)
            else:
                self._histories[other.request.key()] = [{"step": 1, "metrics": metrics}]
        self.epoch = 1
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the single step starts anew."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the single step starts anew."""
