from functools import partial
from typing import Any

from torch import Tensor

from trainables.calibrators import Calibrator, calibrator_from_recipe, cross_fit
from trainables.stages.base import StageRun
from trainables.stages.request import Parts

CROSS_FIT_FOLDS = 5


class CalibrateStage(StageRun, stage="calibrate"):
    """Fits a post-hoc calibrator on validation logits, judged by cross-fitting.

    The metrics are those of rows that the calibrator which scored them was not fitted on (law 4);
    the calibrator that is stored is fitted on all rows. Pixels of one image share a fold.
    """

    epochs = 1

    def run_epoch(self) -> dict[str, float]:
        """Cross-fit for the metrics, and fit on all validation rows."""
        rows = self.upstream().tensors("validation")
        logits, labels = rows["logits"], rows["labels"]
        build = partial(calibrator_of, self.request.parts)
        self._calibrator = build().fit(logits, labels)
        pixels = self.data.validation_pixels
        groups = None if pixels is None else pixels.rows
        folds = CROSS_FIT_FOLDS if groups is None else min(CROSS_FIT_FOLDS, len(groups.unique()))
        held_out = cross_fit(build, logits, labels, folds, self.request.seed, groups)
        self._held_out = held_out.float()
        self.epoch = 1
        figures = {f"fit_{name}": value for name, value in self._calibrator.summary().items()}
        return self._figures(figures, held_out)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the calibrator and the cross-fitted log-probabilities."""
        files = {
            "calibrator": self._calibrator.state_dict(),
            "validation": self._validation_tensors(self._held_out),
        }
        return files, {"summary": self._calibrator.summary()}


def calibrator_of(parts: Parts) -> Calibrator:
    """Return the calibrator that a request names, not fitted."""
    ((part, parameters),) = parts.items()
    return calibrator_from_recipe(part, parameters)
