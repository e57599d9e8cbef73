"""What searches brought over the published defaults that they began with."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from orchestrator.statistics._bootstrap import PairedBootstrap
from orchestrator.statistics._compare import PredictionStore, TaskComparison, compare
from orchestrator.storage.results import StudyResult

PUBLISHED = "the published default"
DRAWS = (
    500  # Enough for the ends of an interval to about 6% of its width, in a quarter of the time.
)


def search_gains(
    results: Iterable[StudyResult],
    store: PredictionStore,
    metric: str = "ece",
    *,
    draws: int = DRAWS,
    seed: int = 0,
    done: Callable[[str], None] = lambda recipe: None,
) -> TaskComparison:
    """Compare what each recipe's search chose with the published default that was its first trial.

    Both are the search's own trials, of the same seed and on the same choice of the stages before,
    so that the difference is what the search of the recipe's last stage brought. Differences are
    the chosen trial minus the default, with the intervals of ``paired_bootstrap``. The baseline is
    ``PUBLISHED``, another one for each recipe, and has no value.

    Args:
        results: Studies of one task, one a recipe.
        store: The store ``STORAGE/artifacts`` that the sweep wrote to.
        metric: One of ``acc, nll, brier, ece, aece, cwece``.
        draws: Resamples of the test rows.
        seed: Decides the resamples.
        done: Called with each recipe when it has been compared.

    Raises:
        InputError: If the metric cannot be resampled, or predictions that were stored are missing
            or damaged.
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
        return "its published default failed, or was not measured"
    return ""


def _with_default(
    result: StudyResult, store: PredictionStore, metric: str, draws: int, seed: int
) -> TaskComparison:
    chosen = replace(result, predictions=(result.searched_predictions,))
    default = replace(result, recipe=PUBLISHED, predictions=(result.default_predictions,))
    if default.predictions == chosen.predictions:
        draws = 1  # Every resample says that they are the same.
    return compare((default, chosen), store, metric, baseline=PUBLISHED, draws=draws, seed=seed)
