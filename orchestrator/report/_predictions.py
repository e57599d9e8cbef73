"""What is computed of one task from its stored predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from orchestrator.results import StudyResult
from orchestrator.statistics import StoredPredictions, TaskComparison, compare, stored_predictions
from trainables.artifacts import ArtifactStore
from trainables.errors import InputError
from trainables.metrics import (
    ReliabilityCurve,
    RiskCoverageCurve,
    reliability_curve,
    risk_coverage_curve,
)

__all__ = ["COMPARED", "Curves", "Measured", "measure"]

COMPARED = ("acc", "ece")
"""What is compared with the baseline."""


@dataclass(frozen=True)
class Curves:
    """One recipe.

    Attributes:
        reliability: Of the rows of all seeds together.
        risk: One a seed.
    """

    reliability: ReliabilityCurve
    risk: tuple[RiskCoverageCurve, ...]

    @property
    def area(self) -> float:
        """Area under the risk-coverage curve, the mean over seeds."""
        return sum(curve.area for curve in self.risk) / len(self.risk)


@dataclass(frozen=True)
class Measured:
    """One task.

    Attributes:
        curves: Recipe to its curves.
        comparisons: Metric to the differences from the baseline; empty without a baseline.
        absent: Recipe to the reason why it has no curves.
        problem: Why there is nothing at all; else empty.
    """

    curves: dict[str, Curves] = field(default_factory=dict)
    comparisons: dict[str, TaskComparison] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def measure(
    results: Sequence[StudyResult],
    store: ArtifactStore,
    baseline: str,
    done: Callable[[], None] = lambda: None,
) -> Measured:
    """Read the predictions of one task and compute what the page draws.

    Predictions that are damaged, or of different rows, are told on the page: a report of what is
    left is better than none.

    Args:
        results: Studies of one task, one a recipe.
        store: Where their predictions lie.
        baseline: The recipe that others are compared with.
        done: Called once a recipe has been read, and once it has been compared.
    """
    try:
        predictions = stored_predictions(results, store)
        curves = {}
        for recipe in predictions:
            curves[recipe] = _curves(predictions, recipe)
            done()
        comparisons = (
            {
                metric: compare(
                    results, store, metric, baseline=baseline, done=lambda recipe: done()
                )
                for metric in COMPARED
            }
            if baseline in curves
            else {}
        )
    except InputError as error:
        return Measured(problem=str(error))
    return Measured(curves, comparisons, predictions.absent)


def _curves(predictions: StoredPredictions, recipe: str) -> Curves:
    seeds, labels = predictions[recipe], predictions.labels
    together = reliability_curve(logits=torch.cat(seeds), labels=labels.repeat(len(seeds)))
    return Curves(
        together, tuple(risk_coverage_curve(logits=seed, labels=labels) for seed in seeds)
    )
