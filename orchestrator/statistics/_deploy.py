"""The best recipe of a task in five lines, and the sources of a figure's variance."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from orchestrator.statistics._bootstrap import Measured
from orchestrator.statistics._compare import Board, KeptPredictions, board
from orchestrator.statistics._contrast import contrast
from orchestrator.statistics._ties import Ties, ties
from orchestrator.storage.results import StudyResult
from orchestrator.tables.columns import column
from trainables.common.errors import InputError
from trainables.common.later import torch
from trainables.store.artifacts import ArtifactStore

SCORE = "nll"
RIVALS = ("ece", "augrc", "aps_90_size")
NAMED = 3  # Most pairs of recipes in a line.


class Answer(NamedTuple):
    """One line about a task."""

    task: str
    topic: str
    text: str


def deployment(
    results: Sequence[StudyResult],
    store: ArtifactStore,
    *,
    draws: int,
    seed: int = 0,
    done: Callable[[str], None] = lambda recipe: None,
) -> list[Answer]:
    """Return the best recipes of a task by several metrics, and the pairs whose order reverses.

    Every pair of recipes is tested by each metric as in ``ties``. A pair reverses if one metric
    ranks the first above the second and another below, and both differences are significant.
    """
    task, kept = results[0].task, KeptPredictions(store)
    found: dict[str, Ties | str] = {}
    for metric in (SCORE, *RIVALS):
        try:
            found[metric] = ties(board(results, kept, metric, draws=draws, seed=seed, done=done))
        except InputError as error:
            if metric == SCORE:
                raise
            found[metric] = str(error)
    topics = {f"best by {_label(SCORE)}": _best(found[SCORE])}
    for one, other in combinations(RIVALS, 2):
        topics[f"{_label(one)} against {_label(other)}"] = _reversals(found, one, other)
    tied = (f"{_label(metric)}: {_best(found[metric])}" for metric in RIVALS)
    topics["best by others"] = "; ".join(tied)
    return [Answer(task, topic, text) for topic, text in topics.items()]


def _label(metric: str) -> str:
    return column(metric).label


def _best(found: Ties | str) -> str:
    if isinstance(found, str):
        return f"not known ({found})"
    if not found.values:
        return "no recipe has predictions"
    first, *others = found.values
    equal = [other for other in others if not _apart(found, first, other)]
    value = column(found.metric).show(found.values[first])
    return f"{first} ({value}), tied with {', '.join(equal) or 'none'}"


def _apart(found: Ties, one: str, other: str) -> bool:
    return not set(found.letters[one]) & set(found.letters[other])


def _reversals(found: dict[str, Ties | str], one: str, other: str) -> str:
    first, second = found[one], found[other]
    for each in (first, second):
        if isinstance(each, str):
            return f"not known ({each})"
    assert isinstance(first, Ties)
    assert isinstance(second, Ties)
    pairs, order = list(combinations(first.values, 2)), list(second.values)
    clear = [pair for pair in pairs if _apart(first, *pair) and _apart(second, *pair)]
    turned = [f"{a} > {b}" for a, b in clear if order.index(a) > order.index(b)]
    more = f" and {len(turned) - NAMED} more" if len(turned) > NAMED else ""
    named = f", by {_label(one)} {', '.join(turned[:NAMED])}{more}" if turned else ""
    return (
        f"{len(turned)} of {len(pairs)} pairs reverse{named}; {len(clear)} differ by both metrics"
    )


class Spread(NamedTuple):
    """The standard deviation of the figure of one network, and the sources of its variance.

    Attributes:
        deviation: Over seeds and test rows, in the metric's unit.
        rows: Share of the variance due to test rows, in [0, 1].
        seeds: Share due to the seed, and to the split if each seed has its own; None for one seed.
    """

    task: str
    recipe: str
    deviation: float
    rows: float
    seeds: float | None


def spreads(found: Board) -> Iterator[Spread]:
    """Yield the spread of each recipe's figure.

    The variance between seeds includes a part due to test rows, which is subtracted. The share of
    the search is unknown, because each recipe was searched once.
    """
    for recipe, own in found.figures.items():
        nothing = Measured(torch.zeros_like(own.values), torch.zeros_like(own.draws))
        parts = contrast(own, nothing)
        rows, seeds = parts.shared + parts.own, max(parts.between - parts.own, 0.0)
        whole = rows + seeds
        share = rows / whole if whole else 1.0
        known = None if parts.seeds == 1 else 1 - share
        yield Spread(found.task, recipe, whole**0.5, share, known)
