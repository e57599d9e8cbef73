import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainables.calibrators import Calibrator, FitWarning, calibrator_from_recipe
from trainables.common.errors import InputError
from trainables.jobs import Fit, FitWork, Job, Part, Status
from trainables.metrics import calibration_report
from trainables.worker._bench import Bench, Computation


class FitComputation(Computation):
    """Fits every calibrator of a job; one that the rows do not allow has a reason, not metrics."""

    def __init__(self, bench: Bench, job: Job, work: FitWork) -> None:
        super().__init__(bench, f"{len(work.calibrators)} calibrators on {work.data}")
        self._work = work
        self._fits: dict[str, Fit] = {}

    def advance(self) -> Status:
        prepared = self.bench.open_data(self._work.data)
        fit, test = prepared.search().validation, prepared.test()
        rows, truth = _tensors(fit.values, fit.labels)
        judged, labels = _tensors(test.values, test.labels)
        for recipe, part in self._work.calibrators.items():
            _warm_up(recipe, part)
            started = time.process_time()
            try:
                calibrator = part and _fitted(*part, rows, truth)
            except InputError as error:
                self._fits[recipe] = Fit({}, reason=str(error))
                continue
            seconds = time.process_time() - started
            logits = calibrator(judged) if calibrator else judged
            report = calibration_report(logits=logits, labels=labels, metrics=self._work.metrics)
            self._fits[recipe] = Fit(report, seconds)
        return Status.FINISHED

    def outcome(self) -> dict[str, Any]:
        return {"fits": self._fits}


_warm: set[str] = set()  # Recipes that this process has fitted before.


def _warm_up(recipe: str, part: Part) -> None:
    """Fit a calibrator on a few rows once, so that no fit's seconds hold what it imports."""
    if part is None or recipe in _warm:
        return
    _warm.add(recipe)
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(64, 3, generator=draw), torch.randint(3, (64,), generator=draw)
    with suppress(InputError):  # What so few rows do not allow.
        _fitted(*part, rows, labels)


def _fitted(name: str, parameters: Mapping[str, Any], rows: Tensor, labels: Tensor) -> Calibrator:
    with warnings.catch_warnings():  # What a fit doubts shows in its figures.
        warnings.simplefilter("ignore", FitWarning)
        return calibrator_from_recipe(name, parameters).fit(rows, labels)


def _tensors(values: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(values.copy()), torch.from_numpy(labels.copy())
