from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainables.calibrators import Calibrator, cross_fit
from trainables.stages.base import StageRun
from trainables.stages.networks import calibrator_of, predictor
from trainables.store.artifacts import Artifact

CROSS_FIT_FOLDS = 5


class CalibrateStage(StageRun, stage="calibrate"):
    """Fits a post-hoc calibrator on validation logits, judged by cross-fitting.

    The metrics are those of rows that the calibrator which scored them was not fitted on (law 4);
    the calibrator that is stored is fitted on all rows. Pixels of one image share a fold. One that
    is fitted on training rows is judged on all validation rows as it is.
    """

    epochs = 1

    def run_epoch(self) -> dict[str, float]:
        """Cross-fit for the metrics, and fit on all validation rows."""
        upstream = self.upstream()
        rows = upstream.tensors("validation")
        logits, labels = rows["logits"], rows["labels"]
        build = partial(calibrator_of, self.request.parts)
        calibrator = build()
        if calibrator.fits_on_training:
            held_out = calibrator.fit(*self._training_rows(upstream))(logits)
        else:
            calibrator.fit(logits, labels)
            held_out = self._cross_fitted(build, logits, labels)
        self._calibrator, self._held_out = calibrator, held_out.float()
        self.epoch = 1
        figures = {f"fit_{name}": value for name, value in self._calibrator.summary().items()}
        return self._figures(figures, held_out)

    def _training_rows(self, upstream: Artifact) -> tuple[Tensor, Tensor]:
        data, train = self.data, self.data.search.train
        outputs = predictor(
            self.store, upstream.stage, upstream.key, data.prepared.info, data.device
        )
        return outputs(train.values), torch.from_numpy(train.labels.copy())

    def _cross_fitted(
        self, build: Callable[[], Calibrator], logits: Tensor, labels: Tensor
    ) -> Tensor:
        pixels = self.data.validation_pixels
        groups = None if pixels is None else pixels.rows
        folds = CROSS_FIT_FOLDS if groups is None else min(CROSS_FIT_FOLDS, len(groups.unique()))
        return cross_fit(build, logits, labels, folds, self.request.seed, groups)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the calibrator and the cross-fitted log-probabilities."""
        files = {
            "calibrator": self._calibrator.state_dict(),
            "validation": self._validation_tensors(self._held_out),
        }
        return files, {"summary": self._calibrator.summary()}
