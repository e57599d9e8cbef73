"""The best recipe of a task in five lines, and the sources of a figure's variance."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations
from statistics import fmean, variance
from typing import NamedTuple

from orchestrator.statistics._bootstrap import Measured
from orchestrator.statistics._compare import Board, KeptPredictions, board
from orchestrator.statistics._contrast import Contrast, contrast
from orchestrator.statistics._ties import Ties, ties
from orchestrator.storage.results import StudyResult
from orchestrator.tables.columns import column
from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch
from trainables.store.artifacts import ArtifactStore

SCORE = "nll"
RIVALS = ("ece", "augrc", "aps_90_size")
NAMED = 3  # Maximum number of pairs of recipes in a line.


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
    turned = [f"{a} than {b}" for a, b in clear if order.index(a) > order.index(b)]
    more = f" and {len(turned) - NAMED} more" if len(turned) > NAMED else ""
    named = f" (better by {_label(one)}: {', '.join(turned[:NAMED])}{more})" if turned else ""
    return (
        f"{len(turned)} of {len(pairs)} pairs reverse{named}; {len(clear)} differ by both metrics"
    )


class Spread(NamedTuple):
    """The standard deviation of the figure of one network, and the sources of its variance.

    Attributes:
        deviation: Standard deviation over everything that was repeated; in the metric's unit.
        rows: Share of the variance due to test rows, in [0, 1].
        seeds: Share due to seeds, including splits if each seed has its own; None with one seed.
        search: Share due to the search; None unless a split has several sweeps, or with one seed.
        splits: Share due to splits, including the search if ``search`` is None; None with one split
            or one seed.
    """

    task: str
    recipe: str
    deviation: float
    rows: float
    seeds: float | None
    search: float | None
    splits: float | None


def spreads(sweeps: Sequence[Board], splits: Sequence[str]) -> Iterator[Spread]:
    """Yield the spread of each recipe's figure over sweeps of one task.

    A split has several searches, and a search several seeds. The variance of splits excludes that
    of searches, which excludes that of seeds. Sweeps must not share seeds: they would share
    networks.

    Args:
        sweeps: The board of each sweep.
        splits: The name of the split of each sweep.
    """
    for recipe in dict.fromkeys(chain.from_iterable(sweep.figures for sweep in sweeps)):
        used = [at for at, sweep in enumerate(sweeps) if recipe in sweep.figures]
        figures = [sweeps[at].figures[recipe] for at in used]
        groups: dict[str, list[float]] = {}
        for at, own in zip(used, figures, strict=True):
            groups.setdefault(splits[at], []).append(float(own.values.mean()))
        first = sweeps[used[0]].labels
        same = all(_same_rows(first, sweeps[at].labels) for at in used)
        yield Spread(sweeps[0].task, recipe, *_shares(figures, list(groups.values()), same))


def _same_rows(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _shares(
    figures: Sequence[Measured], splits: Sequence[Sequence[float]], same: bool
) -> tuple[float, float, float | None, float | None, float | None]:
    """Return the deviation, and the shares of rows, seeds, search and splits.

    Args:
        figures: The figures of each sweep.
        splits: Means over seeds of the sweeps of each split.
        same: Whether all sweeps have the same test rows.
    """
    parts = [_parts(own) for own in figures]
    rows = fmean(own.shared + own.own for own in parts)
    seeded = [own for own in parts if own.seeds > 1]
    # The variance between seeds includes the part of the rows' variance that is independent.
    seeds = fmean(max(own.between - own.own, 0.0) for own in seeded) if seeded else None
    of_mean = fmean(own.between / own.seeds for own in seeded) if seeded else 0.0
    repeated = [own for own in splits if len(own) > 1]
    search = max(fmean(map(variance, repeated)) - of_mean, 0.0) if repeated and seeded else None
    between = None
    if len(splits) > 1 and seeded:
        within = ((search or 0.0) + of_mean) * fmean(1 / len(own) for own in splits)
        others = 0.0 if same else fmean(own.shared for own in parts)
        between = max(variance(map(fmean, splits)) - within - others, 0.0)
    whole = rows + sum(filter(None, (seeds, search, between)))
    shares = (own and own / whole for own in (seeds, search, between))
    return whole**0.5, rows / whole if whole else 1.0, *shares


def _parts(own: Measured) -> Contrast:
    return contrast(own, Measured(torch.zeros_like(own.values), torch.zeros_like(own.draws)))
