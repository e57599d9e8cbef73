"""Groups recipes that do not differ significantly on one task; estimates the sample they need."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import combinations

import scipy

from orchestrator.statistics._compare import Board
from orchestrator.statistics._contrast import Contrast, contrast, moderated, reach
from orchestrator.statistics._letters import letters
from orchestrator.statistics._ranks import holm
from trainables.metrics import METRICS

LEVEL = 0.05
MOST_SEEDS = 100_000
# Quantiles of the variance between seeds; the resulting range is right in 80% of simulations.
SURE = (0.04, 0.96)
CLOSE = 1.25


@dataclass(frozen=True)
class Need:
    """The numbers of further seeds or test rows that would separate two recipes.

    Attributes:
        first, second: The recipes.
        size: The difference between the recipes; fractions (nats for NLL).
        seeds: Smallest and largest number of seeds; None if more seeds alone never suffice, or the
            recipes have one seed.
        rows: Smallest and largest number of test rows; None if more rows alone never suffice.
    """

    first: str
    second: str
    size: float
    seeds: tuple[int, int] | None
    rows: tuple[int, int] | None

    @property
    def text(self) -> str:
        """Return the need as a sentence."""
        parts = [
            f"{self._number(ends)} {unit}"
            for ends, unit in ((self.seeds, "seeds"), (self.rows, "test rows"))
            if ends is not None
        ]
        pair = f"{self.first} and {self.second}"
        if not parts:
            return f"{pair}: neither more seeds alone nor more test rows alone separate them"
        return f"{pair}: to separate them, add {' or '.join(parts)}"

    @staticmethod
    def sure(ends: tuple[int, int]) -> bool:
        """Return True if both ends are within a factor of 1.25 of their geometric mean."""
        return ends[1] <= CLOSE**2 * ends[0]

    def _number(self, ends: tuple[int, int]) -> str:
        low, high = ends
        if self.sure(ends):
            return f"about {_rounded(math.sqrt(low * high)):,}"
        return f"{_rounded(low):,} to {_rounded(high):,}"


def _rounded(value: float) -> int:
    return int(float(f"{value:.1e}")) if value >= 100 else round(value)


@dataclass(frozen=True)
class Ties:
    """The recipes of one task in groups.

    Attributes:
        values: Metric of each recipe, the mean over seeds, the best first.
        letters: Groups of each recipe; two recipes share a letter unless they differ significantly.
        need: The sample that would separate the two best; None if they are separate or equal.
    """

    task: str
    metric: str
    values: dict[str, float]
    letters: dict[str, str]
    need: Need | None
    seeds: int
    absent: dict[str, str]


def ties(board: Board, level: float = LEVEL) -> Ties:
    """Group the recipes of a board.

    Every pair is tested by Student's t on its ``contrast``, whose variance between seeds is
    ``moderated``, with Holm's correction over all pairs: the probability of separating any two
    equal recipes is at most ``level``. A difference inside the noise floor never counts.
    """
    higher = METRICS[board.metric].better == "higher"
    means = {recipe: float(own.values.mean()) for recipe, own in board.figures.items()}
    values = dict(sorted(means.items(), key=lambda entry: -entry[1] if higher else entry[1]))
    pairs = list(combinations(values, 2))
    plain = [contrast(board.figures[one], board.figures[other]) for one, other in pairs]
    found = moderated(plain, len(values))
    tested = [
        1.0 if board.inside_floor(*pair) else own.p_value()
        for pair, own in zip(pairs, found, strict=True)
    ]
    differs = (holm(tested)[1] <= level).tolist()
    separate = {frozenset(pair) for pair, apart in zip(pairs, differs, strict=True) if apart}
    need = None
    if pairs and not differs[0]:
        step = level / differs.count(False)  # Holm's level for the pair of the two best.
        need = _need(pairs[0], found[0], step, board)
    seeds = min((own.seeds for own in found), default=0)
    groups = letters(list(values), separate)
    return Ties(board.task, board.metric, values, groups, need, seeds, board.absent)


def _need(pair: tuple[str, str], own: Contrast, level: float, board: Board) -> Need | None:
    size = abs(own.centre)
    floor = board.floor(*pair)
    if not size or not own.error:
        return None
    ends = [own]
    if own.seeds > 1 and math.isfinite(own.freedom):
        quantiles = (scipy.stats.chi2.ppf(share, own.freedom) for share in reversed(SURE))
        ends = [replace(own, between=own.between * own.freedom / q) for q in quantiles]
    seeds = [seeds_needed(end, size, level) if floor < size else None for end in ends]
    rows = [rows_needed(end, size, level, floor) for end in ends]
    return Need(
        *pair,
        size,
        _span([None if n is None else max(n - own.seeds, 1) for n in seeds]),
        _span([None if g is None else max(math.ceil((g - 1) * board.rows), 1) for g in rows]),
    )


def _span(found: list[int | None]) -> tuple[int, int] | None:
    known = [number for number in found if number is not None]
    return (known[0], known[-1]) if len(known) == len(found) else None


def seeds_needed(own: Contrast, size: float, level: float) -> int | None:
    """Return the number of seeds that find a difference in 80% of cases, on these test rows.

    None if no number below ``MOST_SEEDS`` does, or if the variance between seeds is unknown (one
    seed).
    """
    if own.seeds == 1 or (own.shared and size <= reach(math.inf, level) * math.sqrt(own.shared)):
        return None

    def enough(seeds: int) -> bool:
        freedom = own.freedom * (seeds - 1) / (own.seeds - 1)
        whole = replace(own, seeds=seeds, freedom=freedom)
        return size >= reach(whole.freedom, level) * whole.error

    numbers = range(own.seeds, MOST_SEEDS)
    place = bisect_left(numbers, True, key=enough)
    return numbers[place] if place < len(numbers) else None


def rows_needed(own: Contrast, size: float, level: float, floor: float = -1.0) -> float | None:
    """Return the number of test rows needed, as a multiple of these; None if seeds are too few."""
    between = max(own.between - own.own, 0.0) / own.seeds
    left = (size / reach(own.freedom, level)) ** 2 - between
    if left <= 0:
        return None
    return max((own.shared + own.own / own.seeds) / left, (floor / size) ** 2 if floor > 0 else 0)
