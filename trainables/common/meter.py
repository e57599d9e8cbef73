"""The cost of a running trial: seconds of an epoch, and peak memory."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from trainables.common.devices import concrete

RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
FORGET_THE_PEAK = "5"  # proc(5): sets the peak of resident memory to its present size.


class Meter:
    """Measures one trial of a process that serves many, one after the other.

    On a CPU seconds are those that the processor spent on this process, all threads together: other
    programs on the machine hardly change them. On a GPU they are those of the clock on the wall.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device = concrete(device)
        self._clock = time.monotonic if device.type == "cuda" else time.process_time
        self._epochs = 0
        self._seconds = 0.0
        self._resident = psutil.Process().memory_info().rss
        self._forgets = _forget_peak()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Time the block as one epoch."""
        started = self._clock()
        yield
        self._seconds += self._clock() - started
        self._epochs += 1
        if not self._forgets:
            self._resident = max(self._resident, psutil.Process().memory_info().rss)

    def report(self) -> dict[str, float]:
        """Return ``epoch_seconds`` (mean; 0 before any) and ``peak_memory`` (bytes).

        The memory is the device's for a trial on a GPU, else what the process had resident at
        most, libraries included; where the system cannot tell that, at the end of an epoch at most.
        """
        peak = self._resident
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
        elif self._forgets and (found := PEAK.search(STATUS.read_text(encoding="ascii"))):
            peak = int(found[1]) * 1024
        seconds = self._seconds / self._epochs if self._epochs else 0.0
        return {"epoch_seconds": seconds, "peak_memory": float(peak)}


def _forget_peak() -> bool:
    """Reset the peak of memory of this process; return True if the system can."""
    try:
        RESET.write_text(FORGET_THE_PEAK, encoding="ascii")
        return PEAK.search(STATUS.read_text(encoding="ascii")) is not None
    except OSError:
        return False
