"""Everything that is said of the recipes of one task beside a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from orchestrator.results import StudyResult
from orchestrator.statistics._bootstrap import DRAWS, PairedBootstrap, paired_bootstrap
from orchestrator.statistics._predictions import StoredPredictions, stored_predictions
from orchestrator.statistics._resampled import BOOTSTRAPPED
from trainables.artifacts import ArtifactStore
from trainables.errors import InputError
from trainables.metrics import FLOORED, noise_floor

__all__ = ["TaskComparison", "compare"]


@dataclass(frozen=True)
class TaskComparison:
    """The recipes of one task beside a baseline.

    Attributes:
        task: The task.
        bootstrap: Values and differences with their intervals.
        floors: Noise floor of each recipe, the mean over its seeds; empty for a metric without.
        absent: Recipe to the reason why it is not compared.
    """

    task: str
    bootstrap: PairedBootstrap
    floors: dict[str, float]
    absent: dict[str, str]

    def inside_floor(self, recipe: str) -> bool:
        """Tell whether the difference is not above the larger of both noise floors."""
        if not self.floors or recipe == self.bootstrap.baseline:
            return False
        floor = max(self.floors[recipe], self.floors[self.bootstrap.baseline])
        return abs(self.bootstrap.differences[recipe].value) <= floor


def compare(
    results: Iterable[StudyResult],
    store: ArtifactStore,
    metric: str = "ece",
    *,
    baseline: str = "ce",
    draws: int = DRAWS,
    seed: int = 0,
    done: Callable[[str], None] = lambda recipe: None,
) -> TaskComparison:
    """Compare the recipes of one task from their stored predictions.

    Args:
        results: Studies of one task.
        store: The store ``STORAGE/artifacts`` that the sweep wrote to.
        metric: See ``paired_bootstrap``.
        baseline: See ``paired_bootstrap``.
        draws: See ``paired_bootstrap``.
        seed: See ``paired_bootstrap``.
        done: See ``paired_bootstrap``.

    Raises:
        InputError: If the metric is unknown, the baseline has no predictions, or see
            ``stored_predictions``.
    """
    if metric not in BOOTSTRAPPED:
        allowed = ", ".join(BOOTSTRAPPED)
        raise InputError(f"metric {metric!r} cannot be resampled; allowed are: {allowed}")
    results = list(results)
    predictions = stored_predictions(results, store)
    if baseline not in predictions:
        raise InputError(_no_baseline(baseline, results[0].task if results else "", predictions))
    bootstrap = paired_bootstrap(
        predictions,
        predictions.labels,
        metric,
        baseline=baseline,
        draws=draws,
        seed=seed,
        done=done,
    )
    floors = _floors(predictions, metric) if metric in FLOORED else {}
    return TaskComparison(results[0].task, bootstrap, floors, predictions.absent)


def _floors(predictions: StoredPredictions, metric: str) -> dict[str, float]:
    return {
        recipe: fmean(noise_floor(seed, metric).mean for seed in seeds)
        for recipe, seeds in predictions.items()
    }


def _no_baseline(baseline: str, task: str, predictions: StoredPredictions) -> str:
    why = predictions.absent.get(baseline, "not in this sweep")
    there = ", ".join(predictions) or "none"
    return f"baseline {baseline!r} on {task}: {why}; recipes with predictions: {there}"
