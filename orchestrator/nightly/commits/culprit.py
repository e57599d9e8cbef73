"""Which of several commits made a figure worse, by as few measurements as luck allows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_NIGHTS = 6  # Partial nights: one confirms, five tell 32 commits apart.
ENOUGH = 0.97  # Probability at which the search ends.
NAMED = 0.65  # Probability from which a commit, or a few that hold it, are named.
LUCK = 0.15  # Probability beforehand that nothing has changed at all.
SURROUNDINGS = 0.002  # And that something else than the code has, if nothing else seems to.
LIKELY_SURROUNDINGS = 0.3  # The same, where libraries, hardware or data did change.
FREEDOM = 30  # Of Student's t: a night may be off by more than its noise lets expect.
BAD_NIGHTS = 2  # Nights behind the alarm, which say how bad bad is.
ROUNDS = 3  # In which levels and probabilities are brought to agree.
MOST_CLEAR = 12.0  # Deviations between good and bad; no night is surer than that.

Floats = NDArray[np.float64]


class Range(NamedTuple):
    """Commits, counted from 1; with this probability one of them is to blame."""

    first: int
    last: int
    chance: float


class Culprit:
    """Knowledge of the commits 1 to N after the last good night, and which to look at next.

    The change is in commit k if all from k on are bad. It may also have been there before the first
    (place 0: then it is in the surroundings) or nowhere (place N + 1: then the alarm was luck). All
    measurements together give each place a probability, again after each of them.

    Args:
        commits: How many there are, N.
        clear: Deviations of one night between a good and a bad figure.
        surroundings: Whether anything else has changed since the last good night.
    """

    def __init__(self, commits: int, clear: float, surroundings: bool = False) -> None:
        self._count = commits
        self._clear = clear
        before = LIKELY_SURROUNDINGS if surroundings else SURROUNDINGS
        self._prior = np.full(commits + 2, (1 - LUCK - before) / commits)
        self._prior[0], self._prior[-1] = before, LUCK
        self._observed: list[tuple[int, float, int]] = []
        self._useless: set[int] = set()
        self.chances = self._prior
        """Probability of each place (N + 2,)."""

    def observe(self, commit: int, badness: float, times: int = 1) -> None:
        """Take a night of a commit (0 is the last good one) into account.

        ``badness`` is 0 for a figure as usual and 1 for one as bad as that of the alarm, the mean
        of as many computations as ``times`` says.
        """
        self._observed.append((commit, badness, times))
        for _ in range(ROUNDS):
            self.chances = self._posterior(self._bad_level())

    def _bad_level(self) -> float:
        """Return the mean of the bad nights, each counted by the probability that it is one."""
        total, nights = float(BAD_NIGHTS), float(BAD_NIGHTS)
        for commit, badness, times in self._observed:
            bad = times * float(self.chances[: commit + 1].sum())
            total, nights = total + bad * badness, nights + bad
        return max(total / nights, 0.5)

    def _posterior(self, level: float) -> Floats:
        """Return the probability of each place, given how bad bad is."""
        weights = np.log(self._prior)
        for commit, badness, times in self._observed:
            place = min(max(badness, 0.0), level)
            clear = min(self._clear * np.sqrt(times), MOST_CLEAR)
            apart = clear * np.array([place, level - place])
            # Up to a constant, which all places share, the logarithm of its density.
            good, bad = -(FREEDOM + 1) / 2 * np.log1p(apart**2 / FREEDOM)
            weights += np.where(np.arange(self._count + 2) <= commit, bad, good)
        chances = np.exp(weights - weights.max())
        return chances / chances.sum()

    def pass_over(self, commit: int) -> None:
        """Note that a commit cannot be measured."""
        self._useless.add(commit)

    def next(self) -> int | None:
        """Return the commit to measure, or None if enough is known or none is left.

        The last one is first, so that the alarm is confirmed; then the one that halves the
        open ones.
        """
        measured = len(self._observed) + len(self._useless)
        if measured >= MOST_NIGHTS or self.chances.max() >= ENOUGH:
            return None
        halves = np.abs(np.cumsum(self.chances)[:-1] - 0.5)
        if not measured:
            halves[-1] = -1.0
        left = [commit for commit in range(self._count + 1) if commit not in self._useless]
        return min(left, key=lambda commit: (halves[commit], -commit), default=None)

    def found(self) -> Range:
        """Return the likeliest place, or the shortest run of places around it that is ``NAMED``."""
        chances = self.chances
        first = last = int(chances.argmax())
        while chances[first : last + 1].sum() < NAMED:
            below = chances[first - 1] if first > 0 else -1.0
            above = chances[last + 1] if last < len(chances) - 1 else -1.0
            first, last = (first - 1, last) if below > above else (first, last + 1)
        return Range(first, last, float(chances[first : last + 1].sum()))
