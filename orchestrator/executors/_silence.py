"""Finds workers that hang, by the time since their last sign of progress."""

import math
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

BEAT_SECONDS = 5.0  # Longest time between two signs of a worker that makes progress.
LEAST_SECONDS = 600.0  # Lowest default limit; the first batch or a compiler takes less time.
FACTOR = 10  # Default limit, as a multiple of the longest silence after which a worker went on.
MOST_AT_ONCE = 10.0  # Maximum seconds added per check; the driver itself may have been stopped.

T = TypeVar("T", bound=Hashable)


class Silence(Generic[T]):
    """Measures the silence of workers; a worker hangs after ``hang_seconds`` without a sign.

    Args:
        hang_seconds: 0 means that no worker ever hangs. None means ``FACTOR`` times the longest
            silence after which a worker went on, and at least ``LEAST_SECONDS``.
        clock: Returns the seconds of a clock that is never set back.

    Attributes:
        beat_seconds: Time between two signs of a worker; None if workers need not send signs.
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
        """The seconds of silence after which a worker counts as hung."""
        if self._given is None:
            return max(LEAST_SECONDS, FACTOR * self._longest)
        return self._given or math.inf

    def heard(self, worker: T) -> None:
        """Record a sign of progress; the first one starts the measurement."""
        self._longest = max(self._longest, self._silent.get(worker, 0.0))
        self._silent[worker] = -self._passed()  # ``hung`` adds this time to all workers.

    def _passed(self) -> float:
        return min(self._clock() - self._looked, MOST_AT_ONCE)

    def over(self, worker: T) -> None:
        """Forget a worker whose job has ended."""
        self._silent.pop(worker, None)

    def hung(self) -> dict[T, float]:
        """Return hanging workers with their seconds of silence, and reset these seconds to 0."""
        passed, self._looked = self._passed(), self._clock()
        self._silent = {worker: silent + passed for worker, silent in self._silent.items()}
        found = {worker: silent for worker, silent in self._silent.items() if silent > self.limit}
        self._silent |= dict.fromkeys(found, 0.0)
        return found
