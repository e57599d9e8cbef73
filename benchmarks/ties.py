r"""Tests the groups of recipes that do not differ significantly, on boards with a known truth.

    OMP_NUM_THREADS=1 python benchmarks/ties.py --boards 300

Boards of predictions are measured as `calsweep table --show ties` does it. They contain synthetic
networks of five classes; each recipe has a sharpness and a noise, to which each seed adds some
variation. Recipes of the same group have equal sharpness and noise, so they are truly equal;
others differ. Boards of figures draw the metric of each seed directly, with variances between seeds
that differ by recipe, and with seeds that recipes share (as recipes do that build on the same
network). Boards of blocks are tested as in `calsweep compare --ranks` and `calsweep logits arena`.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from _page import options, publish, setting, table

from orchestrator.statistics import rank_comparison, ties
from orchestrator.statistics._bootstrap import Measured, measure
from orchestrator.statistics._compare import Board
from orchestrator.statistics._contrast import Contrast
from orchestrator.statistics._ties import LEVEL, Need, Ties, rows_needed, seeds_needed
from trainables.metrics import FLOORED, noise_floor

CLASSES = 5
DRAWS = 300
NEED_DRAWS = 2000  # Number of resamples in `calsweep table --show ties`.
RECIPES = (4, 8, 16, 28)
SEEDS = (1, 2, 3, 5, 10)
NEED_SEEDS = (1, 2, 3, 5, 10, 20)
NOISE = (0.02, 0.1, 0.5)  # Noise of test rows; seeds differ by about 1.
HETEROGENEITY = (0.0, 0.4, 0.8)
WITHIN = 1.25
Rng = np.random.Generator


@dataclass(frozen=True)
class World:
    """A board and its truth: the group of each recipe, and the variances of each pair."""

    board: Board
    groups: dict[str, int]
    contrasts: dict[frozenset[str], Contrast]


def of_predictions(rng: Rng, metric: str) -> World:
    """Return a board of synthetic networks; networks of the same group are equally good."""
    rows, recipes = int(rng.choice((500, 1000, 2000))), int(rng.choice((4, 8, 12)))
    seeds = int(rng.choice((1, 2, 3, 5)))
    count = int(rng.integers(1, recipes // 2 + 1))
    groups = {f"r{n}": int(rng.integers(count)) for n in range(recipes)}
    sharp, noisy = rng.normal(0.3, 0.5, count), rng.uniform(0.2, 0.8, count)
    spread = rng.choice((0.02, 0.1, 0.3)) * (seeds > 1)  # With one seed, only rows vary.
    logits = torch.from_numpy(rng.normal(0, 2, (rows, CLASSES)))
    labels = torch.distributions.Categorical(logits=logits).sample()
    predictions = {
        recipe: [
            (
                math.exp(sharp[group] + spread * rng.normal())
                * (logits + noisy[group] * torch.from_numpy(rng.normal(size=logits.shape)))
            ).log_softmax(1)
            for _ in range(seeds)
        ]
        for recipe, group in groups.items()
    }
    figures = measure(predictions, labels, metric, draws=DRAWS, seed=int(rng.integers(2**31)))
    floors = {
        recipe: float(np.mean([noise_floor(table, metric).mean for table in tables]))
        for recipe, tables in (predictions.items() if metric in FLOORED else ())
    }
    return World(Board("t", metric, figures, floors, {}, rows, CLASSES), groups, {})


def of_figures(
    rng: Rng, recipes: int, seeds: int, draws: int = DRAWS, noise: Sequence[float] = (0.1, 0.5, 1.0)
) -> World:
    """Return a board of normally distributed figures; ``noise`` has deviations due to rows."""
    heterogeneity, rows = float(rng.choice(HETEROGENEITY)), float(rng.choice(noise))
    deviations = np.exp(rng.normal(0, heterogeneity, recipes))
    shared_by_two = rng.random() < 0.5  # Each two recipes build on one trained network.
    base = 2.0 * shared_by_two * np.repeat(rng.normal(size=(recipes, seeds)), 2, 0)[:recipes]
    means = 3.0 * rng.integers(int(rng.integers(1, 5)), size=recipes)
    seen = rng.normal(0, rows, (recipes, 1)) + rng.normal(0, rows, (recipes, seeds))
    again = rng.normal(0, rows, (recipes, 1, draws)) + rng.normal(0, rows, (recipes, seeds, draws))
    values = means[:, None] + base + deviations[:, None] * rng.normal(size=(recipes, seeds)) + seen
    names = [f"r{n}" for n in range(recipes)]
    figures = {
        name: Measured(torch.from_numpy(own), torch.from_numpy(own[:, None] + drawn))
        for name, own, drawn in zip(names, values, again, strict=True)
    }
    contrasts = {
        frozenset((names[i], names[j])): Contrast(
            *(0.0, 0.0, seeds),
            between=deviations[i] ** 2
            + deviations[j] ** 2
            + 8.0 * (shared_by_two and i // 2 != j // 2)
            + 2 * rows**2,
            shared=2 * rows**2,
            own=2 * rows**2,
            freedom=math.inf,
        )
        for i, j in combinations(range(recipes), 2)
    }
    board = Board("t", "nll", figures, {}, {}, 10_000, CLASSES)
    return World(board, dict(zip(names, means.tolist(), strict=True)), contrasts)


@dataclass
class Tally:
    """Counts of boards with a false difference, and of true differences found."""

    boards: int = 0
    wrong: int = 0
    told: float = 0.0
    differing: int = 0

    def add(self, groups: dict[str, int], apart: Callable[[str, str], bool]) -> None:
        """Count one board."""
        pairs = list(combinations(groups, 2))
        alike = [pair for pair in pairs if groups[pair[0]] == groups[pair[1]]]
        others = [pair for pair in pairs if groups[pair[0]] != groups[pair[1]]]
        self.boards += 1
        self.wrong += any(apart(*pair) for pair in alike)
        if others:
            self.told += sum(apart(*pair) for pair in others) / len(others)
            self.differing += 1

    @property
    def cells(self) -> list[str]:
        """Number of boards, percent with a false difference, percent of true differences found."""
        power = f"{100 * self.told / self.differing:.0f}" if self.differing else "–"
        return [str(self.boards), f"{100 * self.wrong / self.boards:.1f}", power]


def apart(found: Ties) -> Callable[[str, str], bool]:
    """Return a function that is True if two recipes share no letter."""
    signs = {recipe: set(own) for recipe, own in found.letters.items()}
    return lambda one, other: not signs[one] & signs[other]


def of_blocks(rng: Rng, tally: Tally) -> None:
    """Count a board of scores on 12 to 40 blocks of unequal difficulty."""
    recipes, blocks = int(rng.integers(3, 9)), int(rng.integers(12, 41))
    means = 0.8 * rng.integers(int(rng.integers(1, 4)), size=recipes)
    scales = np.exp(rng.normal(0, 1, blocks))
    scores = scales * (means[:, None] + rng.standard_t(4, (recipes, blocks)))
    table = {f"r{n}": dict(enumerate(own)) for n, own in enumerate(scores)}
    found = rank_comparison(table)
    told = {frozenset((pair.first, pair.second)) for pair in found.pairs if pair.differs}
    groups = dict(zip(table, means.tolist(), strict=True))
    tally.add(groups, lambda one, other: frozenset((one, other)) in told)


def needs(rng: Rng, boards: int) -> Iterator[tuple[str, bool, float, tuple[int, int], float]]:
    """Yield the seeds or rows that each board prints as needed, and the true number.

    Yields:
        Unit, whether one number (not a range) is printed, the true number, the printed ends, and
        the ratio of the printed number to the true one.
    """
    for _ in range(boards):
        recipes, seeds = int(rng.choice(RECIPES)), int(rng.choice(NEED_SEEDS))
        world = of_figures(rng, recipes, seeds, NEED_DRAWS, NOISE)
        found = ties(world.board)
        if found.need is None:
            continue
        yield from _judged(world, found.need, found.letters)


def _judged(
    world: World, need: Need, letters: dict[str, str]
) -> Iterator[tuple[str, bool, float, tuple[int, int], float]]:
    own = world.contrasts[frozenset((need.first, need.second))]
    signs = {name: set(own) for name, own in letters.items()}
    left = LEVEL / sum(bool(signs[a] & signs[b]) for a, b in combinations(letters, 2))
    if own.seeds == 1:  # The networks are fixed: only rows vary.
        own = Contrast(0.0, 0.0, 1, 0.0, own.shared + own.own, 0.0, math.inf)
    seeds, rows = seeds_needed(own, need.size, left), rows_needed(own, need.size, left)
    truths = (
        ("seeds", None if seeds is None else max(seeds - own.seeds, 1), need.seeds),
        ("rows", None if rows is None else max((rows - 1) * world.board.rows, 1), need.rows),
    )
    for unit, truth, said in truths:
        if truth is not None and said is not None:
            yield unit, need.sure(said), truth, said, math.sqrt(said[0] * said[1]) / truth


def _error_rates(boards: int) -> Iterator[list[str]]:
    for metric in ("ece", "nll", "acc"):
        rng, tally = np.random.default_rng(0), Tally()
        torch.manual_seed(0)
        for _ in range(boards):
            world = of_predictions(rng, metric)
            tally.add(world.groups, apart(ties(world.board)))
        yield [f"predictions, {metric}", *tally.cells]
    for seeds in SEEDS[1:]:
        rng, tally = np.random.default_rng(seeds), Tally()
        for _ in range(boards):
            world = of_figures(rng, int(rng.choice(RECIPES)), seeds)
            tally.add(world.groups, apart(ties(world.board)))
        yield [f"figures, {seeds} seeds", *tally.cells]
    rng, tally = np.random.default_rng(1), Tally()
    for _ in range(boards):
        of_blocks(rng, tally)
    yield ["blocks (`compare --ranks`, `logits arena`)", *tally.cells]


def _needs_rows(boards: int) -> Iterator[list[str]]:
    found = list(needs(np.random.default_rng(2), boards))
    for unit in ("seeds", "rows"):
        for sure in (True, False):
            own = [case for case in found if case[:2] == (unit, sure)]
            yield [f"{'about N' if sure else 'N to M'} {unit}", str(len(own)), _right(own)]


def _right(cases: Sequence[tuple[str, bool, float, tuple[int, int], float]]) -> str:
    """Return the percentage of numbers near the truth, and of ranges that contain it."""
    right = [
        1 / WITHIN <= ratio <= WITHIN if sure else low <= truth <= high
        for _, sure, truth, (low, high), ratio in cases
    ]
    return f"{100 * np.mean(right):.0f}" if right else "–"


def main() -> None:
    """Publish the page of one part of the measurements."""
    parser = options(__doc__)
    parser.add_argument("--boards", type=int, default=300, help="of each kind")
    parser.add_argument("--part", choices=("errors", "needs"), default="errors")
    wanted, began = parser.parse_args(), time.perf_counter()
    if wanted.part == "errors":
        question = "How often does a table call equal recipes different?"
        columns = ["boards of", "boards", "with a false difference, %", "true differences found, %"]
        rows = _error_rates(wanted.boards)
    else:
        question = "How many seeds or rows separate the two best recipes?"
        columns, rows = ["said", "cases", "right, %"], _needs_rows(wanted.boards)
    lines = table(columns, rows)
    place = f"{setting('torch', 'numpy')}; {time.perf_counter() - began:.0f} s."
    publish(question, lines, place, wanted.out)


if __name__ == "__main__":
    main()
