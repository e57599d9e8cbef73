"""Compares the recipes of one task with a baseline, from their stored predictions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean

from cachetools import LRUCache, cachedmethod

from orchestrator.statistics._bootstrap import (
    DRAWS,
    LEVEL,
    Difference,
    Measured,
    PairedBootstrap,
    measure,
    paired_bootstrap,
)
from orchestrator.statistics._contrast import contrast
from orchestrator.storage.results import StudyResult, usual_baseline
from trainables.common.errors import InputError, known_names
from trainables.common.later import Tensor, torch
from trainables.common.paths import sweep_command
from trainables.common.stages import EVERY_STAGE, ArtifactRef
from trainables.metrics import FLOORED, METRICS, Rows, noise_floor, noise_floors_of_groups
from trainables.store.artifacts import ArtifactStore

KEPT = 1 << 28  # Bytes: enough for one test on ImageNet, or for a thousand small ones.


class KeptPredictions:
    """Reads test predictions by key; caches the last used ones, up to ``KEPT`` bytes."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store.reader()
        self._kept: LRUCache[str, dict[str, Tensor] | None] = LRUCache(KEPT, _bytes)
        self._floors: dict[tuple[str, str], float] = {}

    @cachedmethod(attrgetter("_kept"))
    def read(self, key: str) -> dict[str, Tensor] | None:
        """Return the tensors of an evaluation, or None if it is missing or damaged."""
        found = self._store.find(ArtifactRef("evaluate", key))
        return None if found is None else found.tensors("test")

    def need(self, key: str, sweep: str) -> dict[str, Tensor]:
        """Return the tensors of an evaluation; raise ``InputError`` if they are lost."""
        if (found := self.read(key)) is None:
            remedy = sweep_command("run --resume", self._store.root.parent / "sweeps" / sweep)
            fault = self._store.fault(ArtifactRef("evaluate", key))
            raise InputError(f"{fault}; `{remedy}` computes it again")
        return found

    def lost(self, sweep: str, *keys: str) -> str:
        """Return which evaluation of a sweep is damaged or missing, as text; empty if none is."""
        try:
            for key in keys:
                self.need(key, sweep)
        except InputError as error:
            return str(error)
        return ""

    def validation(self, key: str) -> Rows:
        """Return logits and labels of the validation rows of a stored evaluation.

        A calibrator's logits are cross-fitted: it was not fitted on the rows that it scores.
        """
        found = self._store.find(ArtifactRef("evaluate", key))
        upstream = "" if found is None else found.record.get("upstream", "")
        for ref in (ArtifactRef(stage, upstream) for stage in EVERY_STAGE):
            if self._store.holds(ref) and (own := self._store.find(ref, whole=False)):
                rows = own.tensors("validation")
                return rows["logits"], rows["labels"]
        raise InputError(
            "conformal thresholds are fitted on validation rows, which are not in this storage"
        )

    def floor(self, key: str, metric: str) -> float:
        """Return the noise floor of stored predictions."""
        if (key, metric) not in self._floors:
            rows = self.read(key)
            assert rows is not None
            self._floors[key, metric] = _floor(rows, metric)
        return self._floors[key, metric]


def _floor(rows: dict[str, Tensor], metric: str) -> float:
    table = rows["log_probs"]
    if "images" not in rows:
        return noise_floor(table, metric).mean
    return noise_floors_of_groups(table, rows["labels"], rows["images"], (metric,))[metric].mean


def _bytes(tensors: dict[str, Tensor] | None) -> int:
    return sum(tensor.nbytes for tensor in (tensors or {}).values())


PredictionStore = ArtifactStore | KeptPredictions


