"""Ranks recipes over (dataset, model) blocks, with Friedman's and Wilcoxon's tests (Holm)."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from orchestrator.statistics._letters import letters
from orchestrator.storage.results import StudyResult
from trainables.common.errors import InputError
from trainables.common.stages import GIVEN
from trainables.common.words import many

LEVEL = 0.05

Block = TypeVar("Block", bound=Hashable)
Place = tuple[str, str]


@dataclass(frozen=True)
class BlockScores:
    """Scores of the recipes that have one on every block.

    A block is a data set with a model, or a task of given logits.

    Attributes:
        scores: Maps recipe and block to the score, averaged over seeds.
        incomplete: Maps each recipe that is not ranked to the blocks on which it has no score.
        seeds: Smallest and largest number of seeds of a score.
    """

    scores: dict[str, dict[Place, float]]
    blocks: tuple[Place, ...]
    incomplete: dict[str, tuple[Place, ...]]
    seeds: tuple[int, int]

    @property
    def unit(self) -> str:
        """Return the name of the blocks for users."""
        given = all(model == GIVEN for _, model in self.blocks)
        return "tasks of logits" if given else "blocks (combinations of data set and model)"


def block_scores(results: Iterable[StudyResult], metric: str) -> BlockScores:
    """Arrange test metrics of finished studies by recipe and block.

    Args:
        results: Studies of any number of sweeps and tasks.
        metric: A name in ``StudyResult.test``, also of a suite, such as ``cifar10-c/ece``.
    """
    found: dict[str, dict[Place, float]] = {}
    origins: dict[tuple[str, Place], StudyResult] = {}
    counts: set[int] = set()
    blocks: dict[Place, None] = {}
    for result in results:
        block = (result.dataset or result.task, result.model)
        if result.model == GIVEN:  # Each fitting size of a network is a block.
            block = (result.task, GIVEN)
        own = found.setdefault(result.recipe, {})
        blocks[block] = None
        other = origins.setdefault((result.recipe, block), result)
        if other is not result:
            raise InputError(
                f"{result.recipe} on {' and '.join(block)} has two results: {other.task} of "
                f"{other.sweep} and {result.task} of {result.sweep}; choose one"
            )
        values = [row[metric] for row in result.test if metric in row]
        if result.status == "finished" and values and math.isfinite(score := fmean(values)):
            own[block] = score
            counts.add(len(values))
    gaps = {recipe: tuple(b for b in blocks if b not in own) for recipe, own in found.items()}
    complete = {recipe: own for recipe, own in found.items() if not gaps[recipe]}
    if len(complete) < 2:
        raise InputError(
            f"{many(len(complete), 'recipe')} with test results ({metric}) for all of "
            f"{len(blocks)} combinations of data set and model; a ranking needs at least 2"
        )
    incomplete = {recipe: missing for recipe, missing in gaps.items() if missing}
    return BlockScores(complete, tuple(blocks), incomplete, (min(counts), max(counts)))


@dataclass(frozen=True)
class PairTest:
    """Wilcoxon's test of two recipes; ``p`` has Holm's correction, None where it is untestable."""

    first: str
    second: str
    p: float | None

    @property
    def differs(self) -> bool:
        """Whether the two differ at the 5% level."""
        return self.p is not None and self.p <= LEVEL


@dataclass(frozen=True)
class RankComparison:
    """Recipes ranked over blocks.

    Attributes:
        ranks: Average rank of each recipe, best first; 1 is the best, equal scores share a rank.
        friedman: p-value of the hypothesis that all recipes are equal; None if not testable.
        critical_difference: Critical difference of ranks (Nemenyi); None if ``friedman`` is None.
    """

    ranks: dict[str, float]
    blocks: int
    friedman: float | None
    critical_difference: float | None
    pairs: tuple[PairTest, ...]

    @property
    def testable(self) -> bool:
        """Whether any pair could have been significant."""
        return any(pair.p is not None for pair in self.pairs)

    @property
    def needed(self) -> int:
        """Return the fewest blocks on which a pair could be significant."""
        return math.ceil(1 + math.log2(max(len(self.pairs), 1) / LEVEL))

    def letters(self) -> dict[str, str]:
        """Return each recipe's letters: two recipes share one if and only if they do not differ.

        Empty if nothing is testable or not all pairs were tested.
        """
        if not self.testable or len(self.pairs) != math.comb(len(self.ranks), 2):
            return {}
        differing = {frozenset((p.first, p.second)) for p in self.pairs if p.differs}
        return letters(list(self.ranks), differing)

    def cliques(self) -> list[tuple[str, ...]]:
        """Return the longest runs of recipes, in rank order, that do not differ pairwise."""
        names = list(self.ranks)
        alike = {frozenset((p.first, p.second)) for p in self.pairs if not p.differs}
        found: list[tuple[int, int]] = []
        for start in range(len(names)):
            end = start
            while end + 1 < len(names) and all(
                frozenset((name, names[end + 1])) in alike for name in names[start : end + 1]
            ):
                end += 1
            if end > start and not any(s <= start and end <= e for s, e in found):
                found.append((start, end))
        return [tuple(names[start : end + 1]) for start, end in found]


def rank_comparison(
    scores: Mapping[str, Mapping[Block, float]], *, higher: bool = False, control: str = ""
) -> RankComparison:
    """Rank recipes within each block and test whether they differ.

    The method is Demsar's (2006) with the pairwise tests of Benavoli et al. (2016), so the test of
    two recipes uses only their own scores. Blocks are the sample, not seeds, so scores are means
    over seeds.

    With n blocks the smallest p-value of Wilcoxon's test is ``2 / 2^n``, and Holm multiplies it by
    the number of pairs. If that is above 5%, no outcome can be significant and ``p`` is None: 5
    blocks are never enough, 13 recipes against a control need 10, all pairs of 14 recipes need 12.
    ``p`` is also None for a pair that differs on too few blocks; Friedman's test has the same rule.

    Args:
        scores: Maps recipe and block to a finite score; every recipe has the same blocks.
        higher: Whether higher scores are better.
        control: Compare every recipe with this one only, which needs fewer blocks; empty for all
            pairs.

    Raises:
        ValueError: If there are fewer than two recipes or no block, blocks differ between recipes,
            a score is not finite, or the control is unknown.
    """
    table = _table(scores, control)
    ranked = scipy.stats.rankdata(-table if higher else table, axis=1)
    means = ranked.mean(axis=0)
    names = list(scores)
    ranks = {names[i]: float(means[i]) for i in np.argsort(means, kind="stable")}
    columns = dict(zip(names, table.T, strict=True))
    friedman = _friedman(ranked)
    return RankComparison(
        ranks,
        len(table),
        friedman,
        None if friedman is None else _nemenyi(*table.shape),
        _pairs(list(ranks), columns, control),
    )


def _table(scores: Mapping[str, Mapping[Block, float]], control: str) -> NDArray[np.float64]:
    """Return the scores as blocks x recipes."""
    if len(scores) < 2:
        raise ValueError(f"{len(scores)} recipes to rank; expected at least 2")
    if control and control not in scores:
        raise ValueError(f"control={control!r} is not one of {', '.join(scores)}")
    blocks = list(next(iter(scores.values())))
    for recipe, row in scores.items():
        if not blocks or set(row) != set(blocks):
            raise ValueError(
                f"{recipe} has {len(row)} blocks; expected the same for all, at least 1"
            )
        if not all(map(math.isfinite, row.values())):
            raise ValueError(f"a score of {recipe} is not finite")
    return np.array([[scores[recipe][block] for recipe in scores] for block in blocks])


def _friedman(ranked: NDArray[np.float64]) -> float | None:
    """Return the p-value; None for two recipes, equal scores, or too few blocks to reach 5%."""
    blocks, recipes = ranked.shape
    smallest = scipy.stats.chi2.sf(blocks * (recipes - 1), recipes - 1)
    if recipes < 3 or smallest > LEVEL or np.ptp(ranked, axis=1).max() == 0:
        return None
    return float(scipy.stats.friedmanchisquare(*ranked.T).pvalue)


def _nemenyi(blocks: int, recipes: int) -> float:
    spread = scipy.stats.studentized_range.ppf(1 - LEVEL, recipes, np.inf) / math.sqrt(2)
    return float(spread * math.sqrt(recipes * (recipes + 1) / (6 * blocks)))


def _pairs(
    order: list[str], columns: Mapping[str, NDArray[np.float64]], control: str
) -> tuple[PairTest, ...]:
    pairs = [pair for pair in combinations(order, 2) if not control or control in pair]
    gaps = [gap[gap != 0] for gap in (columns[one] - columns[other] for one, other in pairs)]
    raw = [float(scipy.stats.wilcoxon(gap).pvalue) if len(gap) else 1.0 for gap in gaps]
    corrected = holm(raw)[1].tolist()
    smallest = len(pairs) * 2.0 ** (1 - len(columns[order[0]]))
    return tuple(
        PairTest(*pair, p if smallest <= LEVEL and 2.0 ** (1 - len(gap)) <= LEVEL else None)
        for pair, gap, p in zip(pairs, gaps, corrected, strict=True)
    )


def holm(p_values: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the divisor of the level of each test, and its corrected p-value.

    The smallest of m p-values is multiplied by m, the next by m - 1 and so on; each is at least the
    one before it and at most 1. Source: Holm, A Simple Sequentially Rejective Multiple Test
    Procedure, 1979.

    Args:
        p_values: (..., m); NaN is ignored.
    """
    given = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(given, axis=-1)
    rank = np.argsort(order, axis=-1)
    divisors = np.maximum(np.isfinite(given).sum(-1, keepdims=True) - rank, 1)
    raised = np.take_along_axis(given * divisors, order, -1)
    corrected = np.minimum(np.maximum.accumulate(raised, axis=-1), 1.0)
    return divisors, np.take_along_axis(corrected, rank, -1)
