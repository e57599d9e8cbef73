"""Computes figures of a table from stored predictions when they are needed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from orchestrator.statistics._compare import KeptPredictions
from orchestrator.storage.results import StudyResult
from trainables.common.errors import InputError
from trainables.metrics import METRICS, column_report, of_sets
from trainables.store.artifacts import ArtifactStore


def with_columns(
    results: Iterable[StudyResult],
    names: Iterable[str],
    store: ArtifactStore,
    say: Callable[[str], None],
) -> list[StudyResult]:
    """Return results whose ``test`` also has the metrics that need the stored predictions.

    Args:
        results: Results of any tasks.
        names: Metrics that are shown; those that evaluations already have are ignored.
        store: The store ``STORAGE/artifacts`` that the sweeps wrote to.
        say: Receives a line for each result with figures that cannot be computed, or not from all
            rows.
    """
    columns, kept = METRICS.columns(names), KeptPredictions(store)
    return [_filled(result, columns, kept, say) for result in results]


def _filled(
    result: StudyResult, columns: Sequence[str], kept: KeptPredictions, say: Callable[[str], None]
) -> StudyResult:
    lacking = [name for name in columns if any(name not in seed for seed in result.test)]
    if not lacking:
        return result
    try:
        if len(result.predictions) != len(result.test):
            raise InputError("no predictions on record")
        own = [_figures(key, lacking, kept, result.sweep) for key in result.predictions]
    except InputError as error:
        say(f"{result.recipe} on {result.task} has no {', '.join(lacking)}: {error}")
        return result
    if any(sampled for _, sampled in own):
        text = f"{result.recipe} on {result.task}: {', '.join(lacking)}"
        say(f"{text} computed from the stored sample of pixels, not from all pixels")
    test = tuple({**new, **seed} for seed, (new, _) in zip(result.test, own, strict=True))
    return replace(result, test=test)


def _figures(
    key: str, names: Sequence[str], kept: KeptPredictions, sweep: str
) -> tuple[dict[str, float], bool]:
    """Return figures of one seed, and whether its rows are a sample of pixels."""
    rows = kept.need(key, sweep)
    calibration = kept.validation(key) if any(map(of_sets, names)) else None
    return column_report(rows["log_probs"], rows["labels"], names, calibration), "images" in rows
