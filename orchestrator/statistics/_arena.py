"""Every recipe against every other over networks and splits: gains, wins and strengths."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.statistics._ranks import RankComparison, rank_comparison
from orchestrator.storage.results import StudyResult
from trainables.common.errors import InputError
from trainables.common.words import many

ARENA_METRICS = ("nll", "brier", "ece")
DRAWS = 1000
LEVEL = 0.95
ELO = 400 / np.log(10)  # Points a unit of the Bradley-Terry model's log-odds, as in chess.
PRIOR = 0.01  # Of the strengths: what always wins would else be infinitely strong.


class Interval(NamedTuple):
    """A figure, and the ends of its 95% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """How one recipe does.

    Attributes:
        gains: Metric to how far it is below the baseline, the mean over networks; above 0 is
            better; fractions (nats for NLL).
        wins: Share of its matches that it wins, a tie as half a win. A match is one other recipe on
            one task and seed, decided by NLL.
        strength: Bradley-Terry strength on the scale of Elo, 0 for the baseline: 100 points more
            are odds of 1.8 to 1. It has no interval: where a resample holds one network, many a
            recipe wins always, and is strong without bound.
        seconds: What its fit took, the mean; None where that is not known.
        group: Letters that it shares with recipes from which it cannot be told apart by NLL over
            networks (see ``rank_comparison``); empty where there are too few networks.
    """

    recipe: str
    gains: dict[str, Interval]
    wins: Interval
    strength: float
    seconds: float | None
    group: str = ""


@dataclass(frozen=True)
class Arena:
    """All recipes that have a figure on every task and seed, the strongest first.

    Attributes:
        tasks: How many tasks there are, such as fitting sizes of each network.
        seeds: How many splits of each.
        absent: Recipe to the reason why it is left out.
        lacking: How many networks more could tell any two recipes apart; 0 if these can.
    """

    baseline: str
    standings: tuple[Standing, ...]
    networks: tuple[str, ...]
    tasks: int
    seeds: int
    absent: dict[str, str]
    lacking: int = 0


class _Table(NamedTuple):
    """Means over the tasks of each network, for each network and seed.

    Attributes:
        gains: (units, metrics, recipes), below the baseline.
        wins: (units, recipes, recipes), share of tasks on which the first beats the second.
        networks: (units,), the network of each.
    """

    gains: NDArray[np.float64]
    wins: NDArray[np.float64]
    networks: NDArray[np.int64]


def arena(
    results: Iterable[StudyResult], baseline: str, *, draws: int = DRAWS, seed: int = 0
) -> Arena:
    """Compare recipes over networks and splits.

    Intervals are of a bootstrap in two steps: networks are drawn with replacement, and splits
    within each drawn network, all its tasks together. Networks count equally. With few networks,
    intervals tell little of other ones.

    Args:
        results: Studies of any number of tasks; those of one data set and model are of one network.
        baseline: The recipe that gains are from.
        draws: Resamples, at least 1.
        seed: Decides the resamples.
    """
    found = list(results)
    places = {result.task: (result.dataset or result.task, result.model) for result in found}
    seeds = max((len(result.test) for result in found), default=0)
    by_recipe: dict[str, dict[str, StudyResult]] = {}
    for result in found:
        by_recipe.setdefault(result.recipe, {})[result.task] = result
    absent = {
        recipe: reason
        for recipe, own in by_recipe.items()
        if (reason := _gap(own, list(places), seeds))
    }
    recipes = [recipe for recipe in by_recipe if recipe not in absent]
    if baseline not in recipes or len(recipes) < 2:
        why = f"{baseline}: {absent[baseline]}" if baseline in absent else f"no {baseline}"
        why = why if baseline not in recipes else "only one recipe"
        raise InputError(f"an arena needs figures of two recipes on every task and seed ({why})")
    table = _table([by_recipe[recipe] for recipe in recipes], places, recipes.index(baseline))
    weights = _weights(table.networks, draws, seed)
    ranked = _ranked(recipes, table)
    standings = tuple(
        replace(own, group=ranked.letters().get(own.recipe, ""))
        for own in _standings(recipes, by_recipe, table, weights, recipes.index(baseline))
    )
    names = ("/".join(filter(None, place)).removesuffix("/given") for place in places.values())
    lacking = 0 if ranked.testable else max(ranked.needed - ranked.blocks, 0)
    networks = tuple(dict.fromkeys(names))
    return Arena(baseline, standings, networks, len(places), seeds, absent, lacking)