class StoredPredictions(Mapping[str, tuple[Tensor, ...]]):
    """Maps a recipe to log-probabilities (N, K) of N test rows, a tensor per seed; read on access.

    Args:
        results: Studies of one task, one per recipe.
        store: ``STORAGE/artifacts`` of the sweep, or its ``KeptPredictions``.

    Attributes:
        absent: Maps a recipe to the reason why it has no predictions.
        labels: Labels of the first seed, (N,), equal for all recipes.
        truths: Labels of each seed, (N,); equal for all seeds unless there are ``numbers``.
        images: Image of each row if the rows are pixels, (N,); else None.
        numbers: Numbers of each seed's rows in a file of logits, (N,); None if all seeds were
            tested on the same rows.

    Raises:
        ValueError: If the results belong to several tasks.
        InputError: If a recipe has two results, recipes were not tested on the same rows, or
            predictions are lost.
    """

    def __init__(self, results: Iterable[StudyResult], store: PredictionStore) -> None:
        self.absent: dict[str, str] = {}
        self._results: dict[str, StudyResult] = {}
        self._kept = store if isinstance(store, KeptPredictions) else KeptPredictions(store)
        for result in (ordered := list(results)):
            recipe, task = result.recipe, result.task
            if task != ordered[0].task:
                raise ValueError(f"results of {ordered[0].task} and of {task}; expected one task")
            if recipe in self._results or recipe in self.absent:
                raise InputError(f"two results for {recipe} on {task}; choose one sweep")
            if reason := _reason(result):
                self.absent[recipe] = reason
            else:
                self._results[recipe] = result
        self.images: Tensor | None = None
        self.truths, self.numbers = self._common_rows()
        self.labels = next(iter(self.truths), torch.empty(0, dtype=torch.int64))

    def __getitem__(self, recipe: str) -> tuple[Tensor, ...]:
        return tuple(rows["log_probs"] for rows in self._rows(recipe))

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def floors(self, metric: str) -> dict[str, float]:
        """Return each recipe's noise floor, the mean over seeds; empty if there is none.

        Some metrics have a floor for rows, but none for sampled pixels.
        """
        known = metric in FLOORED or (METRICS[metric].floored and self.images is None)
        return {
            recipe: fmean(self._kept.floor(key, metric) for key in result.predictions)
            for recipe, result in (self._results.items() if known else ())
        }

    def calibrations(self, recipe: str) -> tuple[Rows, ...]:
        """Return the validation rows of each seed; see ``KeptPredictions.validation``."""
        return tuple(map(self._kept.validation, self._results[recipe].predictions))

    def _rows(self, recipe: str) -> Iterator[dict[str, Tensor]]:
        result = self._results[recipe]
        if fault := self._kept.lost(result.sweep, *result.predictions):
            raise InputError(f"the predictions of {recipe} on {result.task} are gone: {fault}")
        for key in result.predictions:
            yield self._kept.need(key, result.sweep)

    def _common_rows(self) -> tuple[list[Tensor], list[Tensor] | None]:
        """Return labels and row numbers of each seed; None for the numbers if they are all equal.

        Raise ``InputError`` if recipes differ in labels, or seeds of the same rows do.
        """
        labels: list[Tensor] = []
        numbers: list[Tensor] = []
        for recipe in self:
            for seed, rows in enumerate(self._rows(recipe)):
                own = rows.get("rows", torch.arange(len(rows["labels"])))
                self.images = rows.get("images")
                if seed == len(labels):
                    labels.append(rows["labels"])
                    numbers.append(own)
                elif not torch.equal(rows["labels"], labels[seed]):
                    raise InputError(
                        f"{next(iter(self))} and {recipe} were not tested on the same rows of "
                        f"{self._results[recipe].task}: their labels differ"
                    )
        alike = all(torch.equal(own, numbers[0]) for own in numbers)
        if alike and any(not torch.equal(own, labels[0]) for own in labels):
            task = next(iter(self._results.values())).task
            raise InputError(f"seeds were not tested on the same rows of {task}: labels differ")
        return labels, None if alike else numbers


def _reason(result: StudyResult) -> str:
    if result.status in ("failed", "interrupted"):
        return f"{result.status}: {result.reason}" if result.reason else result.status
    if result.status == "running":
        return "running"
    return "" if result.predictions else "no predictions on record"


