from functools import partial
from typing import Any

from trainables.calibrators import cross_fit
from trainables.common.later import Tensor, torch
from trainables.stages.base import StageRun
from trainables.stages.networks import calibrator_of, predictor

CROSS_FIT_FOLDS = 5


class CalibrateStage(StageRun, stage="calibrate"):
    """Fits a post-hoc calibrator, usually on the validation logits."""

    epochs = 1

    def run_epoch(self) -> dict[str, float]:
        """Fit the calibrator; the metrics are cross-fitted if it is fitted on validation rows."""
        upstream = self.upstream()
        rows = upstream.tensors("validation")
        logits, labels = rows["logits"], rows["labels"]
        build = partial(calibrator_of, self.request.parts)
        calibrator = build()
        if calibrator.fits_on_training:
            data, train = self.data, self.data.search.train
            outputs = predictor(self.store, upstream.ref, data.prepared.info, data.device)
            calibrator.fit(outputs(train.values), torch.from_numpy(train.labels.copy()))
            held_out = calibrator(logits)
        else:
            calibrator.fit(logits, labels)
            images, folds = rows.get("images"), CROSS_FIT_FOLDS
            if images is not None:
                folds = min(folds, len(images.unique()))
            held_out = cross_fit(build, logits, labels, folds, self.request.seed, images)
        self._calibrator, self._held_out = calibrator, held_out.float()
        self.epoch = 1
        figures = {f"fit_{name}": value for name, value in self._calibrator.summary().items()}
        return self._figures(figures, held_out)

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return the calibrator and the validation log-probabilities that were measured."""
        files = {
            "calibrator": self._calibrator.state_dict(),
            "validation": self._validation_tensors(self._held_out),
        }
        return files, {"summary": self._calibrator.summary()}
