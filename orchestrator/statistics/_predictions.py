"""Stored predictions of the recipes of one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from orchestrator.results import StudyResult
from trainables.artifacts import ArtifactStore
from trainables.errors import InputError

__all__ = ["StoredPredictions", "stored_predictions"]


class StoredPredictions(Mapping[str, tuple[Tensor, ...]]):
    """Recipe to log-probabilities (N, K) of the test rows, one a seed; read when asked for.

    Args:
        results: Finished studies of one task with their predictions, one a recipe.
        store: Where the artifacts lie.
        absent: Recipe to the reason why it has no predictions.

    Attributes:
        absent: As given.

    Raises:
        InputError: If an artifact is missing or damaged, or test rows differ between recipes.
    """

    def __init__(
        self, results: Mapping[str, StudyResult], store: ArtifactStore, absent: Mapping[str, str]
    ) -> None:
        self.absent = dict(absent)
        self._results, self._store = dict(results), store
        self.labels = self._common_labels()

    def __getitem__(self, recipe: str) -> tuple[Tensor, ...]:
        """Read one recipe's predictions."""
        return tuple(rows["log_probs"] for rows in self._rows(recipe))

    def __iter__(self) -> Iterator[str]:
        """Yield the recipes in the order of the results."""
        return iter(self._results)

    def __len__(self) -> int:
        """Return how many recipes have predictions."""
        return len(self._results)

    def _rows(self, recipe: str) -> Iterator[dict[str, Tensor]]:
        result = self._results[recipe]
        for key in result.predictions:
            found = self._store.find("evaluate", key)
            if found is None:
                raise InputError(
                    f"predictions of {recipe} on {result.task} (sweep {result.sweep}) are missing "
                    f"or damaged: {self._store.path('evaluate', key)}"
                )
            yield found.tensors("test")

    def _common_labels(self) -> Tensor:
        """Return the labels (N,) that all recipes and seeds share."""
        first, common = "", None
        for recipe, result in self._results.items():
            for rows in self._rows(recipe):
                if common is None:
                    first, common = recipe, rows["labels"]
                elif not torch.equal(rows["labels"], common):
                    raise InputError(
                        f"{first} and {recipe} were not tested on the same rows of {result.task}: "
                        "their labels differ"
                    )
        return torch.empty(0, dtype=torch.int64) if common is None else common


def stored_predictions(results: Iterable[StudyResult], store: ArtifactStore) -> StoredPredictions:
    """Find the predictions of every recipe of one task.

    A recipe that is not finished, or of which no predictions were written down, is not left out
    silently: ``absent`` says why.

    Args:
        results: Studies of one task, one a recipe.
        store: The store ``STORAGE/artifacts`` that the sweep wrote to.

    Raises:
        InputError: If a recipe occurs twice, an artifact is missing or damaged, or the recipes were
            tested on different rows.
        ValueError: If the results belong to several tasks.
    """
    found: dict[str, StudyResult] = {}
    absent: dict[str, str] = {}
    for result in (ordered := list(results)):
        if result.task != ordered[0].task:
            raise ValueError(
                f"results of {ordered[0].task} and of {result.task}; expected one task"
            )
        if result.recipe in found or result.recipe in absent:
            raise InputError(f"two results for {result.recipe} on {result.task}; choose one sweep")
        if reason := _reason(result):
            absent[result.recipe] = reason
        else:
            found[result.recipe] = result
    return StoredPredictions(found, store, absent)


def _reason(result: StudyResult) -> str:
    """Return why a result has no predictions, or an empty string."""
    if result.status == "failed":
        return f"failed: {result.reason}" if result.reason else "failed"
    if result.status == "running":
        return "running"
    return "" if result.predictions else "no predictions on record"