@dataclass(frozen=True)
class TaskComparison:
    """The recipes of one task compared with a baseline.

    Attributes:
        floors: Noise floor of each recipe, the mean over seeds; empty if the metric has none.
        flipped: Maps a recipe to the share of test rows whose predicted class differs from the
            baseline's, in [0, 1], the mean over seeds.
    """

    task: str
    bootstrap: PairedBootstrap
    floors: dict[str, float]
    absent: dict[str, str]
    flipped: dict[str, float] = field(default_factory=dict)

    def inside_floor(self, recipe: str) -> bool:
        """Return True if the difference is not above the larger of both noise floors."""
        if not self.floors or recipe == self.bootstrap.baseline:
            return False
        floor = max(self.floors[recipe], self.floors[self.bootstrap.baseline])
        return abs(self.bootstrap.differences[recipe].value) <= floor

    def side(self, recipe: str) -> str:
        """Return ``better`` or ``worse``; ``higher`` or ``lower`` if the metric has no better side.

        Empty if the interval includes 0, or for the baseline.
        """
        found = self.bootstrap.differences.get(recipe)
        if found is None or not found.excludes_zero:
            return ""
        better = METRICS[self.bootstrap.metric].better
        side = "higher" if found.low > 0 else "lower"
        return side if better == "neither" else "better" if side == better else "worse"


def compare(
    results: Iterable[StudyResult],
    store: PredictionStore,
    metric: str = "ece",
    *,
    baseline: str | None = None,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
    over_seeds: bool = False,
    done: Callable[[str], None] = lambda recipe: None,
) -> TaskComparison:
    """Compare the recipes of one task: ``paired_bootstrap`` on their ``StoredPredictions``.

    The baseline is ``usual_baseline`` by default. With ``over_seeds`` intervals cover other seeds
    as well as other test rows; see ``contrast``.
    """
    results = list(results)
    _check(metric)
    baseline = baseline or usual_baseline(results)
    predictions = StoredPredictions(results, store)
    if baseline not in predictions:
        task = results[0].task if results else ""
        why = predictions.absent.get(baseline, "not in this sweep")
        there = ", ".join(predictions) or "none"
        raise InputError(
            f"baseline {baseline!r} on {task}: {why}; recipes with predictions: {there}"
        )
    bootstrap = paired_bootstrap(
        predictions,
        predictions.truths,
        metric,
        baseline=baseline,
        level=level,
        draws=draws,
        seed=seed,
        done=done,
        groups=predictions.images,
        numbers=predictions.numbers,
        interval=_over_seeds if over_seeds else None,
        calibrations=predictions.calibrations,
    )
    floors, flipped = predictions.floors(metric), _flipped(predictions, baseline)
    return TaskComparison(results[0].task, bootstrap, floors, predictions.absent, flipped)


def _flipped(predictions: StoredPredictions, baseline: str) -> dict[str, float]:
    own = [table.argmax(1) for table in predictions[baseline]]
    return {
        recipe: fmean(
            (table.argmax(1) != classes).double().mean().item()
            for table, classes in zip(tables, own, strict=False)  # Some have more seeds.
        )
        for recipe, tables in predictions.items()
        if recipe != baseline
    }


def _over_seeds(own: Measured, reference: Measured, level: float) -> Difference:
    return contrast(own, reference).interval(level)


@dataclass(frozen=True)
class Board:
    """All recipes of one task that have predictions, measured on the same resamples.

    Attributes:
        figures: The metric of each recipe, seed by seed.
        floors: Noise floor of each recipe, the mean over seeds; empty if the metric has none.
        absent: Maps a recipe to the reason why it is left out.
        labels: Labels of the test rows, (N,); None if they are not known.
    """

    task: str
    metric: str
    figures: dict[str, Measured]
    floors: dict[str, float]
    absent: dict[str, str]
    rows: int
    classes: int
    labels: Tensor | None = None

    def inside_floor(self, first: str, second: str) -> bool:
        """Return True if a difference is not above the larger of both noise floors."""
        gap = abs(float(self.figures[first].values.mean() - self.figures[second].values.mean()))
        return gap <= self.floor(first, second)

    def floor(self, first: str, second: str) -> float:
        """Return the larger noise floor of two recipes; -1 if the metric has none."""
        return max(self.floors[first], self.floors[second]) if self.floors else -1.0


