"""Calibrations of the same logits that are computed together, in common passes over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trainables.artifacts import Artifact
from trainables.errors import TrainingDivergedError
from trainables.stages import CalibrateStage, StageRun, fit_calibrators

__all__ = ["CalibrateGroup"]


class CalibrateGroup(StageRun):
    """The run of one calibration, with others carried along.

    To its trial it is an ordinary run. What comes of the others is stored when it finishes, so that
    their own trials find it; one that diverges is left out, and fails in its own trial.

    Args:
        run: The calibration that is asked for, not begun.
        others: Calibrations of the same rows that can share its passes, not begun.
    """

    epochs = 1

    def __init__(self, run: CalibrateStage, others: Sequence[CalibrateStage]) -> None:
        super().__init__(run.request, run.store, run.data)
        self._run = run
        self._others = list(others)
        self._figures_of: dict[str, dict[str, float]] = {}

    def run_epoch(self) -> dict[str, float]:
        """Cross-fit and fit all of them; return the figures of the one that is asked for."""
        fitted, *further = fit_calibrators([self._run, *self._others])
        figures = self._run.take(*fitted)
        for other, one in zip(list(self._others), further, strict=True):
            try:
                self._figures_of[other.request.key()] = other.take(*one)
            except TrainingDivergedError:
                self._others.remove(other)
        self.epoch = 1
        return figures

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the calibrator that is asked for and its cross-fitted log-probabilities."""
        return self._run.outcome()

    def finish(
        self,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> Artifact:
        """Store what came of every one, each with its share of the cost; return the own."""
        share = None if seconds is None else seconds / (1 + len(self._others))
        for other in self._others:
            own = self._figures_of[other.request.key()]
            other.finish(own, [{"step": 1, "metrics": own}], share)
        return super().finish(metrics, history, share)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the single step starts anew."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the single step starts anew."""
