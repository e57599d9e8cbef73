"""Compares all recipes over networks and splits: gains, wins and strengths."""

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
ELO = 400 / np.log(10)  # Points per unit of log-odds in the Bradley-Terry model, as in chess.
PRIOR = 0.01  # Keeps the strength of a recipe that always wins finite.


class Interval(NamedTuple):
    """A figure, and the ends of its 95% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """The figures of one recipe in the arena.

    Attributes:
        gains: Maps a metric to the baseline's figure minus the recipe's, averaged over networks;
            fractions (nats for NLL). Above 0 is better.
        wins: Share of matches won; a tie is half a win. A match compares the NLL of two recipes on
            one task and seed.
        strength: Bradley-Terry strength on the Elo scale, 0 for the baseline; 100 more points are
            odds of 1.8 to 1. It has no interval, because in a resample with one network many
            recipes win every match and their strength is unbounded.
        seconds: Mean time of a fit, or None if unknown.
        group: Letters, shared with recipes whose NLL over networks does not differ significantly
            (see ``rank_comparison``); empty if there are too few networks.
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
        tasks: Number of tasks; a network may have several, such as numbers of fitting rows.
        seeds: Number of splits of each task.
        absent: Maps a recipe to the reason why it is left out.
        lacking: Number of further networks without which no two recipes can differ significantly;
            0 if there are enough.
    """

    baseline: str
    standings: tuple[Standing, ...]
    networks: tuple[str, ...]
    tasks: int
    seeds: int
    absent: dict[str, str]
    lacking: int = 0


class _Table(NamedTuple):
    """Means over the tasks of a network; each pair of network and seed is a unit.

    Attributes:
        gains: (units, metrics, recipes), baseline minus recipe.
        wins: (units, recipes, recipes), share of tasks on which the first beats the second; a tie
            is half a win.
        networks: (units,), the number of each unit's network.
    """

    gains: NDArray[np.float64]
    wins: NDArray[np.float64]
    networks: NDArray[np.int64]


def arena(
    results: Iterable[StudyResult], baseline: str, *, draws: int = DRAWS, seed: int = 0
) -> Arena:
    """Compare recipes over networks and splits.

    Intervals are from a bootstrap in two steps: networks are drawn with replacement, then splits
    within each drawn network; a split counts with all tasks of its network. Networks have equal
    weight. With few networks, intervals say little about other networks.

    Args:
        results: Studies of any number of tasks; the same data set and model are one network.
        baseline: The recipe that gains are relative to.
        draws: Number of resamples, at least 1.
        seed: Determines the resamples.

    Raises:
        InputError: If the baseline, or every other recipe, lacks a figure on some task and seed.
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
    """Compare mean NLL over networks; more tasks or splits of a network are not more evidence."""
    scores = {
        recipe: {
            int(network): -float(table.gains[table.networks == network, 0, r].mean())
            for network in np.unique(table.networks)
        }
        for r, recipe in enumerate(recipes)
    }
    return rank_comparison(scores)


def _gap(own: dict[str, StudyResult], tasks: Sequence[str], seeds: int) -> str:
    """Return the reason why a recipe is left out, or an empty string."""
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
    """Return weights (1 + draws, units): first for the data as they are, then for resamples."""
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
    wins = (weights @ table.wins.sum(axis=2) - 0.5) / others  # without the tie with itself
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
    import choix

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