def _ranked(recipes: Sequence[str], table: _Table) -> RankComparison:
    """Compare mean NLL over networks: tasks and splits of one network are no further evidence."""
    scores = {
        recipe: {
            int(network): -float(table.gains[table.networks == network, 0, r].mean())
            for network in np.unique(table.networks)
        }
        for r, recipe in enumerate(recipes)
    }
    return rank_comparison(scores)


def _gap(own: dict[str, StudyResult], tasks: Sequence[str], seeds: int) -> str:
    """Return why a recipe cannot take part, or nothing."""
    for task in tasks:
        result = own.get(task)
        if result is None:
            return f"not run on {task}"
        figures = [_figures(row) for row in result.test]
        count = sum(bool(np.isfinite(row).all()) for row in figures)
        if result.status != "finished" or count < seeds:
            reason = f": {result.reason}" if result.reason else ""
            return f"{count} of {many(seeds, 'seed')} on {task}{reason}"
    return ""


def _figures(row: Mapping[str, float]) -> list[float]:
    return [row.get(metric, np.nan) for metric in ARENA_METRICS]


def _table(
    studies: Sequence[dict[str, StudyResult]], places: dict[str, tuple[str, str]], base: int
) -> _Table:
    groups: dict[tuple[str, str], list[str]] = {}
    for task, place in places.items():
        groups.setdefault(place, []).append(task)
    gains, wins, networks = [], [], []
    for network, tasks in enumerate(groups.values()):
        scores = np.array(  # (recipes, tasks, seeds, metrics)
            [
                [[[row[m] for m in ARENA_METRICS] for row in own[t].test] for t in tasks]
                for own in studies
            ]
        )
        gains.append((scores[base] - scores).mean(axis=1).transpose(1, 2, 0))
        one, other = scores[:, None, :, :, 0], scores[None, :, :, :, 0]
        won = (one < other) + 0.5 * (one == other)
        wins.append(won.mean(axis=2).transpose(2, 0, 1))
        networks.append(np.full(scores.shape[2], network))
    return _Table(*(np.concatenate(parts) for parts in (gains, wins, networks)))


def _weights(networks: NDArray[np.int64], draws: int, seed: int) -> NDArray[np.float64]:
    """Return how much each unit counts: as they are, then in each resample; rows sum to 1."""
    generator = np.random.default_rng(seed)
    units = [np.flatnonzero(networks == network) for network in np.unique(networks)]
    whole = np.zeros((1 + draws, len(networks)))
    for own in units:
        whole[0, own] = 1 / (len(units) * len(own))
    for row in whole[1:]:
        for network in generator.integers(len(units), size=len(units)):
            own = units[network]
            np.add.at(row, generator.choice(own, len(own)), 1 / (len(units) * len(own)))
    return whole


def _standings(
    recipes: Sequence[str],
    by_recipe: dict[str, dict[str, StudyResult]],
    table: _Table,
    weights: NDArray[np.float64],
    base: int,
) -> tuple[Standing, ...]:
    gains = np.einsum("du,umr->dmr", weights, table.gains)
    others = len(recipes) - 1
    wins = (weights @ table.wins.sum(axis=2) - 0.5) / others  # Nobody plays against itself.
    whole = np.einsum("u,urs->rs", weights[0], table.wins)
    strengths = _strengths(whole * len(table.networks), base)
    found = [
        Standing(
            recipe,
            {metric: _interval(gains[:, m, r]) for m, metric in enumerate(ARENA_METRICS)},
            _interval(wins[:, r]),
            float(strengths[r]),
            _seconds(by_recipe[recipe].values()),
        )
        for r, recipe in enumerate(recipes)
    ]
    return tuple(sorted(found, key=lambda standing: -standing.strength))


def _strengths(wins: NDArray[np.float64], base: int) -> NDArray[np.float64]:
    """Return Bradley-Terry strengths in points of Elo from wins (R, R), 0 for the baseline."""
    import choix  # It is needed here only.

    rows = wins.copy()
    np.fill_diagonal(rows, 0)
    found = choix.ilsr_pairwise_dense(rows, alpha=PRIOR)
    return ELO * (found - found[base])


def _interval(values: NDArray[np.float64]) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values[1:], (tail, 1 - tail))
    return Interval(float(values[0]), float(low), float(high))


def _seconds(results: Iterable[StudyResult]) -> float | None:
    known = [value for result in results for value in result.seconds]
    return sum(known) / len(known) if known else None