def board(
    results: Iterable[StudyResult],
    store: PredictionStore,
    metric: str,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    done: Callable[[str], None] = lambda recipe: None,
) -> Board:
    """Measure the recipes of one task by ``measure`` on their ``StoredPredictions``."""
    results = list(results)
    _check(metric)
    rows = StoredPredictions(results, store)
    figures = measure(
        rows,
        rows.truths,
        metric,
        draws=draws,
        seed=seed,
        done=done,
        groups=rows.images,
        numbers=rows.numbers,
        calibrations=rows.calibrations,
    )
    classes = next((tables[0].shape[1] for tables in rows.values()), 0)
    floors = rows.floors(metric)
    task = results[0].task if results else ""
    count = len(rows.labels)
    return Board(task, metric, figures, floors, rows.absent, count, classes, rows.labels)


def _check(metric: str) -> None:
    if metric not in METRICS.measurable:
        allowed = known_names(metric, METRICS.measurable)
        raise InputError(f"metric {metric!r} cannot be resampled; {allowed}")


PUBLISHED = "the published default"
DRAWS = 500  # The ends of an interval vary by about 6% of its width.


def search_gains(
    results: Iterable[StudyResult],
    store: PredictionStore,
    metric: str = "ece",
    *,
    draws: int = DRAWS,
    seed: int = 0,
    done: Callable[[str], None] = lambda recipe: None,
) -> TaskComparison:
    """Compare the chosen trial of each recipe's search with its first, the published default.

    Both trials have the same seed and the same choices of earlier stages, so their difference is
    the gain of the search of the recipe's last stage. Differences are the chosen trial minus the
    default, with the intervals of ``paired_bootstrap``. The baseline is ``PUBLISHED``: it is
    another trial for each recipe, so it has no entry in ``values``. The ``floors`` of a recipe are
    the larger ones of both trials.

    Args:
        results: Studies of one task, one per recipe.
        store: The store ``STORAGE/artifacts`` that the sweep wrote to.
        metric: One of ``METRICS.measurable``.
        draws: Number of resamples of the test rows.
        seed: Determines the resamples.
        done: Called with each recipe when it has been compared.
    """
    pairs: dict[str, TaskComparison] = {}
    absent: dict[str, str] = {}
    for result in (ordered := list(results)):
        if reason := _why_unknown(result):
            absent[result.recipe] = reason
        else:
            pairs[result.recipe] = _with_default(result, store, metric, draws, seed)
        done(result.recipe)
    values = {recipe: pair.bootstrap.values[recipe] for recipe, pair in pairs.items()}
    differences = {recipe: pair.bootstrap.differences[recipe] for recipe, pair in pairs.items()}
    floors = {recipe: max(pair.floors.values()) for recipe, pair in pairs.items() if pair.floors}
    rows = max((pair.bootstrap.rows for pair in pairs.values()), default=0)
    found = PairedBootstrap(
        metric, PUBLISHED, values, differences, dict.fromkeys(values, 1), rows, draws
    )
    floors |= {PUBLISHED: 0.0} if floors else {}
    return TaskComparison(ordered[0].task if ordered else "", found, floors, absent)


def _why_unknown(result: StudyResult) -> str:
    if result.status != "finished":
        return result.status
    if not result.searched:
        return "nothing was searched"
    if not (result.searched_predictions and result.default_predictions):
        return "the published default failed or was not measured"
    return ""


def _with_default(
    result: StudyResult, store: PredictionStore, metric: str, draws: int, seed: int
) -> TaskComparison:
    chosen = replace(result, predictions=(result.searched_predictions,))
    default = replace(result, recipe=PUBLISHED, predictions=(result.default_predictions,))
    if default.predictions == chosen.predictions:
        draws = 1  # The difference is 0 in every resample.
    return compare((default, chosen), store, metric, baseline=PUBLISHED, draws=draws, seed=seed)
