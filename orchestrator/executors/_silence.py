"""How long workers made no progress, and which of them hang."""

import math
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

BEAT_SECONDS = 5.0  # Between two signs of progress of a worker.
LEAST_SECONDS = 600.0  # By default: a first long batch or a compiler takes less.
FACTOR = 10  # By default: of the longest silence that ended by itself.
MOST_AT_ONCE = 10.0  # Seconds: a driver that was stopped itself blames nobody.

T = TypeVar("T", bound=Hashable)


class Silence(Generic[T]):
    """Tells which workers hang: they gave no sign of progress for ``hang_seconds``.

    Args:
        hang_seconds: 0 for never. None for ``FACTOR`` times the longest silence after which some
            worker still went on, and ``LEAST_SECONDS`` at least.
        clock: Returns seconds, rising.

    Attributes:
        beat_seconds: How often a worker is to give a sign; None for never.
    """

    def __init__(
        self, hang_seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._given, self._clock = hang_seconds, clock
        self._silent: dict[T, float] = {}
        self._longest, self._looked = 0.0, clock()
        self.beat_seconds = min(BEAT_SECONDS, self.limit / 5) if self.limit < math.inf else None

    @property
    def limit(self) -> float:
        """Return after how many seconds of silence a worker hangs."""
        if self._given is None:
            return max(LEAST_SECONDS, FACTOR * self._longest)
        return self._given or math.inf

    def heard(self, worker: T) -> None:
        """Take in a sign of progress; the first one begins the watch."""
        self._longest = max(self._longest, self._silent.get(worker, 0.0))
        self._silent[worker] = -self._passed()  # The next look counts it for all workers.

    def _passed(self) -> float:
        return min(self._clock() - self._looked, MOST_AT_ONCE)

    def over(self, worker: T) -> None:
        """Watch a worker no longer, as its job has ended."""
        self._silent.pop(worker, None)

    def hung(self) -> dict[T, float]:
        """Return the workers that hang, each with its seconds of silence, and count them again."""
        passed, self._looked = self._passed(), self._clock()
        self._silent = {worker: silent + passed for worker, silent in self._silent.items()}
        found = {worker: silent for worker, silent in self._silent.items() if silent > self.limit}
        self._silent |= dict.fromkeys(found, 0.0)
        return found
